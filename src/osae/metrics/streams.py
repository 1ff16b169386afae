"""Consistency of units by their activations rather than their atoms: correlations over an evaluation set.

Shapes: N samples, B samples in a batch, Ka, Kb units, ka, kb entries in a sparse code, n rows of a block.

The similarity of two units is the Pearson correlation of their activations on the same samples. A constant
unit (most often a dead one) correlates with nothing: its similarity to every unit is 0, but it still takes
part in the matching.

Codes are stored sparsely, with 8 bytes for each active unit of a sample, and correlations are computed for
one block of units at a time, so the Ka x Kb matrix is never held in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.assignment import CERTIFIED, DENSE_PAIRS, FALLBACK_PAIRS, match_rows
from osae.metrics.consistency import consistency_from
from osae.metrics.matching import Matching, match
from osae.metrics.sparse_codes import to_arrays


def activation_similarity(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> Float[Tensor, "Ka Kb"]:
    """Return the Pearson correlation of every unit of A with every unit of B, from dense codes."""
    return _standardise(za).T @ _standardise(zb)


def stream_stability(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> float:
    """Return the mean correlation of matched units."""
    return consistency_from(match(activation_similarity(za, zb))).stability


def stream_orderedness(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> float:
    """Return the Spearman correlation of the indices of units matched by their activations."""
    return consistency_from(match(activation_similarity(za, zb))).orderedness


def _standardise(z: Array) -> Tensor:
    """Return the columns centred and scaled to length one; zero where a column is constant."""
    z = as_tensor(z, "the code")
    if z.ndim != 2 or len(z) == 0:
        raise ValueError(f"code of shape {tuple(z.shape)}: give a nonempty matrix (samples, units).")
    z = z.detach().cpu().double()
    centred = z - z.mean(0)
    # Centring a constant column leaves rounding noise, which would correlate with other noise.
    centred[:, z.amax(0) == z.amin(0)] = 0
    return centred / centred.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)


# --- sparse codes -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stream:
    """The activations of an SAE's units on N samples: the entries of each sample's code, one after another.

    The entries of sample i are those from `first[i]` to `first[i + 1]`; none of them is zero.
    """

    total: int
    first: np.ndarray  # (N + 1,)
    units: np.ndarray  # of each entry
    values: np.ndarray  # of each entry, in single precision

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.first) - 1

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and 1 / standard deviation of each unit, the latter 0 for a constant unit."""
        values = self.values.astype(np.float64)
        mean = np.bincount(self.units, values, self.total) / self.samples
        square = np.bincount(self.units, values**2, self.total) / self.samples
        variance = square - mean**2
        constant = variance <= 1e-12 * square
        return mean, np.where(constant, 0.0, np.where(constant, 1.0, variance) ** -0.5)

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield values and units of `size` samples at a time, padded with entries of value zero."""
        for start in range(0, self.samples, size):
            first = self.first[start : start + size + 1]
            counts = np.diff(first)
            shape = len(counts), max(1, int(counts.max(initial=0)))
            values, units = np.zeros(shape), np.zeros(shape, dtype=np.int64)
            filled = np.arange(shape[1]) < counts[:, None]
            inside = slice(first[0], first[-1])
            values[filled], units[filled] = self.values[inside], self.units[inside]
            yield values, units

    def frequency(self) -> Float[Tensor, "K"]:
        """Return the share of samples in which each unit fires."""
        return torch.from_numpy(np.bincount(self.units, minlength=self.total) / self.samples)

    def select(self, kept: Bool[Tensor, "K"]) -> "Stream":
        """Return the stream of only some of the units, renumbered from 0."""
        keep = kept.numpy()
        inside = keep[self.units]
        counted = np.concatenate([[0], np.cumsum(inside)])
        place = np.cumsum(keep) - 1
        units = place[self.units[inside]].astype(np.int32)
        return Stream(int(keep.sum()), counted[self.first], units, self.values[inside])

    def shift(self, samples: int) -> "Stream":
        """Return the stream with its samples rotated: each unit keeps its own statistics."""
        turn = samples % self.samples
        entry = self.first[turn]
        counts = np.roll(np.diff(self.first), -turn)
        first = np.concatenate([[0], np.cumsum(counts)])
        return Stream(self.total, first, np.roll(self.units, -entry), np.roll(self.values, -entry))


class StreamRecorder:
    """Collector of batches of sparse codes into a `Stream`.

    An entry of value zero is padding; apart from padding, a unit occurs at most once in a sample's code.
    """

    def __init__(self, units: int) -> None:
        self.total, self.samples = units, 0
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def update(self, values: Float[Array, "B k"], units: Int[Array, "B k"]) -> None:
        """Add the codes of a batch."""
        numbers, places = to_arrays(values, units, self.total)
        active = numbers != 0
        self._parts.append(
            (active.sum(1), places[active].astype(np.int32), numbers[active].astype(np.float32))
        )
        self.samples += len(numbers)

    def stream(self) -> Stream:
        """Return the collected stream."""
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        counts, units, values = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return Stream(self.total, np.concatenate([[0], np.cumsum(counts)]), units, values)


# --- matching ---------------------------------------------------------------------------------------


def match_streams(a: Stream, b: Stream, *, tolerance: float = CERTIFIED) -> Matching:
    """Return the one-to-one matching of units with the greatest total correlation.

    Every unit of the smaller side is matched. The result is certified, like that of `match_atoms`. A
    `tolerance` above the default accepts a total that is smaller by up to that share, which may be found
    sooner.
    """
    _check_samples(a, b)
    if a.total * b.total <= DENSE_PAIRS:
        return match(correlate(a, b))
    swapped = a.total > b.total
    small, large = (b, a) if swapped else (a, b)
    found = _match_active(small, large, tolerance)
    if found.gap > tolerance and a.total * b.total <= FALLBACK_PAIRS:
        return match(correlate(a, b))
    return found.swap() if swapped else found


def _check_samples(a: Stream, b: Stream) -> None:
    if a.samples != b.samples:
        raise ValueError(f"{a.samples} samples of A and {b.samples} of B: give the same samples.")


def _match_active(small: Stream, large: Stream, tolerance: float) -> Matching:
    """Return the best matching: first of the units that vary, then of constant units with the remaining ones.

    A constant unit adds nothing to the total, whatever its partner. So this is the best matching of all
    units, unless a unit that varies would be better off with a constant partner.
    """
    sides = [torch.from_numpy(one.moments[1] > 0) for one in (small, large)]
    counts = [int(side.sum()) for side in sides]
    if counts == [small.total, large.total] or 0 in counts:
        return _match_all(small, large)[0]
    rows, columns = (side.nonzero().flatten() for side in sides)
    one, other = (stream.select(side) for stream, side in zip((small, large), sides, strict=True))
    more = counts[0] > counts[1]
    found, worth = _match_all(other, one) if more else _match_all(one, other)
    gap = found.gap + float(worth.clamp_max(0).abs().sum()) / max(abs(float(found.similarity.sum())), 1.0)
    if gap > tolerance:
        return _match_all(small, large)[0]
    found = replace(found.swap() if more else found, gap=gap, optimal=gap <= CERTIFIED)
    return _add_constant(found, rows, columns, small.total, large.total)


def _match_all(small: Stream, large: Stream) -> tuple[Matching, Float[Tensor, "n"]]:
    by_unit = _sort_by_unit(small)
    return match_rows(lambda chosen: correlate_rows(small, by_unit, large, chosen), small.total, large.total)


def _add_constant(
    found: Matching, rows: Int[Tensor, "r"], columns: Int[Tensor, "c"], n: int, m: int
) -> Matching:
    """Return the matching of some rows and columns, with the remaining ones matched in order."""
    left, right = rows[found.left], columns[found.right]
    free_rows, free_columns = (
        torch.from_numpy(np.setdiff1d(np.arange(total), used.numpy()))
        for total, used in ((n, left), (m, right))
    )
    left = torch.cat([left, free_rows])
    right = torch.cat([right, free_columns[: len(free_rows)]])
    similarity = torch.cat([found.similarity, torch.zeros(len(free_rows), dtype=torch.float64)])
    order = left.argsort()
    return Matching(left[order], right[order], similarity[order], optimal=found.optimal, gap=found.gap)


def correlate(a: Stream, b: Stream) -> Float[Tensor, "Ka Kb"]:
    """Return the Pearson correlations of all units of A with all units of B."""
    return torch.from_numpy(correlate_rows(a, _sort_by_unit(a), b, np.arange(a.total)))


def correlate_rows(
    a: Stream, by_unit: tuple[np.ndarray, np.ndarray, np.ndarray], b: Stream, chosen: np.ndarray
) -> np.ndarray:
    """Return the Pearson correlations of the chosen units of A with all units of B, in double precision."""
    found = np.zeros((len(chosen), b.total))
    mean, scale = a.moments
    of_b = b.first, b.units, b.values, *b.moments
    _correlate(chosen, *by_unit, mean[chosen], scale[chosen], *of_b, a.samples, found)
    return found


def correlate_pairs(
    a: Stream, b: Stream, left: Int[Array, "n"], right: Int[Array, "n"]
) -> Float[Tensor, "n"]:
    """Return the Pearson correlation of unit left[i] of A with unit right[i] of B, for every i."""
    _check_samples(a, b)
    chosen, others = (np.asarray(side, dtype=np.int64) for side in (left, right))
    products = np.zeros(len(chosen))
    _add_pair_products(chosen, others, *_sort_by_unit(a), *_sort_by_unit(b), products)
    (mean_a, scale_a), (mean_b, scale_b) = a.moments, b.moments
    centred = products / a.samples - mean_a[chosen] * mean_b[others]
    return torch.from_numpy(np.clip(centred * scale_a[chosen] * scale_b[others], -1.0, 1.0))


def _sort_by_unit(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the entries sorted by unit: where each unit's entries start, their samples, and their values."""
    order = np.argsort(stream.units, kind="stable")
    samples = np.repeat(np.arange(stream.samples, dtype=np.int32), np.diff(stream.first))
    first = np.searchsorted(stream.units[order], np.arange(stream.total + 1))
    return first, samples[order], stream.values[order]


# A compiled loop: a product of sparse matrices would take as much memory as a dense one. Each row is finished
# while it is in cache.
@numba.njit(cache=True, nogil=True)
@no_type_check
def _correlate(
    chosen,
    first_a,
    samples,
    values_a,
    mean_a,
    scale_a,
    first_b,
    units_b,
    values_b,
    mean_b,
    scale_b,
    count,
    found,
):
    for r in range(len(chosen)):
        row, mean, scale = found[r], mean_a[r], scale_a[r]
        for e in range(first_a[chosen[r]], first_a[chosen[r] + 1]):
            i, value = samples[e], np.float64(values_a[e])
            for t in range(first_b[i], first_b[i + 1]):
                row[units_b[t]] += value * values_b[t]
        for j in range(len(row)):
            centred = row[j] / count - mean * mean_b[j]
            row[j] = min(max(centred * scale * scale_b[j], -1.0), 1.0)


@numba.njit(cache=True, nogil=True)
@no_type_check
def _add_pair_products(chosen, others, first_a, samples_a, values_a, first_b, samples_b, values_b, products):
    for r in range(len(chosen)):
        t, end = first_b[others[r]], first_b[others[r] + 1]
        for e in range(first_a[chosen[r]], first_a[chosen[r] + 1]):
            while t < end and samples_b[t] < samples_a[e]:
                t += 1
            if t < end and samples_b[t] == samples_a[e]:
                products[r] += np.float64(values_a[e]) * values_b[t]
