"""The trials behind the hyperparameters of the tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from osae import metrics
from osae.config import alter, to_json
from osae.data.worlds import SparseWorld
from osae.experiments.jobs import Job, train_all
from osae.experiments.worlds.options import TuningOptions
from osae.experiments.worlds.training import LEAST_UNITS, world_task
from osae.experiments.worlds.trials import list_trials
from osae.files import atomic_write
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Task, world_recipe
from osae.results.base import Interval
from osae.results.experiment import ExperimentResult, MethodRow

SEED = 1000  # no table uses it
SAMPLES_PER_UNIT = 30_000  # somewhat more than the training runs of the tables see
VALIDATION_ROWS = 20_000
L0_TOLERANCE = 1.1  # a code is at the target sparsity up to this times the world's active atoms


@dataclass(frozen=True)
class Trial:
    """A method's recipe with some changes, and its outcome."""

    method: str
    changes: dict[str, Any]
    mse: float
    l0: float
    seconds: float


def run(options: TuningOptions, progress: Progress) -> ExperimentResult:
    """Return every trial with its validation error; the best of each method is written to tuned.json."""
    world = options.world()
    task = world_task(world, quick=options.quick)
    if not options.quick:
        task = replace(task, samples=SAMPLES_PER_UNIT * max(world.units, LEAST_UNITS))
    trials = _run_trials(world, task, options, progress)
    most = L0_TOLERANCE * world.active
    chosen = {name: _choose([t for t in trials if t.method == name], most) for name in options.methods}
    trials.sort(key=lambda trial: (trial.method, trial.mse))
    record = {
        "schema": 1,
        "world": to_json(world),
        "samples": task.samples,
        "seed": SEED,
        "trials": [asdict(trial) for trial in trials],
        "chosen": chosen,
    }
    with atomic_write(options.out / "tuned.json") as path:
        path.write_text(json.dumps(record, indent=1) + "\n")
    return ExperimentResult(
        experiment="tuning",
        title="Tuning: every trial of every method",
        world=to_json(world),
        seeds=(SEED,),
        columns=("mse", "l0", "seconds"),
        rows=tuple(map(_trial_row, trials)),
        notes=tuple(f"{name}: {changes}" for name, changes in chosen.items()),
    )


def _run_trials(world: SparseWorld, task: Task, options: TuningOptions, progress: Progress) -> list[Trial]:
    """Train every trial; return them in the order in which they finish."""
    validation = world.draw("validation", VALIDATION_ROWS).x
    jobs, about = [], {}
    for name in options.methods:
        for number, changes in enumerate(list_trials(name)):
            trial = replace(alter(world_recipe(name, task), changes), name=f"{name}-trial{number}")
            jobs.append(Job(trial, SEED, world))
            about[trial.name] = (name, to_json(changes))
    trials = []
    progress(0, len(jobs), "trials")
    for count, done in enumerate(train_all(jobs, options.out / "saes", place=options.place), start=1):
        (method, changes), (mse, l0) = about[done.job.recipe.name], _score(done.sae, validation)
        trials.append(Trial(method, changes, mse, l0, done.seconds))
        progress(count, len(jobs), f"{done.job.recipe.name}: validation error {mse:.3g}")
    return trials


@torch.no_grad()
def _score(sae: SAE, x: torch.Tensor) -> tuple[float, float]:
    """Return the error and the number of active units."""
    reconstruction, code = sae(x)
    return metrics.mse(x, reconstruction), metrics.l0(code.values)


def _choose(trials: Sequence[Trial], most: float) -> dict[str, Any]:
    """Return the changes of the trial with the least error among those with at most `most` active units.

    If all trials have more, return the changes of the sparsest.
    """
    sparse = [trial for trial in trials if trial.l0 <= most]
    if not sparse:
        return min(trials, key=lambda trial: trial.l0).changes
    return min(sparse, key=lambda trial: trial.mse).changes


def _trial_row(trial: Trial) -> MethodRow:
    measures = {"seconds": trial.seconds, "mse": Interval(trial.mse), "l0": Interval(trial.l0)}
    return MethodRow(f"{trial.method} {trial.changes}", measures=measures)
