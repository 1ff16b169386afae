"""The trials behind the tables' hyperparameters, made anew."""

import json
from dataclasses import replace
from typing import Any

import torch

from osae import metrics
from osae.config import alter, to_json
from osae.data.worlds import SparseWorld
from osae.experiments.toy import LEAST_UNITS, Options, Progress, chance
from osae.experiments.trained import Job, train_all
from osae.experiments.tuned import grid
from osae.files import atomic_write
from osae.model import SAE
from osae.recipes import world_recipe

SEED = 1000  # no table uses it
SAMPLES_PER_UNIT = 30_000  # somewhat longer than the trainings of the tables
L0_TOLERANCE = 1.1  # a code is at the target sparsity up to this times the world's active atoms


def tuning(options: Options, progress: Progress) -> dict[str, Any]:
    """Every trial with its validation error, and the best of each method, also written to tuned.json."""
    world = replace(SparseWorld(), **options.world)
    validation = world.draw("validation", 20_000).x
    task = replace(options.task(world), samples=SAMPLES_PER_UNIT * max(world.units, LEAST_UNITS))
    if options.quick:
        task = options.task(world)
    jobs, changes = [], {}
    for name in options.method_list():
        for number, change in enumerate(grid(name)):
            trial = alter(world_recipe(name, task), change)
            trial = replace(trial, name=f"{name}-trial{number}")
            jobs.append(Job(trial, SEED, world))
            changes[trial.name] = (name, change)
    trials = []
    progress(0, len(jobs), "trials")
    for count, done in enumerate(train_all(jobs, options.out / "saes", workers=options.jobs), start=1):
        name, change = changes[done.job.recipe.name]
        score = _score(done.sae, validation)
        trials.append({"method": name, "changes": to_json(change), **score, "seconds": done.seconds})
        progress(count, len(jobs), f"{done.job.recipe.name}: validation error {score['mse']:.3g}")
    chosen = {name: _best(trials, name, L0_TOLERANCE * world.active) for name in options.method_list()}
    trials.sort(key=lambda trial: (trial["method"], trial["mse"]))
    about = {
        "schema": 1,
        "world": to_json(world),
        "samples": task.samples,
        "seed": SEED,
        "trials": trials,
        "chosen": chosen,
    }
    with atomic_write(options.out / "tuned.json") as path:
        path.write_text(json.dumps(about, indent=1) + "\n")
    rows = [
        {"method": f"{t['method']} {t['changes']}", "paper": None, "seconds": t["seconds"]} for t in trials
    ]
    for row, trial in zip(rows, trials, strict=True):
        row |= {key: {"mean": trial[key]} for key in ("mse", "l0")}
    return {
        "title": "Tuning: every trial of every method",
        "world": to_json(world),
        "seeds": [SEED],
        "chance": chance(world),
        "columns": ["mse", "l0", "seconds"],
        "rows": rows,
        "notes": [f"{name}: {change}" for name, change in chosen.items()],
    }


@torch.no_grad()
def _score(sae: SAE, x: torch.Tensor) -> dict[str, float]:
    rebuilt, code = sae(x)
    return {"mse": metrics.mse(x, rebuilt), "l0": metrics.l0(code.values)}


def _best(trials: list[dict[str, Any]], name: str, most: float) -> dict[str, Any]:
    """The changes of the trial with the least error among those sparse enough (or the sparsest of all)."""
    mine = [trial for trial in trials if trial["method"] == name]
    sparse = [trial for trial in mine if trial["l0"] <= most]
    best = min(sparse, key=lambda t: t["mse"]) if sparse else min(mine, key=lambda t: t["l0"])
    return best["changes"]
