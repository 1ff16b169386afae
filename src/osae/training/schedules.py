"""The schedules of a recipe over the whole of training, including extensions.

Every segment of training, the original one and each extension, runs through the recipe's learning rate,
sorting and revival from start to end. In an extension, k keeps its target, and no unit is frozen; units with
a fixed position keep it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from osae.recipes import Recipe
from osae.revival import Resample, Split
from osae.schedule import (
    active_units,
    frozen_units,
    in_turn,
    learning_rate,
    placed_units,
    space_evenly,
)
from osae.sparsify import find_k


@dataclass(frozen=True)
class Schedules:
    """Functions of the step, and the step counts after which units are sorted or revived."""

    rate: Callable[[int], float]
    k: Callable[[int], int]
    frozen: Callable[[int], int]
    placed: Callable[[int], int]
    resorts: tuple[int, ...]
    last_resorts: tuple[int, ...]  # those that end a segment
    revivals: tuple[int, ...]


def make_schedules(recipe: Recipe) -> Schedules:
    """Return the schedules of a recipe."""
    lengths = recipe.segments
    parts = [_plan_segment(recipe, lengths[0])]
    placed, further = parts[0].placed(lengths[0] - 1), replace(recipe, k_warmup=None, sweep=None)
    parts += [replace(_plan_segment(further, n), placed=lambda step: placed) for n in lengths[1:]]
    starts = [0, *accumulate(lengths)]

    def shift(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(starts[n] + count for n, part in enumerate(counts) for count in part)

    return Schedules(
        in_turn([part.rate for part in parts], lengths),
        in_turn([part.k for part in parts], lengths),
        in_turn([part.frozen for part in parts], lengths),
        in_turn([part.placed for part in parts], lengths),
        shift([part.resorts for part in parts]),
        shift([part.last_resorts for part in parts]),
        shift([part.revivals for part in parts]),
    )


def find_settled_step(recipe: Recipe, done: int) -> int:
    """Return the step of the current segment after which the warm-ups of the rate and of k are complete."""
    starts = [0, *accumulate(recipe.segments)]
    part = max(n for n, start in enumerate(starts[:-1]) if start <= done)
    warmup = recipe.k_warmup.share if recipe.k_warmup and part == 0 else 0.0
    return starts[part] + round(max(recipe.lr.warmup, warmup) * recipe.segments[part])


def _plan_segment(recipe: Recipe, steps: int) -> Schedules:
    units, resort, revival = recipe.sae.units, recipe.resort, recipe.revival
    k = find_k(recipe.sae.sparsifier)  # a sparsifier without k has nothing to warm up
    resorts = space_evenly(resort.times, resort.until, steps) if resort else ()
    revived = isinstance(revival, Resample | Split)
    return Schedules(
        learning_rate(recipe.lr, steps),
        active_units(recipe.k_warmup if k else None, k or units, units, steps),
        frozen_units(recipe.sweep, units, steps),
        placed_units(recipe.sweep, units, steps),
        resorts,
        resorts[-1:],
        space_evenly(revival.times, revival.until, steps, revival.since) if revived else (),
    )
