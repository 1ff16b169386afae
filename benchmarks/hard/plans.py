"""The trials on development worlds: those of the rate, and those of the recipe.

Worlds are small, so that a trial takes seconds: 128 atoms in 32 dimensions, 50,000 samples.
"""

from collections.abc import Callable, Iterator
from typing import Any

from osae.data.worlds import ForestWorld
from osae.prefix import Boundaries, Mixed, Uniform
from osae.recipes import FromNoise, group_ends
from osae.schedule import Resort

SEED = 100  # of the development worlds; the worlds that recipes are judged on have another
FLAT = ForestWorld(32, 128, 4.0, samples=50_000, seed=SEED)
TREE = ForestWorld(32, 128, 4.0, samples=50_000, seed=SEED, roots=8)
Planned = tuple[ForestWorld, str, dict[str, Any], int, int]  # ..., epochs, batch

RATES = (0.016, 0.004, 0.032, 0.064, 0.008)
METHODS = (
    "topk",
    "osae",
    "matryoshka-fixed",
    "matryoshka-random",
    "osae-from-noise",
    "batchtopk",
    "osae-paper",
)


def rates() -> Iterator[Planned]:
    """Yield TopK at every rate: in the middle, and at half and twice the width, the units and the length."""
    for width, units, epochs in ((32, 128, 5), (64, 128, 5), (16, 128, 5), (32, 256, 5), (32, 128, 15)):
        world = ForestWorld(width, units, 4.0, samples=50_000, seed=SEED)
        for rate in RATES:
            yield world, "topk", {"lr.peak": rate}, epochs, 500


def methods() -> Iterator[Planned]:
    """Yield every method on both worlds, at the same rate."""
    for rate in (0.016, 0.032):
        for name in METHODS:
            for world in (TREE, FLAT):
                yield world, name, {"lr.peak": rate}, 5, 500


def recipes() -> Iterator[Planned]:
    """Yield changes of `osae`, one idea each, at the same rate."""
    groups = Boundaries(group_ends(128, 5))
    ideas: list[tuple[str, dict[str, Any]]] = [
        ("osae", {"sweep": None}),
        ("matryoshka-fixed", {"resort": Resort(1)}),
        ("osae", {"sweep": None, "prefix": Mixed(groups, full=0.5)}),
        ("osae", {"sweep": None, "prefix": Mixed(Uniform(), full=0.5)}),
        ("osae", {"sweep": None, "start": FromNoise()}),
        ("topk", {"start": FromNoise()}),
        ("matryoshka-fixed", {"start": FromNoise()}),
    ]
    for name, changes in ideas:
        for world in (TREE, FLAT):
            yield world, name, {"lr.peak": 0.016, **changes}, 5, 500


PLANS: dict[str, Callable[[], Iterator[Planned]]] = {"rates": rates, "methods": methods, "recipes": recipes}
