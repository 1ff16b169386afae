"""The model card of a repository of SAEs, as Markdown in which untrusted names are escaped."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from osae import __version__
from osae.interop import Loaded
from osae.interop.place import Place
from osae.report.cells import explain, lay_out
from osae.report.markdown import markdown_table
from osae.report.text import visible
from osae.results import Comparison, Evaluation, Table
from osae.studies.subjects import own_provenance

TAGS = ("sparse-autoencoder", "sae", "mechanistic-interpretability", "interpretability", "osae")
LOADERS = {
    "saelens": 'from sae_lens import SAE\nsae = SAE.from_pretrained("{repo}", "{folder}")',
    "sparsify": 'from sparsify import SparseCoder\nsae = SparseCoder.load_from_hub("{repo}", "{folder}")',
    "osae": 'import osae\nsae = osae.load("hf:{repo}/{folder}")',
}
UNIT = "Unit"  # head of a table of individual units, which is too long for a card
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # of a model or a dataset
_FOLDERS = re.compile(r"^(/|~|[A-Za-z]:\\).*[/\\](?=[^/\\])")
_ACTIVE = re.compile(r"([\\`*_{}\[\]#|~$]|^[-+])")  # characters with a meaning in Markdown


@dataclass(frozen=True)
class Published:
    """An SAE in a repository: its folder, its description, and the libraries that can load it."""

    folder: str
    source: Loaded
    libraries: tuple[str, ...]
    place: Place


def write_card(
    repo: str,
    saes: Sequence[Published],
    results: Sequence[Comparison | Evaluation] = (),
    license: str | None = None,
) -> str:
    """Return README.md: metadata for the hub's filters, a description of the SAEs, and their results."""
    lines = ["---", _front_matter(saes, license).strip(), "---", "", f"# {escape(repo.split('/')[1])}", ""]
    count = "A sparse autoencoder" if len(saes) == 1 else f"{len(saes)} sparse autoencoders"
    lines += [f"{count}, uploaded with osae {__version__}.", "", "## What it is", ""]
    lines += [line for sae in saes for line in _describe(sae)]
    lines += ["", "## How to load it", "", *_show_loading(repo, saes[0])]
    for result in results:
        lines += ["", *_show_result(result)]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """Return the text escaped for Markdown, so that it creates no link, image, tag, code or table.

    Only the last component of local paths is kept.
    """
    plain = visible(" ".join(_FOLDERS.sub("", word) for word in text.split()), limit=400)
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = _ACTIVE.sub(r"\\\1", plain)
    return plain.replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace("@", "&#64;")


def plain_name(text: str) -> str:
    """Return a name with letters, digits, dots, hyphens and underscores only, for folders and tables."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[:96] or "sae"


def _front_matter(saes: Sequence[Published], license: str | None) -> str:
    libraries = dict.fromkeys(name for sae in saes for name in sae.libraries)
    fields: dict[str, Any] = {"library_name": "saelens", "tags": [*TAGS, *libraries]}
    models = dict.fromkeys(name for sae in saes if (name := sae.place.model) and _is_hub_name(name))
    if models:
        fields["base_model"] = [*models]
    if license:
        fields["license"] = license
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=False)


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _describe(sae: Published) -> list[str]:
    """Return the facts about one SAE as lines of a list."""
    config = sae.source.require_sae().config
    facts = [f"{config.units:,} units of width {config.width:,}", escape(str(config.sparsifier))]
    if said := [escape(name) for name in (sae.place.model, sae.place.spot) if name]:
        facts.append(f"for {', '.join(said)}")
    lines = [f"- `{sae.folder}`: {', '.join(facts)}."]
    if how := _describe_training(own_provenance(sae.source)):
        lines.append(f"    - {how}")
    return lines + [f"    - {escape(note)}" for note in sae.source.notes]


def _describe_training(about: Mapping[str, Any]) -> str:
    """Return how osae trained it; empty if its file does not say."""
    recipe = about.get("recipe")
    if not isinstance(recipe, Mapping):
        return ""
    rate = recipe.get("lr")
    peak = rate.get("peak") if isinstance(rate, Mapping) else None
    prefix = recipe.get("prefix")
    weights = prefix.get("kind") if isinstance(prefix, Mapping) else None
    said = {
        "seed": about.get("seed"),
        "samples": recipe.get("samples"),
        "batch": recipe.get("batch"),
        "peak learning rate": peak,
        "prefix weights": weights,
    }
    listed = ", ".join(f"{name} {escape(str(value))}" for name, value in said.items() if value is not None)
    return f"Trained by osae with the recipe {escape(str(recipe.get('name')))}: {listed}."


def _show_loading(repo: str, sae: Published) -> list[str]:
    shown = [LOADERS[name].format(repo=repo, folder=sae.folder) for name in (*sae.libraries, "osae")]
    return ["```python", "\n\n".join(shown), "```"]


def _show_result(result: Comparison | Evaluation) -> list[str]:
    """Return the tables of a result, with escaped names, and the meaning of their columns."""
    consistent = isinstance(result, Comparison)
    lines = ["## Consistency" if consistent else "## Reconstruction", ""]
    lines += [f"- {escape(sentence)}" for sentence in result.summary()]
    tables = [table for table in result.tables() if table.head != UNIT]
    for table in tables:
        lines += ["", f"### {escape(table.title)}", "", markdown_table(_with_plain_names(table))]
    meant = explain([lay_out(table) for table in tables])
    return [*lines, "", *(f"- *{escape(title)}*: {escape(meaning)}" for title, meaning in meant.items())]


def _with_plain_names(table: Table) -> Table:
    rows = [replace(row, label=_plain_label(row.label, summary=row.summary)) for row in table.rows]
    return replace(table, rows=tuple(rows))


def _plain_label(label: str, *, summary: bool) -> str:
    """Return the label of a row; the label of a pair keeps the dash between its names."""
    return label if summary else " ".join(each if each == "–" else plain_name(each) for each in label.split())
