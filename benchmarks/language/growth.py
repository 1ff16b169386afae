"""Measure how the agreement of consensuses grows with the number of short runs, before any further training:

    python -m benchmarks.language.growth evidence/language --data acts

For every trial in trials.jsonl that starts from a consensus, the consensus of its first 1, 2, 4, ... short
runs is compared with that of the other half of the documents, and a line is appended to growth.jsonl. The
short runs are those that the trial has kept in DATA/saes; what is missing is trained again.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.language.measures import measure_pair
from benchmarks.language.trials import RUNS, make_recipe, open_held_out, split
from benchmarks.language.ways import Consensus, Trainer, sort_scored, sort_units, train_short
from benchmarks.trials import Record, read_trials, round_measures, run_missing
from osae.config import from_json
from osae.training.consensus import find_consensus

FILE = "growth.jsonl"
KEYS = ("text", "units", "short_tokens", "short_rate", "wider", "runs", "seed", "scored")
LENGTHS = (64, 256)


def plan(trials: list[Record]) -> Iterator[dict[str, Any]]:
    """Yield what to measure: every number of runs up to that of the trial, by doubling."""
    for trial in trials:
        way = from_json(trial.get("way"))
        if isinstance(way, Consensus):
            runs = [2**n for n in range(way.runs.bit_length())]
            about = {
                key: trial[key] for key in ("text", "units", "k", "method", "changes", "tokens", "batch")
            }
            short = {"short_tokens": way.tokens, "short_rate": way.short_rate}
            short |= {"wider": way.wider} if way.wider > 1 else {}
            short |= {"scored": way.scored} if way.scored else {}
            for count in runs:
                yield about | short | {"way": trial["way"], "runs": count, "seed": trial.get("seed", 0)}


def measure(trial: Mapping[str, Any], data: Path) -> Record:
    """Return the agreement of the consensuses of this many runs on either half of the documents."""
    halves = split(data / trial["text"])
    trainer, way, saes, scores = Trainer(data / "saes"), from_json(trial["way"]), [], []
    made = make_recipe(trial, halves[0].width)
    for run, rows in zip(RUNS, halves, strict=True):
        few = replace(way, runs=trial["runs"])
        shorts = train_short(few, trainer, made, rows, trial["seed"] + run)
        found = find_consensus(shorts, way.same, trial["units"])
        saes.append(sort_scored(found, rows, way.order()).sae if way.scored else sort_units(found.sae, rows))
        scores.append(found.scores)
    lengths = [n for n in LENGTHS if n < trial["units"]]
    found = measure_pair(saes, open_held_out(data, trial["text"]), lengths)
    half = float((torch.cat(scores) >= 0.5).double().mean())
    return {key: trial[key] for key in KEYS if key in trial} | {
        "cpu_seconds": round(trainer.seconds / len(RUNS), 2),
        "measures": round_measures(found | {"found_by_half": half}),
    }


def main() -> None:
    """Measure what is not yet in the file."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    planned = plan(read_trials(asked.evidence / "trials.jsonl"))
    run_missing(asked.evidence / FILE, planned, lambda trial: measure(trial, asked.data), KEYS)


if __name__ == "__main__":
    main()
