"""Run trials on activations of a language model and append them to a file: recipe, numbers and cost of each.

    python -m benchmarks.language.trials batches evidence/language/trials.jsonl --data acts

A trial trains two SAEs with the same recipe, but with different seeds and different documents of a text.
`--data` is a folder with the activations of every text, TEXT and TEXT-held-out, as `osae harvest` writes
them. Trials already in the file are skipped. The cost is the time on one CPU core.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.language.measures import measure_pair
from benchmarks.language.plans import PLANS
from benchmarks.trials import Record, make_parser, round_measures, run_missing
from osae import passes
from osae.config import alter, from_json, to_json
from osae.data.documents import split_documents, write_parts
from osae.data.shards import Shards
from osae.model import SAE
from osae.recipes import Recipe, Task, recipe
from osae.training.simple import fit

KEYS = ("text", "method", "changes", "units", "k", "tokens", "batch")  # the keys that identify a trial
RUNS = (0, 1)  # seeds, and halves of the documents
LENGTHS = (64, 128, 256)
SORTED_ROWS = 50_000  # for sorting units if training does not sort them


def make_recipe(trial: Mapping[str, Any], width: int) -> Recipe:
    """Return the recipe that a trial trains."""
    task = Task(width, trial["units"], trial["k"], trial["tokens"], trial["batch"])
    return alter(recipe(trial["method"], task), from_json(trial["changes"]))


@lru_cache(maxsize=2)
def split(text: Path) -> list[Shards]:
    """Return the halves of a text's activations, written once next to it; no document is in both."""
    parts = split_documents(Shards(text), [1.0] * len(RUNS))
    return [write_parts(text.with_name(f"{text.name}-part{run}"), [parts[run]], [1.0]) for run in RUNS]


def run_trial(trial: Mapping[str, Any], data: Path) -> Record:
    """Run a trial and return its record."""
    halves = split(data / trial["text"])
    made = make_recipe(trial, halves[0].width)
    saes, seconds = [], 0.0
    for run, rows in zip(RUNS, halves, strict=True):
        started = time.process_time()
        sae = fit(made, rows, seed=run, progress=False)
        seconds += (time.process_time() - started) / len(RUNS)
        saes.append(sae if made.resort else sort_once(sae, rows))
    held_out = Shards(data / f"{trial['text']}-held-out")
    found = measure_pair(saes, held_out, [n for n in LENGTHS if n < trial["units"]])
    return {
        **trial,
        "rows": halves[0].rows,
        "recipe": to_json(made),
        "cpu_seconds": round(seconds, 2),
        "measures": round_measures(found),
    }


def sort_once(sae: SAE, rows: Shards) -> SAE:
    """Return the SAE with its units sorted by gain on its own rows."""
    return sae.reorder(passes.order_units(sae, rows.read(0, min(SORTED_ROWS, rows.rows)).split(passes.ROWS)))


def main() -> None:
    """Run the trials of a plan that are not yet in the file."""
    parser = make_parser(__doc__, PLANS)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    run_missing(options.file, PLANS[options.plan](), lambda trial: run_trial(trial, options.data), KEYS)


if __name__ == "__main__":
    main()
