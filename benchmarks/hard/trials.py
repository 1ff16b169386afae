"""Run trials on development worlds and append them to a file: recipe, numbers and cost of each.

    python -m benchmarks.hard.trials rates evidence/hard/trials.jsonl

A trial trains two SAEs that share nothing but the recipe (they have different seeds and different parts of
the world) and measures how much they find of the truth and of each other. Trials already in the file are
skipped.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from benchmarks.hard.plans import PLANS
from benchmarks.trials import Record, make_parser, round_measures, run_missing
from osae.config import alter, from_json, to_json
from osae.data.worlds import ForestWorld
from osae.experiments.worlds.hard_measures import measure_pair
from osae.model import SAE
from osae.recipes import Recipe, Task, recipe
from osae.training.simple import fit

TEST_ROWS = 20_000
PLANNED: tuple[str, ...] = ("world", "method", "changes", "epochs", "batch")  # the values that a plan yields
KEYS = ("method", "changes", "world", "epochs", "batch")  # the keys that identify a trial
RUNS = (0, 1)  # seeds, and parts of the world


def make_recipe(trial: Mapping[str, Any], world: ForestWorld) -> Recipe:
    """Return the recipe that a trial trains."""
    samples = trial["epochs"] * world.samples
    task = Task(world.width, world.units, round(world.active), samples, trial["batch"])
    return alter(recipe(trial["method"], task), from_json(trial["changes"]))


@lru_cache(maxsize=2)
def _draw(world: ForestWorld) -> torch.Tensor:
    return world.draw("train").x


def run_trial(trial: Mapping[str, Any]) -> Record:
    """Run a trial and return its record: a recipe with changes, on a world, for some epochs."""
    world = from_json(trial["world"])
    made = make_recipe(trial, world)
    saes: list[SAE] = []
    seconds = 0.0
    for run in RUNS:
        x = _draw(replace(world, part=run))
        started = time.process_time()
        saes.append(fit(made, x, seed=run, progress=False))
        seconds += (time.process_time() - started) / len(RUNS)
    return {
        **trial,
        "recipe": to_json(made),
        "cpu_seconds": round(seconds, 2),
        "measures": round_measures(measure_pair(saes, world, TEST_ROWS)),
    }


def main() -> None:
    """Run the trials of a plan that are not yet in the file."""
    options = make_parser(__doc__, PLANS).parse_args()
    planned = (dict(zip(PLANNED, each, strict=True)) for each in PLANS[options.plan]())
    run_missing(options.file, planned, run_trial, KEYS)


if __name__ == "__main__":
    main()
