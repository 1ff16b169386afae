"""The largest pre-activations of a whole batch, from blocks of rows that are visited once.

Shapes: B samples, n rows in a block, K units, N entries that are kept.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

ROOM = 4  # times k: entries of a row examined first; few rows contain more of the largest

Top = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def find_largest(blocks: Iterable[Tensor], top: Top, size: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the size * k largest positive entries of (B, K) numbers as a code, in the order of units.

    `blocks` yields the numbers (n, K) block by block; `top(block, room)` returns the `room` largest entries
    of each row and their columns, and may leave the block with a bias added. The bound is the smallest of the
    largest entries found so far, so it never exceeds the bound of the whole batch. A row whose returned
    entries all reach the bound is searched in full.
    """
    values, places, bound, first, units = [], [], 0.0, 0, 1
    for block in blocks:
        units = block.shape[1]
        best, columns = top(block, min(units, ROOM * k))
        bound = max(bound, kth_largest(torch.cat([*values, best.flatten()]), size * k))
        full = (best.amin(-1) >= bound) & (best.amin(-1) > 0) & (best.shape[1] < units)
        kept = _reaches(best, bound) & ~full.unsqueeze(-1)
        rows, slots = kept.nonzero(as_tuple=True)
        values.append(best[kept])
        places.append((first + rows) * units + columns[rows, slots])
        if bool(full.any()):
            which = full.nonzero().squeeze(-1)
            rest = block[which]
            kept = _reaches(rest, bound)
            rows, found = kept.nonzero(as_tuple=True)
            values.append(rest[kept])
            places.append((first + which[rows]) * units + found)
        first += len(block)
        del block  # before the next one is computed
    return _pack(torch.cat(values), torch.cat(places), size, units, k)


def kth_largest(values: Tensor, count: int) -> float:
    """Return the smallest of the `count` largest positive values; 0 if there are at most `count`."""
    positive = values.detach()[values > 0]
    spare = len(positive) - count
    if spare <= 0:
        return 0.0
    # on a GPU, sort: some releases of torch refuse its own search in deterministic mode
    of_cpu = positive.device.type == "cpu"
    return float(positive.kthvalue(spare + 1).values if of_cpu else positive.sort().values[spare])


def _reaches(values: Tensor, bound: float) -> Tensor:
    """Return which values are positive and at least `bound`; NaN counts, so that it is not hidden."""
    return ((values >= bound) & (values > 0)) | values.isnan()


def _pack(values: Tensor, places: Tensor, size: int, units: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the size * k largest values as a padded code, given their places in a matrix (B, K)."""
    kept = _reaches(values, kth_largest(values, size * k))
    places, order = places[kept].sort()
    values, rows = values[kept][order], places // units
    starts = torch.searchsorted(places, torch.arange(size + 1, device=places.device) * units)
    slots = torch.arange(len(rows), device=rows.device) - starts[rows]
    width = max(1, int(starts.diff().max()) if size else 1)
    code = values.new_zeros(size, width), places.new_zeros(size, width)
    code[0][rows, slots], code[1][rows, slots] = values, places % units
    return code
