"""How often units fire.

Shapes: B samples in a batch, k entries in a sparse code, K units.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor

BINS = 4  # bins of a histogram per power of ten


class FrequencyHistogram(NamedTuple):
    """Units by the log10 of how often they fire.

    Bin i contains `units[i]` units between `edges[i]` and `edges[i + 1]`; `never` units never fire.
    """

    edges: list[float]
    units: list[int]
    never: int


class FiringCounts:
    """Counts, over batches, of the samples in which each unit fires."""

    def __init__(self, units: int) -> None:
        self.samples = 0
        self._counts = torch.zeros(units, dtype=torch.int64)

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"]) -> None:
        """Add the codes of one batch."""
        values, units = as_tensor(values), as_tensor(units)
        self._counts += torch.bincount(units[values != 0].cpu(), minlength=len(self._counts))
        self.samples += len(values)

    def frequency(self) -> Float[Tensor, "K"]:
        """Return the share of samples in which each unit fires."""
        return self._counts.double() / max(self.samples, 1)

    def histogram(self) -> FrequencyHistogram:
        """Return the units by how often they fire, from a single sample up to every sample.

        The edges depend only on the number of samples, so that histograms of several SAEs can be overlaid.
        """
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        counts = self._counts[self._counts > 0].double().numpy()
        first = int(np.floor(np.log10(1 / self.samples) * BINS))
        edges = np.arange(min(first, -1), 1) / BINS
        units, _ = np.histogram(np.log10(counts / self.samples), edges)
        return FrequencyHistogram(edges.tolist(), units.tolist(), len(self._counts) - len(counts))
