"""The nearest units of another dictionary, or of the same one, without the matrix of all pairs.

Shapes: Ka, Kb units, d width.

Blocks of cosines are computed in single precision; the returned ones are recomputed in double precision.
A zero row has no direction: its cosine with every row is 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor

_BLOCK = 2**22  # cosines held at once: 16 MB, small enough to be searched in cache
_REFINED = 4096  # rows in double precision at once


class Neighbours(NamedTuple):
    """The nearest unit of the other side for each unit, its cosine, and the cosine of the second nearest.

    `second` is -1 if there is no second unit.
    """

    nearest: Int[Tensor, "K"]
    cosine: Float[Tensor, "K"]
    second: Float[Tensor, "K"]


class CosineMap:
    """The cosines of all pairs of units, binned if there are many: `largest` has one per cell.

    There are at most `cells` rows for the units of A, and at most `cells` columns for the units of B. They
    start at `np.linspace(0, K, count + 1)`, rounded down.
    """

    def __init__(self, units_a: int, units_b: int, cells: int) -> None:
        down, across = (
            np.linspace(0, units, min(units, cells) + 1).astype(int) for units in (units_a, units_b)
        )
        self._starts = across[:-1]
        self._row = torch.from_numpy(np.searchsorted(down, np.arange(units_a), side="right") - 1)
        self.largest = torch.full((len(down) - 1, len(across) - 1), -1.0)

    def add(self, start: int, block: Float[Tensor, "n Kb"]) -> None:
        """Add the cosines of some units of A, from `start` on, with all units of B."""
        largest = torch.from_numpy(np.maximum.reduceat(block.numpy(), self._starts, axis=1))
        here = self._row[start : start + len(block), None].expand_as(largest)
        self.largest.scatter_reduce_(0, here, largest, "amax")


def find_neighbours(
    a: Float[Array, "Ka d"],
    b: Float[Array, "Kb d"],
    *,
    absolute: bool = False,
    cosines: CosineMap | None = None,
) -> tuple[Neighbours, Neighbours]:
    """Return the nearest units of B for every unit of A, and the nearest of A for every unit of B.

    All cosines are added to the map `cosines`, if one is given.
    """
    rows, columns = _directions(a, "a"), _directions(b, "b")
    ahead, back = _Best(len(rows)), _Best(len(columns))
    for start, block in _blocks(rows, columns, absolute):
        if cosines is not None:
            cosines.add(start, block)
        here = torch.arange(start, start + len(block))
        ahead.put(here, *_two_largest(block, 1))
        back.merge(*_two_largest(block, 0), start)
    return ahead.refine(rows, columns, absolute), back.refine(columns, rows, absolute)


def nearest_inside(
    a: Float[Array, "K d"], chosen: Int[Tensor, "n"] | None = None, *, absolute: bool = False
) -> Float[Tensor, "n"]:
    """Return the cosine of each unit, or each chosen one, with the nearest other unit of its dictionary.

    The cosine is -1 if there is no other unit.
    """
    rows = _directions(a, "a")
    units = torch.arange(len(rows)) if chosen is None else chosen
    found = torch.empty(len(units), dtype=torch.float64)
    for start, block in _blocks(rows[units], rows, absolute):
        here = torch.arange(len(block))
        block[here, units[start : start + len(block)]] = -1.0
        found[start : start + len(block)] = block.amax(1).double()
    return found


def pair_cosines(
    a: Float[Array, "n d"], b: Float[Array, "n d"], *, absolute: bool = False
) -> Float[Tensor, "n"]:
    """Return the cosine of each row of `a` with the same row of `b`, in double precision."""
    return _dot_rows(_directions(a, "a"), _directions(b, "b"), absolute)


def _dot_rows(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"], absolute: bool) -> Float[Tensor, "n"]:
    """Return the product of each row of `a` with the same row of `b`, in double precision."""
    parts = zip(a.split(_REFINED), b.split(_REFINED), strict=True)
    products = torch.cat([torch.einsum("nd,nd->n", one.double(), other.double()) for one, other in parts])
    return products.abs() if absolute else products


def _directions(dictionary: Array, name: str) -> Float[Tensor, "K d"]:
    """Return the rows scaled to length one; zero rows stay zero."""
    rows = as_tensor(dictionary, name).detach().cpu().float()
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


def _blocks(rows: Tensor, columns: Tensor, absolute: bool) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of the first row of each block, and the cosines of its rows with all columns."""
    size = max(1, _BLOCK // len(columns))
    for start in range(0, len(rows), size):
        block = rows[start : start + size] @ columns.T
        yield start, block.abs_() if absolute else block


def _two_largest(block: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index and value of the largest entry along a dimension, and the value of the second largest.

    The block is modified temporarily and restored.
    """
    largest, place = block.max(dim)
    if block.shape[dim] == 1:
        return place, largest, torch.full_like(largest, -1.0)
    places, values = place.unsqueeze(dim), largest.unsqueeze(dim)
    block.scatter_(dim, places, -2.0)
    second = block.amax(dim)
    block.scatter_(dim, places, values)
    return place, largest, second


class _Best:
    """The largest cosine of each unit so far, its index, and the second largest."""

    def __init__(self, units: int) -> None:
        self.place = torch.zeros(units, dtype=torch.int64)
        self.largest, self.second = torch.full((units,), -2.0), torch.full((units,), -1.0)

    def put(self, units: Tensor, place: Tensor, largest: Tensor, second: Tensor) -> None:
        """Set the results for some units."""
        self.place[units], self.largest[units], self.second[units] = place, largest, second

    def merge(self, place: Tensor, largest: Tensor, second: Tensor, start: int) -> None:
        """Merge in the largest cosines of all units with one more block of the other side."""
        better = largest > self.largest
        loser = torch.where(better, self.largest, largest)
        self.second = torch.maximum(torch.maximum(self.second, second), loser)
        self.place = torch.where(better, place + start, self.place)
        self.largest = torch.where(better, largest, self.largest)

    def refine(self, own: Tensor, other: Tensor, absolute: bool) -> Neighbours:
        """Return the neighbours, with their cosines in double precision."""
        cosine = torch.empty(len(own), dtype=torch.float64)
        for part in torch.arange(len(own)).split(_REFINED):
            cosine[part] = _dot_rows(own[part], other[self.place[part]], absolute)
        return Neighbours(self.place, cosine, self.second.double().clamp_min(-1.0))
