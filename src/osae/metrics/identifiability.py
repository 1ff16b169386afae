"""Can sparse codes in a dictionary be unique? Coherence, spark and restricted isometry.

Shapes: K units, d width. Atoms are scaled to length one.

With coherence mu = max |d_i . d_j| over i != j, every set of fewer than 1 + 1/mu atoms is independent, so an
m-sparse code is unique whenever 2m < 1 + 1/mu, that is

    mu < 1 / (2m - 1) .

The paper states the condition as mu (m-1) < 1. This only implies that any m atoms are independent; two
different m-sparse codes of the same point need 2m dependent atoms, hence the usual condition above.

The condition is sufficient, but far from necessary: codes of m units are unique if and only if the spark is
above 2m. A restricted isometry constant of order 2m below 1 is sufficient as well. Atoms in general position
have a spark of rank + 1.
"""

import itertools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.matching import check_dictionary, unit_rows

_BLOCK = 2048  # rows of the Gram matrix held at once
_SETS = 128  # sets of atoms held at once


def coherence(dictionary: Float[Array, "K d"]) -> float:
    """Return the largest |cosine| of two different atoms; 0 for a single atom."""
    rows = _checked_rows(dictionary)
    largest = 0.0
    for start in range(0, len(rows), _BLOCK):
        cosines = (rows[start : start + _BLOCK] @ rows.T).abs()
        cosines.diagonal(start).zero_()
        largest = max(largest, float(cosines.max()))
    return min(largest, 1.0)


def unique_sparsity(dictionary: Float[Array, "K d"]) -> int:
    """Return the largest m, at most K, with coherence < 1/(2m-1): codes of up to m units are unique."""
    mu = coherence(dictionary)
    if mu == 0.0:
        return len(dictionary)
    return min(len(dictionary), math.ceil((1 + 1 / mu) / 2) - 1)


def spark_bound(dictionary: Float[Array, "K d"]) -> float:
    """Return a lower bound on the spark, the size of the smallest dependent set of atoms.

    The bound is 1 + 1/coherence, and at most K + 1.
    """
    mu = coherence(dictionary)
    return min(1 + 1 / mu, len(dictionary) + 1.0) if mu > 0 else len(dictionary) + 1.0


def restricted_isometry(
    dictionary: Float[Array, "K d"], m: int, *, samples: int = 1000, seed: int = 0
) -> float:
    """Return the restricted isometry constant of order m, or a lower bound on it from random sets of m atoms.

    The constant is the smallest c with (1-c)|z|^2 <= |sum z_j d_j|^2 <= (1+c)|z|^2 for all m-sparse z. Its
    exact value requires every set of m atoms, and is returned if there are at most `samples` of them.
    Otherwise, the largest value over `samples` random sets is a lower bound.
    """
    rows = _checked_rows(dictionary)
    if not 1 <= m <= len(rows):
        raise ValueError(f"m={m}: give 1 to {len(rows)}, the number of units.")
    if samples < 1:
        raise ValueError(f"samples={samples}: give at least 1.")
    worst = 0.0
    for sets in _sets_of_atoms(len(rows), m, samples, seed).split(_SETS):
        stretch = torch.linalg.eigvalsh(rows[sets] @ rows[sets].mT)
        worst = max(worst, float((stretch - 1).abs().max()))
    return worst


def _sets_of_atoms(units: int, m: int, samples: int, seed: int) -> Int[Tensor, "sets m"]:
    """Return every set of m units if there are at most `samples`, or else `samples` random sets."""
    if math.comb(units, m) <= samples:
        return torch.tensor(list(itertools.combinations(range(units), m)))
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(units, generator=generator)[:m] for _ in range(samples)])


class Identifiability(NamedTuple):
    """What is known about the uniqueness of m-sparse codes in a dictionary.

    `coherence` below `coherence_limit` = 1/(2m-1) is sufficient; `spark_bound` is the bound on the spark that
    follows from it, `general_spark` is the spark of atoms in general position, and a spark above
    `spark_limit` = 2m (at most K: a spark of K + 1 means that all atoms are independent) is necessary and
    sufficient. `isometry` and `isometry_double` are `restricted_isometry` of order m and 2m (at most K).
    """

    active: int
    coherence: float
    coherence_limit: float
    spark_bound: float
    general_spark: int
    spark_limit: int
    isometry: float
    isometry_double: float


def identifiability(
    dictionary: Float[Array, "K d"], m: int, *, samples: int = 2000, seed: int = 0
) -> Identifiability:
    """Return how coherent the atoms are, next to what the uniqueness of m-sparse codes requires."""
    double = min(2 * m, len(dictionary))
    return Identifiability(
        active=m,
        coherence=coherence(dictionary),
        coherence_limit=1 / (2 * m - 1),
        spark_bound=spark_bound(dictionary),
        general_spark=int(torch.linalg.matrix_rank(_checked_rows(dictionary))) + 1,
        spark_limit=double,
        isometry=restricted_isometry(dictionary, m, samples=samples, seed=seed),
        isometry_double=restricted_isometry(dictionary, double, samples=samples, seed=seed),
    )


def _checked_rows(dictionary: Array) -> Float[Tensor, "K d"]:
    """Return the atoms, scaled to length one."""
    atoms = as_tensor(dictionary, "dictionary")
    check_dictionary(atoms)
    return unit_rows(atoms)
