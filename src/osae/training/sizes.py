"""The sizes of a training run, from which its requirements are forecast before it starts."""

from collections.abc import Sequence
from typing import assert_never

import torch

from osae.data.shards import Shards
from osae.data.source import MIXED_NUMBERS, Live, OnDisk, SourceSpec
from osae.data.worlds import ForestWorld, PCAWorld, SparseWorld
from osae.dictionary import COMPARED, Separated
from osae.forecast import Training, count_context_bytes
from osae.kernels import DENSE_SHARE, batch
from osae.recipes import FromConsensus, FromData, FromModes, Recipe
from osae.revival import Resample, Split
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK
from osae.speed import time_product
from osae.training.member import REVIVAL_NUMBERS, REVIVAL_ROWS

CANDIDATES = 4  # arrays of BatchTopK's candidates per array of a code
PROBE = 2**29  # multiplications for measuring the speed of this machine: some hundredths of a second
STEP_SECONDS = 0.001  # of a step of a tiny SAE
PRODUCTS, DENSE_PRODUCTS = 3.0, 18.0  # of the encoder, that take as long as a step with sparse or dense codes


def measure_training(
    recipes: Sequence[Recipe], seeds: Sequence[int], source: SourceSpec, snapshots: int = 0
) -> Training:
    """Return the sizes of a run that trains every recipe with every seed."""
    first = recipes[0]
    rows, blocks = _measure_source(source, first.sae.width, len(seeds))
    return Training(
        width=first.sae.width,
        units=max(recipe.sae.units for recipe in recipes),
        entries=max(map(_count_entries, recipes)),
        dense=any(_count_entries(recipe) > DENSE_SHARE * recipe.sae.units for recipe in recipes),
        batch=first.batch,
        members=len(recipes) * len(seeds),
        block=rows,
        blocks=blocks,
        start_rows=max(_count_start_rows(recipe, rows) for recipe in recipes),
        mode_units=max(map(_count_modes, recipes)),
        consensus_units=max(_count_short_runs(recipe) * _count_short_units(recipe) for recipe in recipes),
        short_units=max(map(_count_short_units, recipes)),
        short_steps=max(map(_count_short_steps, recipes)),
        revival_rows=max(_count_revival_rows(recipe, rows) for recipe in recipes),
        compared=max(_count_compared(recipe) for recipe in recipes),
        sorted_k=max(_find_sorted_k(recipe) for recipe in recipes),
        world_units=source.units if isinstance(source, SparseWorld) else 0,
        snapshots=snapshots + 1,
        contexts=_measure_contexts(source),
    )


def forecast_seconds(size: Training, steps: int) -> float:
    """Return an estimate of how long these steps and all short runs take, from the time of one product."""
    rows = max(1, min(size.batch, PROBE // (size.units * size.width)))
    product = time_product(rows, size.units, size.width, torch.get_num_threads()) / rows * size.batch
    products = DENSE_PRODUCTS if size.dense else PRODUCTS
    products += size.compared / size.batch  # cosines of all pairs of atoms
    return (STEP_SECONDS + products * product) * size.members * (steps + size.short_steps)


def _count_entries(recipe: Recipe) -> int:
    """Return the maximum number of entries of a code in training.

    All units if every pre-activation is needed.
    """
    sparsifier, units = recipe.sae.sparsifier, recipe.sae.units
    match sparsifier:
        case TopK(k):
            return _warmed_up(recipe, k)
        case BatchTopK(k):  # candidates of a row are sorted and counted on the way
            return min(units, CANDIDATES * batch.ROOM * _warmed_up(recipe, k))
        case ReLU() | JumpReLU() | Linear():
            return units
        case _:
            assert_never(sparsifier)


def _count_compared(recipe: Recipe) -> int:
    """Return the number of atoms whose pairwise cosines a penalty needs at once."""
    return min(recipe.sae.units, COMPARED) if isinstance(recipe.dictionary, Separated) else 0


def _warmed_up(recipe: Recipe, k: int) -> int:
    """Return the k at the start of the warm-up."""
    warmup = recipe.k_warmup
    return max(k, (warmup.start or recipe.sae.units) if warmup and warmup.share > 0 else 0)


def _find_sorted_k(recipe: Recipe) -> int:
    """Return how many units are active when units are sorted at the end; 0 if they are not sorted."""
    return getattr(recipe.sae.sparsifier, "k", recipe.sae.units) if recipe.resort else 0


def _measure_source(source: SourceSpec, width: int, seeds: int) -> tuple[int, int]:
    """Return the number of rows in a block of the data, and the number of blocks in memory."""
    match source:
        case OnDisk(path):
            rows, most = Shards(path).rows, max(1, MIXED_NUMBERS // width)
            count = -(-rows // most)
            return -(-rows // count), 1 if count == 1 else 2 * seeds
        case Live(harvest):
            return min(harvest.block, harvest.tokens), 2
        case SparseWorld() | PCAWorld() | ForestWorld():
            return source.samples, 1
        case _:
            assert_never(source)


def _measure_contexts(source: SourceSpec) -> int:
    """Return the bytes of the contexts that the run keeps, so that it can be resumed without its text."""
    if not isinstance(source, Live):
        return 0
    return count_context_bytes(source.harvest.tokens, source.harvest.context, source.harvest.skip)


def _count_start_rows(recipe: Recipe, rows: int) -> int:
    return (
        min(recipe.start.samples, max(1, rows // 2)) if isinstance(recipe.start, FromData | FromModes) else 0
    )


def _count_modes(recipe: Recipe) -> int:
    return recipe.sae.units * len(recipe.start.shares) if isinstance(recipe.start, FromModes) else 0


def _count_short_runs(recipe: Recipe) -> int:
    return recipe.start.runs if isinstance(recipe.start, FromConsensus) else 0


def _count_short_units(recipe: Recipe) -> int:
    """Return the number of units of one short run."""
    start = recipe.start
    return round(start.wider * recipe.sae.units) if isinstance(start, FromConsensus) else 0


def _count_short_steps(recipe: Recipe) -> int:
    """Return the number of steps of all short runs together, each counted as often as it has more units."""
    start = recipe.start
    if not isinstance(start, FromConsensus):
        return 0
    return round(start.wider * start.runs * (start.samples // recipe.batch))


def _count_revival_rows(recipe: Recipe, rows: int) -> int:
    searches = isinstance(recipe.revival, Split | Resample)
    return min(REVIVAL_ROWS, REVIVAL_NUMBERS // recipe.sae.units, rows) if searches else 0
