"""`osae compare`, `order`, `stitch`, `convert` and `inspect`: for SAEs of any library."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli.terminal import (
    Progress,
    asked_now,
    check_writable,
    console,
    counting,
    show,
    write_json,
    write_results,
)

if TYPE_CHECKING:
    from osae.data.shards import Shards
    from osae.interop import Loaded

SAE_HELP = "folder or weight file of any known library, or hf:user/repo/subfolder@revision"
SHARDS_HELP = "activations: a folder with manifest.json, or a .npy or .safetensors file of rows"
TARGETS = ("saelens", "dictionary_learning", "sparsify", "osae")
ORDERS = ("gain", "energy", "frequency", "greedy")


def prefix_lengths(text: str) -> tuple[int, ...] | None:
    """The lengths in "16,64,..."; None for "auto"."""
    if text == "auto":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give auto, or lengths such as 16,64,256") from None


def configure_compare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("saes", nargs="+", metavar="SAE", help=SAE_HELP)
    sub.add_argument(
        "--prefixes", type=prefix_lengths, default="auto", metavar="auto|16,64,...", help="prefix lengths"
    )
    sub.add_argument("--activations", type=Path, metavar="SHARDS", help=SHARDS_HELP)
    sub.add_argument("--on", choices=("decoder", "encoder"), default="decoder", help="the rows to compare")
    sub.add_argument("--abs", action="store_true", help="match by |cosine| instead of the cosine")
    sub.add_argument(
        "--dead", choices=("keep", "drop"), default="keep", help="units that never speak, and zero rows"
    )
    sub.add_argument(
        "--chance-draws",
        type=counting,
        metavar="N",
        help="pairs of random dictionaries for each chance level; 0 for none (default: by size)",
    )
    _add_orientation(sub)
    for name, what in (("json", "all numbers and matchings"), ("html", "a page"), ("csv", "a table")):
        sub.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what} to this file")


def compare(asked: argparse.Namespace) -> int:
    from osae.comparison import compare as compared
    from osae.report import comparison as report

    for path in (asked.json, asked.html, asked.csv):
        check_writable(path)
    with Progress("osae compare") as progress:
        result = compared(
            [_load(path, asked.orientation) for path in asked.saes],
            prefixes=asked.prefixes,
            absolute=asked.abs,
            on=asked.on,
            dead=asked.dead,
            activations=asked.activations,
            chance_draws=asked.chance_draws,
            progress=progress,
        )
    result["provenance"] |= asked_now(asked)
    show(report.rich_comparison(result), report.notes(result))
    write_results(result, asked, csv=report.write_comparison_csv, page=report.write_comparison_page)
    return 0


def configure_order(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("sae", metavar="SAE", help=SAE_HELP)
    sub.add_argument("--activations", type=Path, required=True, metavar="SHARDS", help=SHARDS_HELP)
    sub.add_argument(
        "--by",
        choices=ORDERS,
        default="gain",
        help="gain (or greedy): next comes the unit that lowers the error most; energy: what each explains "
        "alone; frequency: how often it speaks",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder, in osae's format")


def order(asked: argparse.Namespace) -> int:
    from osae.metrics import rank_correlation
    from osae.roles import ordered

    if asked.out.is_dir() and any(asked.out.iterdir()):
        raise ValueError(f"{asked.out} holds files already: give a new or empty folder.")
    loaded, shards = _load(asked.sae), _shards(asked.activations)
    by = "gain" if asked.by == "greedy" else asked.by
    with Progress("osae order") as progress:
        found = ordered(loaded, shards, by=by, progress=progress)
    found.sae.save(asked.out, provenance=found.provenance | asked_now(asked))
    before = found.order.sort().values
    moved, alike = int((found.order != before).sum()), rank_correlation(before, found.order)
    print(f"{moved} of {loaded.units} units moved; rank correlation of old and new places {alike:.3f}")
    print(asked.out)
    return 0


def configure_stitch(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("small", metavar="SMALL", help=SAE_HELP)
    sub.add_argument("large", metavar="LARGE", help="the SAE whose units are added to the small one")
    sub.add_argument("--activations", type=Path, required=True, metavar="SHARDS", help=SHARDS_HELP)
    sub.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")


def stitch(asked: argparse.Namespace) -> int:
    from osae.report.comparison import rich_stitching
    from osae.roles import stitch as stitched

    check_writable(asked.json)
    small, large, shards = _load(asked.small), _load(asked.large), _shards(asked.activations)
    with Progress("osae stitch") as progress:
        result = stitched(small, large, shards, progress=progress)
    result["provenance"] |= asked_now(asked)
    for table in rich_stitching(result):
        console().print(table)
    if asked.json:
        write_json(result, asked.json)
        print(asked.json)
    return 0


def configure_convert(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", metavar="IN", help=SAE_HELP)
    sub.add_argument("out", type=Path, metavar="OUT", help="new or empty folder")
    sub.add_argument("--to", choices=TARGETS, required=True, help="the library that is to read it")
    sub.add_argument("--model", help="name of the model, for the fields that the other library has for it")
    sub.add_argument("--layer", type=counting, help="layer of the model, likewise")


def convert(asked: argparse.Namespace) -> int:
    from osae.interop import convert as converted

    loaded = _load(asked.source)
    converted(loaded, asked.out, to=asked.to, model=asked.model, layer=asked.layer)
    for note in loaded.notes:
        print(f"- {note}")
    print(asked.out)
    return 0


def configure_inspect(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("path", metavar="PATH", help="an SAE of any known library, or activations")
    sub.add_argument("--verify", action="store_true", help="compare the checksums of activation shards")
    _add_orientation(sub)


def inspect(asked: argparse.Namespace) -> int:
    from osae.data.shards import is_shards

    if is_shards(asked.path):
        shards = _shards(asked.path)
        if asked.verify:
            with Progress("osae inspect") as progress:
                shards.verify(lambda done, total: progress(done, total, "checked"))
        _print_facts(_about_shards(shards))
    else:
        _print_facts(_about_sae(_load(asked.path, asked.orientation)))
    return 0


def _about_sae(loaded: "Loaded") -> list[tuple[str, str]]:
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
    if zero := int((norms == 0).sum()):
        facts.append(("zero", f"{zero} units without a direction"))
    return facts + [("note", note) for note in loaded.notes]


def _about_shards(shards: "Shards") -> list[tuple[str, str]]:
    from osae.data.harvest import CONTEXTS

    facts = [("path", str(shards.path)), ("format", "activations"), ("rows", str(shards.rows))]
    facts += [("width", str(shards.width)), ("dtype", shards.dtype), ("shards", str(len(shards.shards)))]
    known = {"schema", "kind", "rows", "width", "dtype", "shards"}
    for name, value in shards.manifest.items():
        if name not in known:
            facts += _facts_of(name, value)
    if (shards.path / CONTEXTS).is_file() and not shards.covers(CONTEXTS):
        facts.append(("note", f"{CONTEXTS} has no checksum: an earlier release wrote this."))
    return facts


def _facts_of(name: str, value: Any, depth: int = 3) -> list[tuple[str, str]]:
    """A line for each value inside, none for what is empty; a vector as its norm."""
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
    return [fact for key, each in inside for fact in _facts_of(f"{name}.{key}", each, depth - 1)]


def _print_facts(facts: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        print(f"{name:{width}s}  {text}")


def _add_orientation(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--orientation",
        choices=("rows", "columns"),
        help="where the atoms of a bare decoder are (default: as its norms or its longer side tell)",
    )


def _load(path: str, orientation: Any = None) -> "Loaded":
    from osae.comparison import opened

    return opened(path, orientation=orientation)


def _shards(path: Path | str) -> "Shards":
    from osae.data.shards import Shards

    return Shards(path)
