"""The nearest units of another dictionary, or of the same one, without the matrix of all pairs.

Shapes: Ka, Kb units, d width.

Cosines of blocks are in single precision; those that are returned are computed again in double precision.
A zero row has no direction: its cosine with every row is 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor

_BLOCK = 2**24  # cosines that are held at once: 64 MB


class Neighbours(NamedTuple):
    """For each unit the nearest one of the other side, its cosine, and the cosine of the second nearest.

    `second` is -1 if there is no second unit.
    """

    nearest: Int[Tensor, "K"]
    cosine: Float[Tensor, "K"]
    second: Float[Tensor, "K"]


def find_neighbours(
    a: Float[Array, "Ka d"], b: Float[Array, "Kb d"], *, absolute: bool = False
) -> tuple[Neighbours, Neighbours]:
    """Return the nearest units of B for every unit of A, and the nearest of A for every unit of B."""
    rows, columns = _directions(a, "a"), _directions(b, "b")
    ahead, back = _Best(len(rows)), _Best(len(columns))
    for start, block in _blocks(rows, columns, absolute):
        here = torch.arange(start, start + len(block))
        ahead.put(here, *_two_largest(block, 1))
        back.merge(*_two_largest(block, 0), start)
    return ahead.refine(rows, columns, absolute), back.refine(columns, rows, absolute)


def nearest_inside(
    a: Float[Array, "K d"], chosen: Int[Tensor, "n"] | None = None, *, absolute: bool = False
) -> Float[Tensor, "n"]:
    """Return for each unit, or the chosen ones, the cosine of the nearest other unit of the same dictionary.

    It is -1 for a unit that is alone.
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
    products = torch.einsum("nd,nd->n", a.double(), b.double())
    return products.abs() if absolute else products


def _directions(dictionary: Array, name: str) -> Float[Tensor, "K d"]:
    """Return the rows scaled to length one; zero rows stay zero."""
    rows = as_tensor(dictionary, name).detach().cpu().float()
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


def _blocks(rows: Tensor, columns: Tensor, absolute: bool) -> Iterator[tuple[int, Tensor]]:
    """Yield the cosines of some rows at a time with all columns, and the number of the first row."""
    size = max(1, _BLOCK // len(columns))
    for start in range(0, len(rows), size):
        block = rows[start : start + size] @ columns.T
        yield start, block.abs_() if absolute else block


def _two_largest(block: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return place and value of the largest entry along a dimension, and the value of the second largest.

    The block is changed in between, and is then what it was.
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
    """The largest cosine of each unit so far, where it is, and the second largest."""

    def __init__(self, units: int) -> None:
        self.place = torch.zeros(units, dtype=torch.int64)
        self.largest, self.second = torch.full((units,), -2.0), torch.full((units,), -1.0)

    def put(self, units: Tensor, place: Tensor, largest: Tensor, second: Tensor) -> None:
        """Set what is known of some units."""
        self.place[units], self.largest[units], self.second[units] = place, largest, second

    def merge(self, place: Tensor, largest: Tensor, second: Tensor, start: int) -> None:
        """Add the largest cosines of all units with one more block of the other side's."""
        better = largest > self.largest
        loser = torch.where(better, self.largest, largest)
        self.second = torch.maximum(torch.maximum(self.second, second), loser)
        self.place = torch.where(better, place + start, self.place)
        self.largest = torch.where(better, largest, self.largest)

    def refine(self, own: Tensor, other: Tensor, absolute: bool) -> Neighbours:
        """Return the neighbours, with their cosines in double precision."""
        cosine = torch.empty(len(own), dtype=torch.float64)
        for part in torch.arange(len(own)).split(4096):
            cosine[part] = _dot_rows(own[part], other[self.place[part]], absolute)
        return Neighbours(self.place, cosine, self.second.double().clamp_min(-1.0))
