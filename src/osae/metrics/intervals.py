"""Confidence intervals over runs: the bootstrap draws seeds, not pairs.

Shapes: S runs (seeds) of one method; A, B runs of two methods.

Two pairs that share a run are not independent, so drawing pairs would give intervals that are far too
narrow: 45 pairs of 10 runs are 10 observations. Here the runs are drawn with replacement, and a drawn set is
scored by the mean over its pairs; pairs of a run with its own copy are left out.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor


class Interval(NamedTuple):
    """Mean and standard deviation (n-1) of the values, and the ends of the interval of the mean."""

    mean: float
    std: float
    low: float
    high: float


def mean_interval(
    values: Sequence[float] | Float[Tensor, "S"], *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """The interval of a mean of one value per run."""
    numbers = _finite(_array(values))
    if numbers.ndim != 1:
        raise ValueError(f"values of shape {numbers.shape}: give one value per run.")
    counts = _resample(len(numbers), draws, seed)
    return _interval(numbers, counts @ numbers / len(numbers), level)


def pair_interval(
    pairs: Mapping[tuple[int, int], float] | Float[Tensor, "S S"],
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The interval of a mean over pairs of runs of one method.

    `pairs` maps (seed, other seed) to a value, one entry per unordered pair, some may be missing; or it is
    a matrix, of which the part above the diagonal is read. Draws without any pair are left out. Two runs have
    one pair: its interval has no width, and says nothing.
    """
    matrix = _pair_matrix(pairs)
    present = ~np.isnan(matrix)
    counts = _resample(len(matrix), draws, seed)
    means = _weighted(counts, counts, matrix, present)
    return _interval(_finite(matrix[present]), means, level)


def cross_interval(
    values: Float[Tensor, "A B"], *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """The interval of a mean over all pairs of a run of A with a run of B; both sides are drawn.

    NaN entries are pairs that were not compared.
    """
    matrix = _array(values)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(
            f"values of shape {matrix.shape}: give one row per run of A, one column per run of B."
        )
    present = ~np.isnan(matrix)
    left, right = _resample(matrix.shape[0], draws, seed), _resample(matrix.shape[1], draws, seed + 1)
    return _interval(_finite(matrix[present]), _weighted(left, right, matrix, present), level)


def _array(values: Sequence[float] | Tensor) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _pair_matrix(pairs: Mapping[tuple[int, int], float] | Tensor) -> np.ndarray:
    """The values above the diagonal, NaN elsewhere."""
    if isinstance(pairs, Tensor):
        if pairs.ndim != 2 or pairs.shape[0] != pairs.shape[1]:
            raise ValueError(f"pairs of shape {tuple(pairs.shape)}: give a square matrix, one row per run.")
        matrix = _array(pairs).copy()
        matrix[np.tril_indices(len(matrix))] = np.nan
        return matrix
    seeds = sorted({end for pair in pairs for end in pair})
    place = {end: i for i, end in enumerate(seeds)}
    matrix = np.full((len(seeds), len(seeds)), np.nan)
    for (one, other), value in pairs.items():
        i, j = sorted((place[one], place[other]))
        if i == j:
            raise ValueError(f"pair ({one}, {other}): a run paired with itself says nothing about agreement.")
        if not np.isnan(matrix[i, j]):
            raise ValueError(f"pair ({one}, {other}) is there twice: give each unordered pair once.")
        matrix[i, j] = value
    return matrix


def _resample(runs: int, draws: int, seed: int) -> np.ndarray:
    """How often each run is drawn, one row per bootstrap draw."""
    if draws < 1:
        raise ValueError(f"draws={draws}: give at least 1.")
    if runs < 1:
        raise ValueError("no runs: an interval needs at least one value.")
    shares = np.full(runs, 1 / runs)
    return np.random.default_rng(seed).multinomial(runs, shares, size=draws).astype(np.float64)


def _weighted(left: np.ndarray, right: np.ndarray, matrix: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The mean of the present entries in each draw, an entry counted as often as both its runs occur."""
    total = np.einsum("ni,ij,nj->n", left, np.where(present, matrix, 0.0), right, optimize=True)
    count = np.einsum("ni,ij,nj->n", left, present.astype(np.float64), right, optimize=True)
    return total[count > 0] / count[count > 0]


def _finite(values: np.ndarray) -> np.ndarray:
    if values.size == 0:
        raise ValueError("no values: an interval needs at least one.")
    if not np.isfinite(values).all():
        raise ValueError("values hold NaN or infinite entries: leave those runs out, and say so.")
    return values


def _interval(values: np.ndarray, means: np.ndarray, level: float) -> Interval:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: give a share between 0 and 1, such as 0.95.")
    mean = float(values.mean())
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if len(means) == 0:
        return Interval(mean, std, mean, mean)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, std, float(low), float(high))
