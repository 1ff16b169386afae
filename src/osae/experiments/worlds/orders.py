"""The true orders of a world's atoms: by how often each occurs, and by the energy it explains."""

from torch import Tensor

from osae import metrics
from osae.data.worlds import SparseWorld

ROWS = 20_000


def true_orders(world: SparseWorld) -> dict[str, Tensor]:
    """Return the true atoms in order of frequency and in order of energy, on held-out samples."""
    code = world.draw("test", ROWS).code
    return {
        "frequency": metrics.frequency(code.values, code.units, world.units).argsort(descending=True),
        "energy": code.dense(world.units).square().mean(0).argsort(descending=True),
    }


def correlate_orders(world: SparseWorld) -> float:
    """Return the rank correlation of the two orders."""
    orders = true_orders(world)
    return metrics.rank_correlation(orders["frequency"].argsort(), orders["energy"].argsort())
