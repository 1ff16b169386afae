"""The chance level: the score of two unrelated dictionaries of the same shape.

The matched cosine of random dictionaries is far from zero (0.154 at width 512 and 4096 units), so stability
alone is misleading; the orderedness of unrelated dictionaries is zero on average.

Atoms of real SAEs are not isotropic: they share a mean, and some directions are more common than others, so
unrelated dictionaries are more alike than isotropic ones. A fair chance level is therefore drawn with the
mean and covariance of the atoms.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.measures import orderedness_spread
from osae.metrics.assignment import match_atoms
from osae.metrics.matching import check_dictionary, unit_rows

_FLOOR = 1e-9  # of the mean variance, added in each direction: the atoms may not span all of them


class ChanceLevel(NamedTuple):
    """Mean and standard deviation of both measures over pairs of random dictionaries.

    `stability_std` is NaN after a single draw. The numbers for orderedness are exact.
    """

    stability: float
    stability_std: float
    orderedness: float
    orderedness_std: float
    draws: int


class AtomDistribution(NamedTuple):
    """The normal distribution of atoms before they are scaled to length one."""

    mean: Float[Tensor, "d"]
    factor: Float[Tensor, "d d"]

    def draw(self, units: int, generator: torch.Generator) -> Float[Tensor, "units d"]:
        """Return the given number of random atoms, not yet of length one."""
        noise = torch.randn(units, len(self.mean), generator=generator)
        return self.mean + noise @ self.factor.T


def fit_atoms(*dictionaries: Float[Array, "K d"]) -> AtomDistribution:
    """Return the distribution with the mean and covariance of the atoms of all dictionaries together.

    Atoms are scaled to length one first; none may be zero.
    """
    tensors = [as_tensor(one, f"dictionary {place}") for place, one in enumerate(dictionaries)]
    for place, one in enumerate(tensors):
        check_dictionary(one, f"dictionary {place}")
    atoms = torch.cat([unit_rows(one) for one in tensors])
    mean = atoms.mean(0)
    centred = atoms - mean
    covariance = centred.T @ centred / max(1, len(atoms) - 1)
    floor = _FLOOR * max(float(covariance.diagonal().mean()), _FLOOR)
    factor = torch.linalg.cholesky(covariance + floor * torch.eye(len(mean), dtype=covariance.dtype))
    return AtomDistribution(mean.float(), factor.float())


def chance_level(
    units_a: int,
    units_b: int,
    width: int,
    *,
    like: AtomDistribution | None = None,
    draws: int | None = None,
    seed: int = 0,
    absolute: bool = False,
) -> ChanceLevel:
    """Return the stability and orderedness of unrelated dictionaries, drawn with `seed`.

    Atoms are drawn from `like` (see `fit_atoms`), or isotropically by default. The mean of K matched cosines
    fluctuates less as K grows (by 2e-4 at 4096 units) while a matching takes longer, so by default larger
    dictionaries get fewer draws: 8 up to 512 units, 2 for 2048 or more. Orderedness needs no draws: every
    order of a random dictionary is equally likely, so the matching is a uniformly random permutation, whose
    Spearman correlation over n pairs has mean 0 and standard deviation 1/sqrt(n-1) (and is 1 by definition
    for n = 1).
    """
    if min(units_a, units_b, width) < 1:
        raise ValueError(f"units {units_a} and {units_b}, width {width}: all must be at least 1.")
    if like is not None and len(like.mean) != width:
        raise ValueError(f"width {width}, but `like` has atoms of width {len(like.mean)}.")
    if draws is None:
        draws = min(8, max(2, 4096 // max(units_a, units_b)))
    if draws < 1:
        raise ValueError(f"draws={draws}: give at least 1.")
    generator = torch.Generator().manual_seed(seed)
    levels = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        a, b = (_draw(units, width, like, generator) for units in (units_a, units_b))
        levels[draw] = match_atoms(a, b, absolute=absolute).similarity.mean()
    pairs = min(units_a, units_b)
    return ChanceLevel(
        stability=float(levels.mean()),
        stability_std=float(levels.std()) if draws > 1 else float("nan"),
        orderedness=0.0 if pairs > 1 else 1.0,
        orderedness_std=orderedness_spread(pairs),
        draws=draws,
    )


def _draw(units: int, width: int, like: AtomDistribution | None, generator: torch.Generator) -> Tensor:
    return torch.randn(units, width, generator=generator) if like is None else like.draw(units, generator)
