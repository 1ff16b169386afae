"""The activity of an SAE's units on activations: how often they fire, and how much each explains.

Shapes: K units, n units that are compared, B rows of a batch, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae import metrics
from osae.model import SAE
from osae.sparsify import Code


@dataclass(frozen=True, eq=False)
class Activity:
    """The activity of units; energy and gain are shares of the data's squared norm around the decoder bias.

    `place` is the canonical order: each unit is followed by the one that then lowers the error most, by its
    gain. `stream` contains only the codes of the first rows if there are very many.
    """

    stream: metrics.Stream
    frequency: Float[Tensor, "n"]
    energy: Float[Tensor, "n"]
    gain: Float[Tensor, "n"]
    place: Int[Tensor, "n"]

    def select(self, units: Int[Tensor, "n"]) -> "Activity":
        """Return the activity of some of the units, in ascending order.

        Positions still refer to all units.
        """
        if len(units) == self.stream.total:
            return self
        kept = torch.zeros(self.stream.total, dtype=torch.bool)
        kept[units] = True
        numbers = (self.frequency, self.energy, self.gain, self.place)
        return Activity(self.stream.select(kept), *(each[units] for each in numbers))


class ActivityRecorder:
    """Collects the activity of an SAE, batch by batch."""

    def __init__(self, sae: SAE) -> None:
        self._sae, units = sae, sae.config.units
        self._sums = metrics.UnitActivity(sae.decoder)
        self._codes = metrics.StreamRecorder(units)
        # if an SAE scales each input, its codes are not on the scale of the data, as gains require
        self._unscaled = None if sae.config.scaling is None else metrics.StreamRecorder(units)
        self._norm = 0.0

    def update(self, code: Code, x: Float[Tensor, "B d"], *, kept: bool) -> None:
        """Add a batch; its codes are kept for correlations and gains if memory allows."""
        scaled, offset = self._sae.unscale(code, x)
        centred = x - offset.cpu()
        self._sums.update(*scaled, centred)
        self._norm += float(centred.double().square().sum())
        if kept:
            self._codes.update(*code)
            if self._unscaled is not None:
                self._unscaled.update(*scaled)

    def activity(self) -> Activity:
        """Return the collected activity."""
        stream = self._codes.stream()
        unscaled = stream if self._unscaled is None else self._unscaled.stream()
        energy = self._sums.energy()
        order, gain = metrics.stream_gains(energy, unscaled, self._sae.decoder)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        share = max(self._norm, torch.finfo(torch.float64).tiny) / self._sums.samples
        return Activity(stream, self._sums.frequency(), energy / share, gain / share, place)
