"""Hyperparameters of the experiments on worlds: every method has the same number of trials, all recorded.

`osae reproduce tuning` recreates the record: each trial trains one seed that no table uses, and is scored
by its validation error at the target sparsity. The tables use the best trial of each method.
"""

import itertools
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from osae.config import alter, from_json
from osae.experiments.methods import OSAE_PAPER, VANILLA
from osae.recipes import Recipe, Task, world_recipe
from osae.revival import Split

RATES = (3e-3, 1e-2)
SHARES = (0.35, 0.5)


def list_trials(name: str) -> list[dict[str, Any]]:
    """Return the trials of a method, as changes to its recipe; every method has the same number."""
    if name == VANILLA:
        return _product({"lr.peak": RATES, "sae.sparsifier.l1": (0.1, 0.2, 0.4, 0.8)})
    if name == OSAE_PAPER:
        return _product({"lr.peak": RATES, "k_warmup.share": SHARES, "sweep.burn_in": (0.5, 0.7)})
    return _product({"lr.peak": RATES, "k_warmup.share": SHARES, "revival": (None, Split(20))})


def _product(axes: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def tuned_recipe(name: str, task: Task) -> Recipe:
    """Return the named recipe with the changes of its best trial."""
    return alter(world_recipe(name, task), from_json(read_record()["chosen"].get(name, {})))


@cache
def read_record() -> dict[str, Any]:
    """Return the trials that come with this release."""
    return json.loads(files("osae.experiments").joinpath("tuned.json").read_text())
