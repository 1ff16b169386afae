"""Write the table of trials on development worlds that differ in schedule and dictionary:

    python -m benchmarks.hard.table evidence/hard

reads trials.jsonl from the folder and writes table.md to it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.hard.plans import (
    BETWEEN,
    LONG,
    LONG_SAMPLES,
    METHODS,
    NAMED_FLAT,
    NAMED_TREE,
    SCHEDULES_RATE,
    TREE,
    batches,
)
from benchmarks.trials import Record, format_row, read_trials
from osae.config import to_json

ALIGNED = "topk-aligned"
HEAD = ("recipe", "flat, usual", "flat, constant k", "tree, usual", "tree, constant k")
METHOD = "osae-from-noise"
ABOUT = ("method", "batch", "epochs", "changes", "world")
AGREEMENT = ("mcc_truth", "stability_pairs", "orderedness_pairs")
SOON = {"lr.decay": 0.2, "k_warmup.share": 0.0}
USUAL: dict[str, Any] = {}
NOISE = {"start": {"kind": "FromNoise"}}
ORDERED = {"prefix.full": 0.8, "resort": {"kind": "Resort", "times": 8, "until": 1.0, "samples": 8000}}


def tabulate(trials: Sequence[Record]) -> str:
    """Return MCC / stability of every recipe, with the usual schedule and with constant k."""
    rows = {f"`{name}`": (name, USUAL) for name in METHODS}
    rows |= {"`topk`, from noise": ("topk", NOISE), "`topk-aligned`, from noise": (ALIGNED, NOISE)}
    rows["`osae-aligned`"] = ("osae-from-noise", NOISE | ORDERED | {"dictionary": {"kind": "Aligned"}})
    lines = [HEAD, ["---"] * len(HEAD)]
    for label, (method, changes) in rows.items():
        cells = [
            _find(trials, method, changes | schedule, roots)
            for roots in (0, TREE.roots)
            for schedule in (USUAL, SOON)
        ]
        lines.append([label, *cells])
    return "\n".join(
        [
            "## Schedules",
            "",
            *map(format_row, lines),
            "",
            *_tabulate_batches(trials),
            "",
            *_tabulate_one(trials),
            "",
        ]
    )


def _tabulate_batches(trials: Sequence[Record]) -> list[str]:
    """Return MCC, stability and orderedness on the protocol's worlds, from noise, by recipe and batch."""
    head = ["recipe", "batch", "flat", "tree"]
    lines = [head, ["---"] * len(head)]
    for method, batch in dict.fromkeys((method, batch) for _, method, _, _, batch in batches()):
        cells = []
        for world in (NAMED_FLAT, NAMED_TREE):
            found = _measures(trials, (method, batch, 10, NOISE, to_json(world)))
            cells.append(" / ".join(f"{found[name]:.3f}" for name in AGREEMENT))
        lines.append([f"`{method}`", f"{batch:,}", *cells])
    return ["## Batches", "", *map(format_row, lines)]


def _tabulate_one(trials: Sequence[Record]) -> list[str]:
    """Return compromises between recipes: truth and agreement, explained variance and dead units."""
    head = ["samples", "recipe", "flat", "EV", "dead", "tree", "EV", "dead"]
    lines = [head, ["---"] * len(head)]
    between = {label: (METHOD, changes) for label, changes in BETWEEN.items()}
    for samples, ideas in ((NAMED_FLAT.samples, between), (LONG_SAMPLES, LONG)):
        for label, (method, changes) in ideas.items():
            cells = [f"{samples:,}", label]
            for world in (NAMED_FLAT, NAMED_TREE):
                where = to_json(replace(world, samples=samples))
                found = _measures(trials, (method, 512, 10, to_json(changes), where))
                cells.append(" / ".join(f"{found[name]:.3f}" for name in AGREEMENT))
                cells += [f"{found['explained_variance']:.3f}", f"{found['dead']:.3f}"]
            lines.append(cells)
    return ["## One recipe", "", *map(format_row, lines)]


def _measures(trials: Sequence[Record], about: tuple[Any, ...]) -> Mapping[str, float]:
    return next(trial["measures"] for trial in trials if tuple(trial[key] for key in ABOUT) == about)


def _find(trials: Sequence[Record], method: str, changes: Mapping[str, Any], roots: int) -> str:
    """Return the measures of a trial; it is identified by its changes, besides the rate."""
    world = to_json(TREE) | {"roots": roots}
    for trial in trials:
        same = trial["changes"] == {"lr.peak": SCHEDULES_RATE, **changes} and trial["world"] == world
        if same and trial["method"] == method and (trial["epochs"], trial["batch"]) == (5, 500):
            found = trial["measures"]
            return f"{found['mcc_truth']:.3f} / {found['stability_pairs']:.3f}"
    return "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path)
    asked = parser.parse_args(arguments)
    text = tabulate(read_trials(asked.evidence / "trials.jsonl"))
    (asked.evidence / "table.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
