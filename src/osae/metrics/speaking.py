"""How often units speak.

Shapes: B samples in a batch, k entries in a sparse code, K units.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS = 4  # of a histogram, in each power of ten


class FrequencyHistogram(NamedTuple):
    """Units by the log10 of how often they speak.

    Bin i holds the `units[i]` units between `edges[i]` and `edges[i + 1]`; `never` speak so many.
    """

    edges: list[float]
    units: list[int]
    never: int


class Speaking:
    """Counts over batches of the samples in which each unit speaks."""

    def __init__(self, units: int) -> None:
        self.samples = 0
        self._spoke = torch.zeros(units, dtype=torch.int64)

    def update(self, values: Float[Tensor, "B k"], units: Int[Tensor, "B k"]) -> None:
        """Takes in the codes of one batch."""
        self._spoke += torch.bincount(units[values != 0].cpu(), minlength=len(self._spoke))
        self.samples += len(values)

    def frequency(self) -> Float[Tensor, "K"]:
        """The share of samples in which each unit speaks."""
        return self._spoke.double() / max(self.samples, 1)

    def histogram(self) -> FrequencyHistogram:
        """Units by how often they speak, from one sample in all up to every sample.

        The edges follow from the number of samples alone, so that SAEs can be laid over one another.
        """
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        spoke = self._spoke[self._spoke > 0].double().numpy()
        first = int(np.floor(np.log10(1 / self.samples) * BINS))
        edges = np.arange(min(first, -1), 1) / BINS
        units, _ = np.histogram(np.log10(spoke / self.samples), edges)
        return FrequencyHistogram(edges.tolist(), units.tolist(), len(self._spoke) - len(spoke))
