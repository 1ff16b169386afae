"""Confidence intervals over runs: the bootstrap draws runs, not pairs.

Shapes: S runs (seeds) of one method; A, B runs of two methods.

Two pairs that share a run are not independent, so drawing pairs would give intervals that are far too
narrow: 45 pairs of 10 runs are 10 observations. Here the runs are drawn with replacement, and each draw is
scored by the mean over its pairs; pairs of a run with its own copy are left out.

The standard deviation is that of the values (n-1). A single value, or a single pair, has neither a standard
deviation nor an interval: these are None.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from osae.arrays import Array, as_tensor
from osae.results.base import Interval


def mean_interval(
    values: Sequence[float] | Float[Array, "S"], *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """Return the mean of one value per run, with its interval."""
    numbers = _check_finite(_array(values))
    if numbers.ndim != 1:
        raise ValueError(f"values of shape {numbers.shape}: give one value per run.")
    counts = _resample(len(numbers), draws, seed)
    return _interval(numbers, counts @ numbers / len(numbers), level)


def pair_interval(
    pairs: Mapping[tuple[int, int], float] | Float[Array, "S S"],
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the mean over pairs of runs of one method, with its interval.

    `pairs` maps (seed, other seed) to a value, with one entry per unordered pair, of which some may be
    missing; or it is a matrix, of which the part above the diagonal is read. Draws without any pair are left
    out.
    """
    matrix = _pair_matrix(pairs)
    present = ~np.isnan(matrix)
    counts = _resample(len(matrix), draws, seed)
    means = _mean_of_draws(counts, counts, matrix, present)
    return _interval(_check_finite(matrix[present]), means, level)


def cross_interval(
    values: Float[Array, "A B"], *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """Return the mean over all pairs of a run of A with a run of B, with its interval; both sides are drawn.

    NaN entries are pairs that were not compared.
    """
    matrix = _array(values)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(
            f"values of shape {matrix.shape}: give one row per run of A, one column per run of B."
        )
    present = ~np.isnan(matrix)
    left, right = _resample(matrix.shape[0], draws, seed), _resample(matrix.shape[1], draws, seed + 1)
    return _interval(_check_finite(matrix[present]), _mean_of_draws(left, right, matrix, present), level)


def _array(values: Sequence[float] | Array) -> np.ndarray:
    return as_tensor(values, "the values").detach().cpu().double().numpy()


def _pair_matrix(pairs: Mapping[tuple[int, int], float] | Array) -> np.ndarray:
    """Return the values above the diagonal, NaN elsewhere."""
    if not isinstance(pairs, Mapping):
        matrix = _array(pairs).copy()
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"pairs of shape {matrix.shape}: give a square matrix, one row per run.")
        matrix[np.tril_indices(len(matrix))] = np.nan
        return matrix
    seeds = sorted({end for pair in pairs for end in pair})
    place = {end: i for i, end in enumerate(seeds)}
    matrix = np.full((len(seeds), len(seeds)), np.nan)
    for (one, other), value in pairs.items():
        i, j = sorted((place[one], place[other]))
        if i == j:
            raise ValueError(f"pair ({one}, {other}): leave out pairs of a run with itself.")
        if not np.isnan(matrix[i, j]):
            raise ValueError(f"pair ({one}, {other}) is given twice: give each unordered pair once.")
        matrix[i, j] = value
    return matrix


def _resample(runs: int, draws: int, seed: int) -> np.ndarray:
    """Return how often each run is drawn, one row per bootstrap draw."""
    if draws < 1:
        raise ValueError(f"draws={draws}: give at least 1.")
    if runs < 1:
        raise ValueError("no runs: an interval needs at least one value.")
    shares = np.full(runs, 1 / runs)
    return np.random.default_rng(seed).multinomial(runs, shares, size=draws).astype(np.float64)


def _mean_of_draws(
    left: np.ndarray, right: np.ndarray, matrix: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Return the mean of the present entries in each draw, weighted by how often both runs occur."""
    total = np.einsum("ni,ij,nj->n", left, np.where(present, matrix, 0.0), right, optimize=True)
    count = np.einsum("ni,ij,nj->n", left, present.astype(np.float64), right, optimize=True)
    return total[count > 0] / count[count > 0]


def _check_finite(values: np.ndarray) -> np.ndarray:
    if values.size == 0:
        raise ValueError("no values: an interval needs at least one.")
    if not np.isfinite(values).all():
        raise ValueError("values hold NaN or infinite entries: leave those runs out.")
    return values


def _interval(values: np.ndarray, means: np.ndarray, level: float) -> Interval:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: give a share between 0 and 1, such as 0.95.")
    mean = float(values.mean())
    if len(values) == 1:
        return Interval(mean)
    std = float(values.std(ddof=1))
    if len(means) == 0:
        return Interval(mean, std)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, std, float(low), float(high))
