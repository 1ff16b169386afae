"""Hyperparameters of the toy experiments: every method gets the same number of trials, all on record.

`osae reproduce tuning` makes the record anew: each trial trains one seed, apart from the seeds of the
tables, and is scored by its validation error at the target sparsity. The best of each method's trials is what
the tables use.
"""

import itertools
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from osae.config import alter, from_json
from osae.recipes import Recipe, Task, world_recipe
from osae.revival import Split

RATES = (3e-3, 1e-2)
SHARES = (0.35, 0.5)


def grid(name: str) -> list[dict[str, Any]]:
    """The trials of a method: as many as any other method has, as changes to its recipe."""
    if name == "vanilla":
        return _product({"lr.peak": RATES, "sae.sparsifier.l1": (0.1, 0.2, 0.4, 0.8)})
    if name == "osae-paper":
        return _product({"lr.peak": RATES, "k_warmup.share": SHARES, "sweep.burn_in": (0.5, 0.7)})
    return _product({"lr.peak": RATES, "k_warmup.share": SHARES, "revival": (None, Split(20))})


def _product(axes: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def tuned(name: str, task: Task) -> Recipe:
    """The named recipe with the changes that won its trials."""
    return alter(world_recipe(name, task), from_json(record()["chosen"].get(name, {})))


@cache
def record() -> dict[str, Any]:
    """The trials that this release ships."""
    return json.loads(files("osae.experiments").joinpath("tuned.json").read_text())
