"""How well every prefix of a dictionary reconstructs the data.

Shapes: B samples in a batch, k entries in a sparse code, K units, d width.

The prefix of length l reconstructs x from the first l units: x_l = sum_{j < l} z_j d_j. Units that do not
fire change nothing, so walking through a code in the order of its units visits all K errors of a sample,

    r <- r - z_j d_j ,    drop_j = |r before|^2 - |r after|^2 ,    |x - x_l|^2 = |x|^2 - sum_{j < l} drop_j ,

in O(k d) time, however many lengths there are. Only the sums of the drops over samples, K numbers, are
stored. Subtract the decoder's bias from `x` first.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.reconstruction import Spread
from osae.metrics.sparse_codes import check_batch, to_arrays

_ENTRIES = 2**21  # entries of a code sorted at once


class PrefixCurve:
    """Sums over batches that give the errors of the prefixes of all lengths, 1 to K."""

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        self._decoder = as_tensor(decoder, "decoder").detach().cpu().contiguous().numpy()
        self._drops = np.zeros(len(decoder))
        self._square = 0.0  # the error of the empty prefix
        self._spread = Spread()

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"], x: Float[Array, "B d"]) -> None:
        """Add one batch: codes, with entries in any order, and the data that they encode."""
        values, units, x = as_tensor(values, "values"), as_tensor(units, "units"), as_tensor(x, "x")
        check_batch(values, x, self._decoder.shape[1])
        if len(x) == 0:
            return
        x = x.detach().cpu().double().contiguous()
        self._square += float(x.square().sum())
        self._spread.update(x)
        rows = max(1, _ENTRIES // max(1, values.shape[-1]))
        for part in range(0, len(x), rows):
            here = slice(part, part + rows)
            ordered, order = units[here].sort(-1)
            numbers, places = to_arrays(values[here].gather(-1, order), ordered, len(self._drops))
            _walk(numbers, places, self._decoder, x[here].clone().numpy(), self._drops)

    def mse(self) -> Float[Tensor, "K"]:
        """Return each prefix's mean squared error over samples and coordinates; entry l-1 is for length l."""
        return torch.from_numpy(self._errors() / (self._samples() * self._decoder.shape[1]))

    def explained_variance(self) -> Float[Tensor, "K"]:
        """Return each prefix's explained variance; NaN if the data are constant."""
        self._samples()
        spread = self._spread.total
        return torch.from_numpy(1 - self._errors() / (spread if spread > 0 else np.nan))

    def _samples(self) -> int:
        """Return the number of samples so far; raise `ValueError` if there are none."""
        if self._spread.samples == 0:
            raise ValueError("no samples yet: call update first.")
        return self._spread.samples

    def _errors(self) -> np.ndarray:
        # the error of a perfect prefix can fall below zero by a rounding error
        return np.maximum(self._square - self._drops.cumsum(), 0.0)


# A compiled loop, not torch: gathering the atoms of a batch would take B x k x d numbers. The rows of
# `residual` are overwritten.
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
