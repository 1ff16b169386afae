"""What two unrelated dictionaries of the same shape score.

The matched cosine of random dictionaries is far from zero (0.154 at width 512 and 4096 units), so stability
alone is misleading; the orderedness of unrelated dictionaries is zero on average.
"""

from typing import NamedTuple

import torch

from osae.metrics.assignment import match_atoms


class ChanceLevel(NamedTuple):
    """Mean and standard deviation of both measures over pairs of random dictionaries.

    `stability_std` is NaN after a single draw. The numbers for orderedness are exact.
    """

    stability: float
    stability_std: float
    orderedness: float
    orderedness_std: float
    draws: int


def chance_level(
    units_a: int,
    units_b: int,
    width: int,
    *,
    draws: int | None = None,
    seed: int = 0,
    absolute: bool = False,
) -> ChanceLevel:
    """Return the stability and orderedness of unrelated dictionaries: unit Gaussian atoms, fixed by `seed`.

    The mean of K matched cosines fluctuates less as K grows (by 2e-4 at 4096 units) while a matching takes
    longer, so by default larger dictionaries get fewer draws: 8 up to 512 units, 2 from 2048 on; for very
    many units a single draw is enough. Orderedness needs no draws: every order of a random dictionary is
    equally likely, so the matching is a uniformly random permutation, whose Spearman correlation over n
    pairs has mean 0 and standard deviation 1/sqrt(n-1) (and is 1 by definition for n = 1).
    """
    if min(units_a, units_b, width) < 1:
        raise ValueError(f"units {units_a} and {units_b}, width {width}: all must be at least 1.")
    if draws is None:
        draws = min(8, max(2, 4096 // max(units_a, units_b)))
    if draws < 1:
        raise ValueError(f"draws={draws}: give at least 1.")
    generator = torch.Generator().manual_seed(seed)
    levels = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        a = torch.randn(units_a, width, generator=generator)
        b = torch.randn(units_b, width, generator=generator)
        levels[draw] = match_atoms(a, b, absolute=absolute).similarity.mean()
    pairs = min(units_a, units_b)
    return ChanceLevel(
        stability=float(levels.mean()),
        stability_std=float(levels.std()) if draws > 1 else float("nan"),
        orderedness=0.0 if pairs > 1 else 1.0,
        orderedness_std=(pairs - 1) ** -0.5 if pairs > 1 else 0.0,
        draws=draws,
    )
