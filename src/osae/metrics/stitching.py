"""Stitching: does a unit of a large SAE add something that a small one lacks?

Shapes: N samples, B samples in a batch, K units of the large SAE, k entries in its code, d width.

With e = x - x_small the residual of the small SAE, adding unit u of the large one changes the squared error,
on the samples where u fires, by

    sum |e - z_u d_u|^2 - |e|^2 = - sum (2 z_u d_u.e - z_u^2 |d_u|^2) ,

the negative of the unit's explained energy on the residual. The unit is *novel* if the error falls, a
*reconstruction* unit if it rises (the small SAE already covers what the unit represents), and *unchanged* if
it never fires.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.energy import UnitActivity


class StitchingResult(NamedTuple):
    """The shares of the three kinds of units, and how much each unit changes the error.

    `change` is the squared error with the unit minus the error without it, summed over all samples;
    `frequency` is the share of samples in which the unit fires; `error` is the small SAE's squared error,
    summed over all samples.
    """

    novel: float
    reconstruction: float
    unchanged: float
    change: Float[Tensor, "K"]
    frequency: Float[Tensor, "K"]
    error: float


def stitching(
    values: Float[Array, "N k"],
    units: Int[Array, "N k"],
    decoder: Float[Array, "K d"],
    residual: Float[Array, "N d"],
) -> StitchingResult:
    """Return the stitching measure of a large SAE's units, given its code and a small SAE's residual."""
    stitch = Stitching(decoder)
    stitch.update(values, units, residual)
    return stitch.result()


class Stitching:
    """Sums over batches from which `result()` gives the stitching measure."""

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        self._activity = UnitActivity(decoder)
        self._error = 0.0

    def update(
        self, values: Float[Array, "B k"], units: Int[Array, "B k"], residual: Float[Array, "B d"]
    ) -> None:
        """Add the large SAE's code and the small SAE's residual on the same samples."""
        self._activity.update(values, units, residual)
        self._error += float(as_tensor(residual, "residual").double().square().sum())

    def result(self) -> StitchingResult:
        """Return the measure over all samples so far."""
        change = -self._activity.energy() * self._activity.samples
        return StitchingResult(
            novel=float((change < 0).double().mean()),
            reconstruction=float((change > 0).double().mean()),
            unchanged=float((change == 0).double().mean()),
            change=change,
            frequency=self._activity.frequency(),
            error=self._error,
        )
