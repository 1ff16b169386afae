"""What each unit contributes to the reconstruction, and the orders of units that follow from it.

Shapes: N samples, B samples in a batch, k entries in a sparse code, K units, d width.

Alone, unit j with value z_j and atom d_j lowers the squared error of a sample x by

    |x|^2 - |x - z_j d_j|^2 = 2 z_j d_j.x - z_j^2 |d_j|^2 ,

its explained energy. After a set S of other units, with residual r = x - sum_{i in S} z_i d_i, it lowers the
error by 2 z_j d_j.r - z_j^2 |d_j|^2: the energy, minus 2 sum_{i in S} z_i z_j d_i.d_j. The means over samples
of z_i z_j are thus all that the greedy order needs. Subtract the decoder's bias from `x` first.
"""

from typing import Any, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.sparse_codes import check_batch, to_arrays

_BLOCK_ROWS = 256  # rows of the decoder's Gram matrix held at once


def explained_energy(
    values: Float[Array, "N k"],
    units: Int[Array, "N k"],
    decoder: Float[Array, "K d"],
    x: Float[Array, "N d"],
) -> Float[Tensor, "K"]:
    """Return each unit's explained energy: the mean over all samples, zero where it does not fire."""
    activity = UnitActivity(decoder)
    activity.update(values, units, x)
    return activity.energy()


def frequency(values: Float[Array, "N k"], units: Int[Array, "N k"], total: int) -> Float[Tensor, "{total}"]:
    """Return the share of samples in which each of the `total` units fires."""
    numbers, places = to_arrays(values, units, total)
    fired = np.bincount(places[numbers != 0], minlength=total)
    return torch.from_numpy(fired / max(len(numbers), 1))


def greedy_order(
    values: Float[Array, "N k"],
    units: Int[Array, "N k"],
    decoder: Float[Array, "K d"],
    x: Float[Array, "N d"],
) -> Int[Tensor, "K"]:
    """Return the units in greedy order: each is the one that lowers the error most after those before it."""
    activity = Coactivity(decoder)
    activity.update(values, units, x)
    return activity.greedy_order()


class UnitActivity:
    """Sums over batches that give each unit's explained energy and frequency."""

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        self.samples = 0
        self._decoder = as_tensor(decoder, "decoder").detach().cpu().double().contiguous().numpy()
        self._energy = np.zeros(len(decoder))
        self._fired = np.zeros(len(decoder))

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"], x: Float[Array, "B d"]) -> None:
        """Add one batch: codes, and the data that they encode."""
        x = as_tensor(x, "x")
        check_batch(values, x, self._decoder.shape[1])
        numbers, places = to_arrays(values, units, len(self._energy))
        data = x.detach().cpu().double().contiguous().numpy()
        _add_energy(numbers, places, self._decoder, data, self._energy)
        self._fired += np.bincount(places[numbers != 0], minlength=len(self._fired))
        self.samples += len(x)

    def energy(self) -> Float[Tensor, "K"]:
        """Return the explained energy of each unit: the mean over samples."""
        return torch.from_numpy(self._energy / max(self.samples, 1))

    def frequency(self) -> Float[Tensor, "K"]:
        """Return the share of samples in which each unit fires."""
        return torch.from_numpy(self._fired / max(self.samples, 1))


def _sparse_matrix(content: tuple, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix; scipy.sparse takes 0.2 s to import, and little else needs it."""
    from scipy import sparse

    return sparse.csr_matrix(content, shape=shape)


class Coactivity(UnitActivity):
    """Unit activity, together with the sums of z_i z_j over all pairs of units that fire together.

    The sums are stored sparsely: pairs that never fire together take no memory. O(B k^2) time per batch.
    """

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        super().__init__(decoder)
        self._together = _sparse_matrix((len(decoder), len(decoder)), (len(decoder), len(decoder)))

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"], x: Float[Array, "B d"]) -> None:
        """Add one batch: codes, and the data that they encode."""
        super().update(values, units, x)
        numbers, places = to_arrays(values, units, len(self._energy))
        samples = np.repeat(np.arange(len(numbers)), numbers.shape[1])
        shape = (len(numbers), len(self._energy))
        code = _sparse_matrix((numbers.ravel(), (samples, places.ravel())), shape)
        code.eliminate_zeros()
        self._together = (self._together + code.T @ code).tocsr()

    def greedy_order(self) -> Int[Tensor, "K"]:
        """Return the units in greedy order; ties, including dead units, keep their order."""
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
        """Return the sums of z_i z_j d_i.d_j over samples, in the layout of the sparse sums of z_i z_j."""
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
