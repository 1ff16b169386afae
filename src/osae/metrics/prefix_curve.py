"""How well every prefix of a dictionary rebuilds the data.

Shapes: B samples in a batch, k entries in a sparse code, K units, d width.

The prefix of length l rebuilds x by its first l units: x_l = sum_{j < l} z_j d_j. Between two units that
speak nothing changes, so a walk through a code in the order of its units meets all K errors of a sample,

    r <- r - z_j d_j ,    drop_j = |r before|^2 - |r after|^2 ,    |x - x_l|^2 = |x|^2 - sum_{j < l} drop_j ,

in O(k d) time, whatever the number of lengths. The sums of the drops over samples, K numbers, are all that is
held. `x` is meant without the decoder's bias.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.metrics.codes import check_batch, code_arrays
from osae.metrics.reconstruction import Spread

_ENTRIES = 2**21  # entries of a code that are sorted at once


class PrefixCurve:
    """Sums over batches that give the error of the prefixes of all lengths, 1 to K."""

    def __init__(self, decoder: Float[Tensor, "K d"]) -> None:
        self._decoder = decoder.detach().cpu().contiguous().numpy()
        self._drops = np.zeros(len(decoder))
        self._square = 0.0  # the error of the prefix that holds nothing
        self._spread = Spread()

    def update(
        self, values: Float[Tensor, "B k"], units: Int[Tensor, "B k"], x: Float[Tensor, "B d"]
    ) -> None:
        """Takes in one batch of codes, their entries in any order, and the data they stand for."""
        check_batch(values, x, self._decoder.shape[1])
        if len(x) == 0:
            return
        x = x.detach().cpu().double()
        self._square += float(x.square().sum())
        self._spread.update(x)
        rows = max(1, _ENTRIES // max(1, values.shape[-1]))
        for part in range(0, len(x), rows):
            here = slice(part, part + rows)
            ordered, order = units[here].sort(-1)
            numbers, places = code_arrays(values[here].gather(-1, order), ordered, len(self._drops))
            _walk(numbers, places, self._decoder, x[here].clone().numpy(), self._drops)

    def mse(self) -> Float[Tensor, "K"]:
        """The mean squared error over samples and coordinates of each prefix; entry l-1 is of length l."""
        return torch.from_numpy(self._errors() / (self._samples() * self._decoder.shape[1]))

    def explained_variance(self) -> Float[Tensor, "K"]:
        """One less each prefix's error as a share of the data's spread; NaN if the data are constant."""
        self._samples()
        spread = self._spread.total
        return torch.from_numpy(1 - self._errors() / (spread if spread > 0 else np.nan))

    def _samples(self) -> int:
        if self._spread.samples == 0:
            raise ValueError("no samples yet: call update first.")
        return self._spread.samples

    def _errors(self) -> np.ndarray:
        # a perfect prefix can fall below zero by a rounding error
        return np.maximum(self._square - self._drops.cumsum(), 0.0)


# A compiled loop, not torch: gathering the atoms of a batch would take B x k x d numbers. The rows of
# `residual` are used up.
@numba.njit(cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _walk(values, units, decoder, residual, drops):
    for i in range(values.shape[0]):
        rest = residual[i]
        before = 0.0
        for t in range(len(rest)):
            before += rest[t] * rest[t]
        for s in range(values.shape[1]):
            z, atom = values[i, s], decoder[units[i, s]]
            if z != 0:
                after = 0.0
                for t in range(len(rest)):
                    left = rest[t] - z * atom[t]
                    rest[t] = left
                    after += left * left
                drops[units[i, s]] += before - after
                before = after
