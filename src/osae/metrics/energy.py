"""What each unit contributes to the reconstruction, and the orders of units that follow from it.

Shapes: N samples, B samples in a batch, k entries in a sparse code, K units, d width.

Alone, unit j with value z_j and atom d_j lowers the squared error of a sample x by

    |x|^2 - |x - z_j d_j|^2 = 2 z_j d_j.x - z_j^2 |d_j|^2 ,

its explained energy. After a set S of other units, with residual r = x - sum_{i in S} z_i d_i, it lowers the
error by 2 z_j d_j.r - z_j^2 |d_j|^2: the energy, minus 2 sum_{i in S} z_i z_j d_i.d_j. The means over samples
of z_i z_j are therefore all that the greedy order needs. Subtract the decoder's bias from `x` first.
"""

from collections.abc import Callable
from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.sparse_codes import check_batch, to_arrays
from osae.metrics.streams import Stream

SUMMED_UNITS = 8192  # largest number of units for which overlaps are summed for every pair
MOST_OVERLAPS = 2**28  # maximum number of overlaps stored sample by sample: 1 GB
_DENSE_UNITS = 512  # from this many on, products of dense codes are faster if codes are fuller than
_DENSE_SHARE = 1 / 8
_DENSE_ROWS = 1024  # rows of dense codes held at once
_BLOCK_ROWS = 256  # rows of a block of the matrix of overlaps
_ATOMS = 2**23  # numbers of gathered atoms held at once
_CHUNK = 2**24  # overlaps of a stored array: the memory of large arrays is returned as soon as they are freed


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
    """Return the units in greedy order: each one lowers the error the most, given the units before it."""
    activity = Coactivity(decoder)
    activity.update(values, units, x)
    return activity.greedy_order()


class UnitActivity:
    """Sums over batches that give each unit's explained energy and frequency."""

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        self.samples = 0
        self._decoder = as_tensor(decoder, "decoder").detach().cpu().contiguous().numpy()
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


class Coactivity(UnitActivity):
    """Unit activity, together with the overlaps of units that fire together, which the greedy order needs.

    The overlap of two units is the sum over samples of z_i z_j d_i.d_j. Up to SUMMED_UNITS units, it is
    summed for every pair, in a matrix. With more units, overlaps are stored sample by sample, in single
    precision: N k^2 numbers. If there are more than MOST_OVERLAPS, those of later samples are left out and
    the others are scaled up: the order then comes from an unbiased estimate.
    """

    def __init__(self, decoder: Float[Array, "K d"]) -> None:
        super().__init__(decoder)
        self._ordered, few = False, len(decoder) <= SUMMED_UNITS
        self._overlaps = (
            _SummedOverlaps(self._decoder.astype(np.float64)) if few else _SampleOverlaps(decoder)
        )

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"], x: Float[Array, "B d"]) -> None:
        """Add one batch: codes, and the data that they encode."""
        if self._ordered:
            raise ValueError("the order of the units has been requested: add all batches before that.")
        super().update(values, units, x)
        self._overlaps.add(*to_arrays(values, units, len(self._energy)))

    def greedy_order(self) -> Int[Tensor, "K"]:
        """Return the units in greedy order; ties, including dead units, keep their order."""
        return self.greedy_gains()[0]

    def greedy_gains(self) -> tuple[Int[Tensor, "K"], Float[Tensor, "K"]]:
        """Return the units in greedy order, and the mean decrease of the error as each is added.

        Gains are indexed by unit, 0 to K - 1, not by greedy order. No batch can be added afterwards.
        """
        self._ordered = True
        order, gains = _choose_greedily(self._energy, self._overlaps.prepare(self.samples))
        return torch.from_numpy(order), torch.from_numpy(gains / max(self.samples, 1))


def stream_gains(
    energy: Float[Tensor, "K"], stream: Stream, decoder: Float[Array, "K d"]
) -> tuple[Int[Tensor, "K"], Float[Tensor, "K"]]:
    """Return the same as `greedy_gains`, from the energy of each unit and a stream of codes.

    For more than SUMMED_UNITS units, overlaps are computed from the first samples of the stream, as many as
    fit into 2**26 numbers.
    """
    units = len(energy)
    if units <= SUMMED_UNITS:
        exact = as_tensor(decoder, "decoder").detach().cpu().double().contiguous().numpy()
        overlaps: _SummedOverlaps | _SampleOverlaps = _SummedOverlaps(exact)
    else:
        overlaps = _SampleOverlaps(decoder, most=2**26)
    for values, places in stream.batches(_DENSE_ROWS):
        overlaps.add(values, places)
    sums = energy.numpy() * stream.samples
    order, gains = _choose_greedily(sums, overlaps.prepare(stream.samples))
    return torch.from_numpy(order), torch.from_numpy(gains / stream.samples)


def _choose_greedily(energy: np.ndarray, subtract: "Subtract") -> tuple[np.ndarray, np.ndarray]:
    """Return the units, choosing the one with the greatest gain each time, and the gain of each unit."""
    gain, gains = energy.copy(), np.empty(len(energy))
    order = np.empty(len(gain), dtype=np.int64)
    for place in range(len(gain)):
        chosen = order[place] = int(gain.argmax())
        gains[chosen] = gain[chosen]
        subtract(chosen, gain)
        gain[chosen] = -np.inf
    return order, gains


Subtract = Callable[[int, np.ndarray], object]


class _SummedOverlaps:
    """The overlap of every pair of units, in one matrix, whose memory does not depend on the codes.

    While codes are added, the sum of z_i z_j is that of two opposite entries. It takes O(B k^2) time per
    batch, or a product of dense codes if these are full enough for that. The diagonal is never needed: a unit
    that has been chosen is not chosen again.
    """

    def __init__(self, decoder: np.ndarray) -> None:
        count = len(decoder)
        self._decoder, self._matrix, self._prepared = decoder, np.zeros((count, count)), False
        self._most = 1.0 if count < _DENSE_UNITS else _DENSE_SHARE

    def add(self, values: np.ndarray, units: np.ndarray) -> None:
        """Add the codes of one batch."""
        assert not self._prepared, "overlaps have replaced the sums"
        if np.count_nonzero(values) < self._most * len(values) * len(self._decoder):
            _add_pairs(values, units, self._matrix)
            return
        for start in range(0, len(values), _DENSE_ROWS):
            rows = slice(start, start + _DENSE_ROWS)
            code = np.zeros((len(values[rows]), len(self._decoder)))
            np.add.at(code, (np.arange(len(code))[:, None], units[rows]), values[rows])
            self._add_dense(code)

    def _add_dense(self, code: np.ndarray) -> None:
        for rows in self._blocks():
            sums = code[:, rows].T @ code[:, rows.start :]
            sums[:, : len(sums)] /= 2  # both entries of a pair are in this block
            self._matrix[rows, rows.start :] += sums

    def prepare(self, samples: int) -> Subtract:
        """Return a function that subtracts the overlaps with a chosen unit from all gains.

        Overlaps replace the sums, so that there is only one matrix.
        """
        if not self._prepared:
            self._prepared = True
            for rows in self._blocks():
                for columns in self._blocks(rows.start):
                    overlap = self._matrix[rows, columns] + self._matrix[columns, rows].T
                    overlap *= self._decoder[rows] @ self._decoder[columns].T
                    self._matrix[rows, columns], self._matrix[columns, rows] = overlap, overlap.T
        return lambda chosen, gain: np.subtract(gain, 2 * self._matrix[chosen], out=gain)

    def _blocks(self, first: int = 0) -> list[slice]:
        """Return blocks of units, from the first one on."""
        return [slice(start, start + _BLOCK_ROWS) for start in range(first, len(self._decoder), _BLOCK_ROWS)]


class _SampleOverlaps:
    """The overlaps of the units that fire in each sample, batch by batch."""

    def __init__(self, decoder: Array, most: int | None = None) -> None:
        self._decoder = as_tensor(decoder, "decoder").detach().cpu().float()
        self._most = MOST_OVERLAPS if most is None else most
        self._batches: list[tuple[np.ndarray, np.ndarray]] = []  # units (n, w) and their overlaps (n, w, w)
        self._stored, self._samples = 0, 0
        self._free = torch.empty(0)  # for the overlaps of the next batches

    def add(self, values: np.ndarray, units: np.ndarray) -> None:
        """Add the codes of one batch, until the limit is reached."""
        order = np.argsort(values == 0, axis=1, kind="stable")  # active entries first
        width = max(1, int((values != 0).sum(1).max(initial=0)))
        values, units = (np.take_along_axis(part, order, 1)[:, :width] for part in (values, units))
        kept = min(len(values), (self._most - self._stored) // width**2)
        if kept:
            places = units[:kept].astype(np.int32)
            self._batches.append((places, self._multiply(torch.from_numpy(values[:kept]), places)))
        self._stored, self._samples = self._stored + kept * width**2, self._samples + kept

    def _multiply(self, values: Tensor, units: np.ndarray) -> np.ndarray:
        """Return z_i z_j d_i.d_j for all pairs of active units of each sample."""
        count, width = values.shape
        overlaps = self._take(count * width**2).view(count, width, width)
        for rows in torch.arange(count).split(max(1, _ATOMS // (width * self._decoder.shape[1]))):
            places = torch.from_numpy(units)[rows].flatten()
            atoms = self._decoder.index_select(0, places).view(len(rows), width, -1)
            atoms *= values[rows].to(atoms).unsqueeze(-1)
            torch.bmm(atoms, atoms.mT, out=overlaps[rows[0] : rows[-1] + 1])
        return overlaps.numpy()

    def _take(self, count: int) -> Tensor:
        """Return room for that many overlaps."""
        if count > len(self._free):
            self._free = torch.empty(max(count, min(_CHUNK, self._most - self._stored)))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def prepare(self, samples: int) -> Subtract:
        """Return a function that subtracts the overlaps with a chosen unit from all gains."""
        weight = 2 * samples / max(self._samples, 1)
        count = len(self._decoder)
        indexed = []
        for units, overlaps in self._batches:
            slots = np.argsort(units, axis=None, kind="stable")
            starts = np.searchsorted(units.ravel()[slots], np.arange(count + 1))
            indexed.append((units, overlaps, slots, starts))

        def subtract(chosen: int, gain: np.ndarray) -> None:
            for units, overlaps, slots, starts in indexed:
                _subtract_overlaps(units, overlaps, slots[starts[chosen] : starts[chosen + 1]], weight, gain)

        return subtract


@numba.njit(cache=True)
@no_type_check
def _add_pairs(values, units, sums):
    """Add z_i z_j to sums[i, j] or sums[j, i] for all pairs of units that fire together, sample by sample."""
    active = np.empty(values.shape[1], np.int64)
    for b in range(len(values)):
        count = 0
        for s in range(values.shape[1]):
            if values[b, s] != 0:
                active[count] = s
                count += 1
        for first in range(count):
            s = active[first]
            row, value = sums[units[b, s]], values[b, s]
            for t in active[first + 1 : count]:
                row[units[b, t]] += value * values[b, t]


@numba.njit(cache=True)
@no_type_check
def _subtract_overlaps(units, overlaps, slots, weight, gain):
    width = units.shape[1]
    for slot in slots:
        sample, place = slot // width, slot % width
        for other in range(width):
            gain[units[sample, other]] -= weight * overlaps[sample, place, other]


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
                    number = np.float64(atom[t])  # in double precision, whatever the precision of the decoder
                    along += number * sample[t]
                    square += number * number
                energy[units[i, s]] += z * (2 * along - z * square)
