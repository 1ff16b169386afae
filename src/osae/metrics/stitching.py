"""Stitching: does a unit of a large SAE tell a small one something new?

Shapes: N samples, B samples in a batch, K units of the large SAE, k entries in its code, d width.

With e = x - x_small the residual of the small SAE, adding unit u of the large one changes the squared error,
on the samples where u speaks, by

    sum |e - z_u d_u|^2 - |e|^2 = - sum (2 z_u d_u.e - z_u^2 |d_u|^2) ,

the explained energy of the unit on the residual, negated. The unit is *novel* if the error falls, a
*reconstruction* unit if it rises (the small SAE already says what it says), and *unchanged* if it never
speaks.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from osae.metrics.energy import UnitActivity


class StitchingResult(NamedTuple):
    """The shares of the three kinds of units, and each unit's change of the error.

    `change` is the sum over the samples seen of the squared error with the unit less without it;
    `frequency` is the share of samples in which the unit speaks.
    """

    novel: float
    reconstruction: float
    unchanged: float
    change: Float[Tensor, "K"]
    frequency: Float[Tensor, "K"]


def stitching(
    values: Float[Tensor, "N k"],
    units: Int[Tensor, "N k"],
    decoder: Float[Tensor, "K d"],
    residual: Float[Tensor, "N d"],
) -> StitchingResult:
    """The stitching measure of all units of a large SAE, given its code and the small SAE's residual."""
    stitch = Stitching(decoder)
    stitch.update(values, units, residual)
    return stitch.result()


class Stitching:
    """Sums over batches from which `result()` gives the stitching measure."""

    def __init__(self, decoder: Float[Tensor, "K d"]) -> None:
        self._activity = UnitActivity(decoder)

    def update(
        self, values: Float[Tensor, "B k"], units: Int[Tensor, "B k"], residual: Float[Tensor, "B d"]
    ) -> None:
        """Takes in the large SAE's code and the small SAE's residual on the same samples."""
        self._activity.update(values, units, residual)

    def result(self) -> StitchingResult:
        """The measure over all samples so far."""
        change = -self._activity.energy() * self._activity.samples
        return StitchingResult(
            novel=float((change < 0).double().mean()),
            reconstruction=float((change > 0).double().mean()),
            unchanged=float((change == 0).double().mean()),
            change=change,
            frequency=self._activity.frequency(),
        )
