"""What each unit does for the reconstruction, and the orders that follow from it.

Shapes: N samples, B samples in a batch, k entries in a sparse code, K units, d width.

Alone, unit j with value z_j and atom d_j lowers the squared error of a sample x by

    |x|^2 - |x - z_j d_j|^2 = 2 z_j d_j.x - z_j^2 |d_j|^2 ,

its explained energy. After a set S of other units, with residual r = x - sum_{i in S} z_i d_i, it lowers the
error by 2 z_j d_j.r - z_j^2 |d_j|^2: the energy, less 2 sum_{i in S} z_i z_j d_i.d_j. The means over samples
of z_i z_j are thus all the greedy order needs. `x` is meant without the decoder's bias.
"""

from typing import no_type_check

import numba
import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.metrics.codes import check_batch, code_arrays

_BLOCK_ROWS = 256  # rows of the decoder's Gram matrix held at once


def explained_energy(
    values: Float[Tensor, "N k"],
    units: Int[Tensor, "N k"],
    decoder: Float[Tensor, "K d"],
    x: Float[Tensor, "N d"],
) -> Float[Tensor, "K"]:
    """Each unit's explained energy, the mean over samples (zero where it does not speak), in double."""
    activity = UnitActivity(decoder)
    activity.update(values, units, x)
    return activity.energy()


def frequency(
    values: Float[Tensor, "N k"], units: Int[Tensor, "N k"], total: int
) -> Float[Tensor, "{total}"]:
    """The share of samples in which each of the `total` units speaks."""
    numbers, places = code_arrays(values, units, total)
    spoke = np.bincount(places[numbers != 0], minlength=total)
    return torch.from_numpy(spoke / max(len(numbers), 1))


def greedy_order(
    values: Float[Tensor, "N k"],
    units: Int[Tensor, "N k"],
    decoder: Float[Tensor, "K d"],
    x: Float[Tensor, "N d"],
) -> Int[Tensor, "K"]:
    """The units in greedy order: next comes the one that lowers the error of the prefix most."""
    activity = Coactivity(decoder)
    activity.update(values, units, x)
    return activity.greedy_order()


class UnitActivity:
    """Sums over batches that give each unit's explained energy and frequency."""

    def __init__(self, decoder: Float[Tensor, "K d"]) -> None:
        self.samples = 0
        self._decoder = decoder.detach().cpu().double().numpy()
        self._energy = np.zeros(len(decoder))
        self._spoke = np.zeros(len(decoder))

    def update(
        self, values: Float[Tensor, "B k"], units: Int[Tensor, "B k"], x: Float[Tensor, "B d"]
    ) -> None:
        """Takes in one batch of codes and the data they stand for."""
        check_batch(values, x, self._decoder.shape[1])
        numbers, places = code_arrays(values, units, len(self._energy))
        _add_energy(numbers, places, self._decoder, x.detach().cpu().double().numpy(), self._energy)
        self._spoke += np.bincount(places[numbers != 0], minlength=len(self._spoke))
        self.samples += len(x)

    def energy(self) -> Float[Tensor, "K"]:
        """The explained energy of each unit: the mean over samples."""
        return torch.from_numpy(self._energy / max(self.samples, 1))

    def frequency(self) -> Float[Tensor, "K"]:
        """The share of samples in which each unit speaks."""
        return torch.from_numpy(self._spoke / max(self.samples, 1))


class Coactivity(UnitActivity):
    """Unit activity, and besides it the sums of z_i z_j over all pairs of units that speak together.

    Held sparse: units that never speak together take no room. O(B k^2) time per batch.
    """

    def __init__(self, decoder: Float[Tensor, "K d"]) -> None:
        super().__init__(decoder)
        self._together = scipy.sparse.csr_matrix((len(decoder), len(decoder)))

    def update(
        self, values: Float[Tensor, "B k"], units: Int[Tensor, "B k"], x: Float[Tensor, "B d"]
    ) -> None:
        """Takes in one batch of codes and the data they stand for."""
        super().update(values, units, x)
        numbers, places = code_arrays(values, units, len(self._energy))
        samples = np.repeat(np.arange(len(numbers)), numbers.shape[1])
        shape = (len(numbers), len(self._energy))
        code = scipy.sparse.csr_matrix((numbers.ravel(), (samples, places.ravel())), shape=shape)
        code.eliminate_zeros()
        self._together = (self._together + code.T @ code).tocsr()

    def greedy_order(self) -> Int[Tensor, "K"]:
        """The units in greedy order; ties, dead units among them, keep the order they have."""
        first, others = self._together.indptr, self._together.indices
        overlap = self._overlap()
        gain = self._energy.copy()
        order = np.empty(len(gain), dtype=np.int64)
        for place in range(len(gain)):
            chosen = order[place] = int(gain.argmax())
            row = slice(first[chosen], first[chosen + 1])
            gain[others[row]] -= 2 * overlap[row]
            gain[chosen] = -np.inf
        return torch.from_numpy(order)

    def _overlap(self) -> np.ndarray:
        """The sums of z_i z_j d_i.d_j over samples, in the places of the sparse sums of z_i z_j."""
        overlap, first = self._together.data.copy(), self._together.indptr
        for start in range(0, len(self._decoder), _BLOCK_ROWS):
            gram = self._decoder[start : start + _BLOCK_ROWS] @ self._decoder.T
            for r in range(len(gram)):
                row = slice(first[start + r], first[start + r + 1])
                overlap[row] *= gram[r, self._together.indices[row]]
        return overlap


# A compiled loop, not torch: gathering the atoms of a batch would take B x k x d numbers.
@numba.njit(cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _add_energy(values, units, decoder, x, energy):
    for i in range(values.shape[0]):
        for s in range(values.shape[1]):
            z, atom, sample = values[i, s], decoder[units[i, s]], x[i]
            if z != 0:
                along, square = 0.0, 0.0
                for t in range(len(sample)):
                    along += atom[t] * sample[t]
                    square += atom[t] * atom[t]
                energy[units[i, s]] += z * (2 * along - z * square)
