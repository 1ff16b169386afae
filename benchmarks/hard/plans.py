"""The trials on development worlds: those of the rate, and those of the recipe."""

from collections.abc import Callable, Iterator
from typing import Any

from osae.data.worlds import ForestWorld
from osae.recipes import FromNoise

SEED = 100  # of the development worlds; the worlds that recipes are judged on have another
Planned = tuple[ForestWorld, str, dict[str, Any], int]

SIZES = ((16, 64, 2), (32, 128, 3), (64, 256, 4), (96, 512, 5))
RATES = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064)


def rates() -> Iterator[Planned]:
    """Yield TopK at every rate and size: how does the best rate depend on the size?"""
    for width, units, active in SIZES:
        world = ForestWorld(width, units, active, samples=100_000, seed=SEED)
        for rate in RATES:
            yield world, "topk", {"lr.peak": rate, "start": FromNoise()}, 5


PLANS: dict[str, Callable[[], Iterator[Planned]]] = {"rates": rates}
