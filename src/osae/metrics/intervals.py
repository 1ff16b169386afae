"""Means over training runs with their 95 % intervals, from arrays; see `statistics` for the method.

Shapes: S runs (seeds) of one method; A, B runs on two sides that are compared with each other.

The standard deviation is that of the values (n-1). A single value has no standard deviation and no interval,
and neither does a single pair of runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from osae.arrays import Array, as_tensor
from osae.metrics import statistics
from osae.results.base import Interval


def mean_interval(values: Sequence[float] | Float[Array, "S"]) -> Interval:
    """Return the mean of one value per run, with its interval."""
    numbers = _array(values)
    if numbers.ndim != 1:
        raise ValueError(f"values of shape {numbers.shape}: give one value per run.")
    return _bare(statistics.runs_interval(dict(enumerate(numbers.tolist()))))


def pair_interval(pairs: Mapping[tuple[int, int], float] | Float[Array, "S S"]) -> Interval:
    """Return the mean over pairs of runs of one method, with its interval.

    `pairs` maps (seed, other seed) to a value, with one entry per unordered pair (some may be missing); or it
    is a matrix, of which only the part above the diagonal is read.
    """
    if not isinstance(pairs, Mapping):
        matrix = _array(pairs)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"pairs of shape {matrix.shape}: give a square matrix, one row per run.")
        pairs = {pair: value for pair, value in _known(matrix).items() if pair[0] < pair[1]}
    return _bare(statistics.pairs_interval(pairs))


def cross_interval(values: Float[Array, "A B"]) -> Interval:
    """Return the mean over all pairs of a run of A with a run of B, with its interval.

    NaN entries are pairs that were not compared.
    """
    matrix = _array(values)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(
            f"values of shape {matrix.shape}: give one row per run of A, one column per run of B."
        )
    return _bare(statistics.crossed_interval(_known(matrix)))


def _known(matrix: np.ndarray) -> dict[tuple[int, int], float]:
    """Return the entries that are not NaN."""
    return {(i, j): float(value) for (i, j), value in np.ndenumerate(matrix) if not np.isnan(value)}


def _array(values: Sequence[float] | Array) -> np.ndarray:
    return as_tensor(values, "the values").detach().cpu().double().numpy()


def _bare(interval: Interval) -> Interval:
    return replace(interval, over=None, values=None)
