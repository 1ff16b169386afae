"""`osae inspect`: what a file or folder contains."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osae.cli.command import Command
from osae.cli.inputs import check_present
from osae.cli.shared_options import orientation_option
from osae.cli.terminal import Progress
from osae.interop.formats import Orientation
from osae.options import Options, option, refuse

if TYPE_CHECKING:
    from osae.data.shards import Shards
    from osae.interop import Loaded

Facts = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """What to inspect."""

    path: str = option("an SAE of any known library, or activations", positional=True, metavar="PATH")
    verify: bool = option("verify the checksums of activations", default=False)
    orientation: Orientation | None = orientation_option()


def run(options: InspectOptions, line: str) -> int:
    """Describe the file or folder, one fact per line."""
    check_present(options.path)
    from osae.data.shards import Shards, is_shards
    from osae.studies.subjects import open_subject

    if is_shards(options.path):
        refuse(
            options,
            ("orientation",),
            f"applies to bare decoders only, and {options.path} contains activations: remove it.",
        )
        shards = Shards(options.path)
        if options.verify:
            with Progress("osae inspect") as progress:
                shards.verify(lambda done, total: progress(done, total, "checked"))
        _print_facts(_describe_shards(shards))
    else:
        refuse(
            options,
            ("verify",),
            f"applies to activations only, and {options.path} is not a folder of activations: remove it.",
        )
        _print_facts(_describe_sae(open_subject(options.path, orientation=options.orientation)))
    return 0


def _describe_sae(loaded: "Loaded") -> Facts:
    from osae.results.base import count

    norms = loaded.decoder.norm(dim=1)
    facts = [
        ("path", loaded.path),
        ("format", loaded.format),
        ("units", str(loaded.units)),
        ("width", str(loaded.width)),
        ("sparsifier", "unknown" if loaded.sae is None else str(loaded.sae.config.sparsifier)),
        ("atoms", f"norms {float(norms.min()):.4g} to {float(norms.max()):.4g}"),
        ("sha256", loaded.sha256),
    ]
    if loaded.sae is not None and loaded.sae.config.scaling is not None:
        facts.append(("scaling", f"{loaded.sae.config.scaling} of each input"))
    place = loaded.place
    facts += [(name, said) for name, said in (("model", place.model), ("place", place.spot)) if said]
    if zero := int((norms == 0).sum()):
        facts.append(("zero", f"{count(zero, 'unit')} without a direction"))
    if loaded.path.endswith(".npy"):
        facts.append(
            ("note", "read as a decoder; given as --data, it is read as activations with one sample per row.")
        )
    return facts + [("note", note) for note in loaded.notes]


def _describe_shards(shards: "Shards") -> Facts:
    from osae.data.harvest import CONTEXTS

    facts = [("path", str(shards.path)), ("format", "activations"), ("rows", str(shards.rows))]
    facts += [("width", str(shards.width)), ("dtype", shards.dtype), ("shards", str(len(shards.shards)))]
    known = {"schema", "kind", "rows", "width", "dtype", "shards"}
    for name, value in shards.manifest.items():
        if name not in known:
            facts += _flatten(name, value)
    if shards.bring(shards.folder / CONTEXTS).is_file() and not shards.covers(CONTEXTS):
        facts.append(("note", f"{CONTEXTS} has no checksum, since it was written by an earlier release."))
    return facts


def _flatten(name: str, value: Any, depth: int = 3) -> Facts:
    """Return a line for each value inside, skipping empty ones; vectors are shown by their norm."""
    match value:
        case None | "" | []:
            return []
        case dict() if depth:
            inside = [(str(key), each) for key, each in value.items()]
        case [dict(), *_] if depth:
            inside = [(str(place), each) for place, each in enumerate(value)]
        case [*numbers] if all(isinstance(number, float) for number in numbers):
            return [(name, f"{len(numbers)} numbers, norm {math.hypot(*numbers):.4g}")]
        case [*words] if all(isinstance(word, str) for word in words):
            return [(name, ", ".join(words))]
        case float():
            return [(name, f"{value:.6g}")]
        case _:
            return [(name, str(value))]
    return [fact for key, each in inside for fact in _flatten(f"{name}.{key}", each, depth - 1)]


def _print_facts(facts: Facts) -> None:
    from osae.report.text import visible

    shown = [(visible(name, 80), visible(text)) for name, text in facts]
    width = max(len(name) for name, _ in shown)
    for name, text in shown:
        print(f"{name:{width}s}  {text}")


COMMAND = Command(
    "inspect",
    "Describe a file or folder: an SAE of any library, or activations.",
    InspectOptions,
    run,
    examples=("osae inspect runs/mine/osae-seed0", "osae inspect acts --verify"),
)
