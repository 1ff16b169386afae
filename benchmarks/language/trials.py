"""Run trials on activations of a language model and append them to a file: recipe, numbers and cost of each.

    python -m benchmarks.language.trials batches evidence/language/trials.jsonl --data acts

A trial trains two SAEs with the same recipe, but with different seeds and different documents of a text.
`--data` is a folder with the activations of every text, TEXT and TEXT-held-out, as `osae harvest` writes
them; "TEXT, first N rows" is cut from TEXT. Trials already in the file are skipped. The SAEs are kept in
DATA/saes, and those that several trials need are trained once; the cost is the time on one CPU core that a
trial would take on its own.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from benchmarks.language.measures import measure_pair
from benchmarks.language.plans import PLANS
from benchmarks.language.ways import Consensus, Trainer, Way, sort_units, train_one
from benchmarks.trials import Record, make_parser, round_measures, run_missing
from osae.config import alter, from_json, to_json
from osae.data.documents import DOCUMENTS, read_documents, split_documents, write_parts
from osae.data.shards import TENSOR, Shards, write_shards
from osae.defaults import DType
from osae.recipes import Recipe, Task, recipe

KEYS = ("text", "method", "changes", "units", "k", "tokens", "batch", "way", "seed")  # that identify a trial
RUNS = (0, 1)  # halves of the documents; these are also the seeds, unless a trial has a seed to start from
LENGTHS = (64, 128, 256)


def make_recipe(trial: Mapping[str, Any], width: int) -> Recipe:
    """Return the recipe that a trial trains."""
    task = Task(width, trial["units"], trial["k"], trial["tokens"], trial["batch"])
    return alter(recipe(trial["method"], task), from_json(trial["changes"]))


BLOCK = 8192  # rows that are written at once
CUT = re.compile(r"(?P<text>.+), first (?P<rows>[\d,]+) rows")


def cut(text: Path) -> Path:
    """Return the folder of a text's activations; if its name says so, they are cut from those of another."""
    found = CUT.fullmatch(text.name)
    if found and not text.exists():
        whole, rows = Shards(text.with_name(found["text"])), int(found["rows"].replace(",", ""))
        parts = zip(
            whole.read(0, rows).split(BLOCK), read_documents(whole)[:rows].int().split(BLOCK), strict=True
        )
        blocks = ({TENSOR: x, DOCUMENTS: documents} for x, documents in parts)
        write_shards(text, blocks, dtype=cast(DType, whole.dtype))
    return text


@lru_cache(maxsize=2)
def split(text: Path) -> list[Shards]:
    """Return the halves of a text's activations, written once next to it; no document is in both."""
    parts = split_documents(Shards(cut(text)), [1.0] * len(RUNS))
    return [write_parts(text.with_name(f"{text.name}-part{run}"), [parts[run]], [1.0]) for run in RUNS]


def open_held_out(data: Path, text: str) -> Shards:
    """Return the activations that neither half of a text contains."""
    return Shards(data / f"{text.split(',')[0]}-held-out")


def is_sorted(made: Recipe, way: Way) -> bool:
    """Return whether training itself leaves the units in their final order."""
    return way.scored is not None if isinstance(way, Consensus) else way is None and made.resort is not None


def run_trial(trial: Mapping[str, Any], data: Path) -> Record:
    """Run a trial and return its record."""
    halves = split(data / trial["text"])
    made, way = make_recipe(trial, halves[0].width), from_json(trial.get("way"))
    trainer, saes = Trainer(data / "saes"), []
    for run, rows in zip(RUNS, halves, strict=True):
        sae = train_one(way, trainer, made, halves, run, trial.get("seed", 0) + run)
        saes.append(sae if is_sorted(made, way) else sort_units(sae, rows))
    held_out = open_held_out(data, trial["text"])
    found = measure_pair(saes, held_out, [n for n in LENGTHS if n < trial["units"]])
    return {
        **trial,
        "rows": halves[0].rows,
        "recipe": to_json(made),
        "cpu_seconds": round(trainer.seconds / len(RUNS), 2),
        "measures": round_measures(found),
    }


def main() -> None:
    """Run the trials of a plan that are not yet in the file."""
    parser = make_parser(__doc__, PLANS)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    run_missing(options.file, PLANS[options.plan](), lambda trial: run_trial(trial, options.data), KEYS)


if __name__ == "__main__":
    main()
