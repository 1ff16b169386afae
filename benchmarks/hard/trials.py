"""Run trials on development worlds and append them to a file: recipe, numbers and cost of each.

    python -m benchmarks.hard.trials rates evidence/hard/trials.jsonl

A trial trains two SAEs that share nothing but the recipe (another seed, another part of the world) and
measures what they have found of the truth and of each other. Trials that the file has are not repeated.
"""

import argparse
import json
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.hard.plans import PLANS
from osae.config import alter, to_json
from osae.data.worlds import ForestWorld
from osae.experiments.worlds.hard_measures import measure_pair
from osae.model import SAE
from osae.recipes import Recipe, Task, recipe
from osae.training.simple import fit

TEST_ROWS = 20_000
IDENTITY = ("method", "changes", "world", "epochs", "batch")  # what tells a trial from another
RUNS = (0, 1)  # seeds, and parts of the world


@dataclass(frozen=True)
class Trial:
    """A recipe with changes, on a world, for a number of passes over its samples."""

    world: ForestWorld
    method: str
    changes: dict[str, Any]
    epochs: int
    batch: int

    def make_recipe(self) -> Recipe:
        """Return the recipe that the trial trains."""
        world = self.world
        task = Task(world.width, world.units, round(world.active), self.epochs * world.samples, self.batch)
        return alter(recipe(self.method, task), self.changes)


@lru_cache(maxsize=2)
def _draw(world: ForestWorld) -> torch.Tensor:
    return world.draw("train").x


def run_trial(trial: Trial) -> dict[str, Any]:
    """Return what the file keeps of a trial."""
    made = trial.make_recipe()
    saes: list[SAE] = []
    seconds = 0.0
    for run in RUNS:
        x = _draw(replace(trial.world, part=run))
        started = time.process_time()
        saes.append(fit(made, x, seed=run, progress=False))
        seconds += (time.process_time() - started) / len(RUNS)
    return {
        "method": trial.method,
        "changes": to_json(trial.changes),
        "world": to_json(trial.world),
        "epochs": trial.epochs,
        "batch": trial.batch,
        "recipe": to_json(made),
        "cpu_seconds": round(seconds, 2),
        "measures": {
            key: round(value, 5) for key, value in measure_pair(saes, trial.world, TEST_ROWS).items()
        },
    }


def main() -> None:
    """Run the trials of a plan that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", choices=sorted(PLANS))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = options.file.read_text().splitlines() if options.file.exists() else []
    done = {_identify(json.loads(line)) for line in known}
    for planned in PLANS[options.plan]():
        trial = Trial(*planned)
        asked = {key: getattr(trial, key) for key in IDENTITY}
        if _identify(json.loads(json.dumps(to_json(asked)))) in done:
            continue
        record = run_trial(trial)
        with options.file.open("a") as out:
            out.write(json.dumps(record) + "\n")
        print(trial.method, trial.changes, record["measures"], record["cpu_seconds"], flush=True)


def _identify(record: dict[str, Any]) -> str:
    return json.dumps([record[key] for key in IDENTITY], sort_keys=True)


if __name__ == "__main__":
    main()
