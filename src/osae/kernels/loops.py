"""The inner loops of the CPU backend, compiled by numba: plain arrays in, plain arrays out, no torch.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

Gradients of dictionaries are sums over the entries of each unit, which are sorted by unit once for this
(`by_unit`), at a hundredth of the cost of the loops that use them.

A loop writes only to its own rows or columns, so its blocks run on any number of threads with the same result
to the last bit.
"""

# pyright does not know that numba passes the first argument of an intrinsic
# pyright: reportCallIssue=false

import hashlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from osae.kernels import registers
from osae.kernels.registers import (
    COLUMNS,
    add_product,
    add_row,
    add_squares,
    add_up,
    load,
    no_sum,
    step_back,
    store,
    zeros,
)

# Sums may be reordered and fused into multiply-adds; NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}
_REGISTERS = hashlib.sha256(pkgutil.get_data(registers.__name__, "registers.py") or b"").hexdigest()[:8]


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function and cache its code, which depends on this file and on `registers`.

    Numba compares only this file with the one that cached code comes from, but it uses the function's
    qualified name in the names of cache files.
    """

    def compile_function(function: Callable[..., Any]) -> Any:
        function.__qualname__ += f"_{_REGISTERS}"
        return njit(nogil=True, cache=True, **options)(function)

    return compile_function


@compiled()
def bad_unit(units, count):
    """Return a unit outside 0..count-1, or 0 if there is none."""
    low, high = 0, 0
    for unit in units.ravel():
        low, high = min(low, unit), max(high, unit)
    return high if high >= count else low


@compiled(fastmath=SUMS)
def dot(a, b):
    """Return the inner product, inlined: numba's own calls BLAS, which is slower for such short rows."""
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled()
def by_unit(active, units, values, count, turn):
    """Return the entries with nonzero `active`, in the order of turns of `turn` samples, then of units.

    The entries of unit j in turn i are the range starts[i, j]..starts[i, j + 1] of `picked`, which has their
    values, and of `owners`, which has their samples.
    """
    size, width = active.shape
    turns = max(1, -(-size // turn))
    starts = np.zeros((turns, count + 1), np.int64)
    cursor = np.empty(count, np.int64)
    picked, owners = np.empty(size * width, values.dtype), np.empty(size * width, np.int32)
    done = 0
    for i in range(turns):
        samples, found = range(i * turn, min(size, (i + 1) * turn)), starts[i]
        for b in samples:
            for t in range(width):
                found[units[b, t]] += active[b, t] != 0
        for unit in range(count):
            cursor[unit] = done
            done += found[unit]
            found[unit] = cursor[unit]
        found[count] = done
        for b in samples:
            for t in range(width):
                if active[b, t] != 0:
                    place = cursor[units[b, t]]
                    picked[place], owners[place] = values[b, t], b
                    cursor[units[b, t]] = place + 1
    return starts, picked[:done], owners[:done]


# --- the passes over prefixes -----------------------------------------------------------------------
# They follow each sample over its active units, in blocks of COLUMNS columns: what changes from one unit to
# the next, the residual and a sum of residuals, stays in registers. Samples take turns after every tile of
# units, whose atoms stay in a cache: those of a block are stored together, as rows of (C, K * COLUMNS). Rows
# are padded to whole blocks.


@compiled()
def by_sample(values, units, mass):
    """Return the nonzero entries of each sample in the order of their units, with the weights of residuals.

    `head` (B) has the weight of x itself. The entries of sample b are the range starts[b]..starts[b + 1] of
    `slots` (positions in the flattened code), `active` (units), `picked` (values) and `weights` (of the
    residual after each entry). `mass` is S(j), which decreases with j.
    """
    size, width = values.shape
    starts = np.zeros(size + 1, np.int64)
    slots, active = np.empty(size * width, np.int32), np.empty(size * width, np.int32)
    done, sorted_already = 0, True
    for b in range(size):
        last = -1
        for t in range(width):
            if values[b, t] != 0:
                unit = units[b, t]
                slots[done], active[done] = b * width + t, unit
                sorted_already &= last <= unit
                last = unit
                done += 1
        starts[b + 1] = done
    if not sorted_already:
        places = np.arange(size * width).reshape(size, width)
        of_units, sorted_slots, owners = by_unit(values, units, places, len(mass), max(1, size))
        cursor = starts[:-1].copy()
        for unit in range(len(mass)):
            for entry in range(of_units[0, unit], of_units[0, unit + 1]):
                b = owners[entry]
                slots[cursor[b]], active[cursor[b]] = sorted_slots[entry], unit
                cursor[b] += 1
    picked, weights = np.empty(done, values.dtype), np.empty(done, values.dtype)
    head, flat = np.empty(size, values.dtype), values.ravel()
    for b in range(size):
        after = 0.0
        for entry in range(starts[b + 1] - 1, starts[b] - 1, -1):
            picked[entry] = flat[slots[entry]]
            here = mass[active[entry]]
            weights[entry] = here - after
            after = here
        head[b] = mass[0] - after
    return head, starts, slots[:done], active[:done], picked, weights


@compiled()
def by_tile(power, count, starts, slots, active, picked, weights):
    """Return the entries in the order of tiles of 2^power units, then of samples, then of units.

    The entries of sample b in tile i are the range starts[i, b]..starts[i, b + 1].
    """
    size, tiles = len(starts) - 1, -(-count >> power)
    of_tiles = np.empty((tiles, size + 1), np.int64)
    for b in range(size):  # their number, for now
        entry = starts[b]
        for i in range(tiles):
            first, end = entry, (i + 1) << power
            while entry < starts[b + 1] and active[entry] < end:
                entry += 1
            of_tiles[i, b] = entry - first
    done = 0
    for i in range(tiles):
        for b in range(size):
            done += of_tiles[i, b]
            of_tiles[i, b] = done - of_tiles[i, b]
        of_tiles[i, size] = done
    found = np.empty_like(slots), np.empty_like(active), np.empty_like(picked), np.empty_like(weights)
    for b in range(size):
        entry = starts[b]
        for i in range(tiles):
            for place in range(of_tiles[i, b], of_tiles[i, b + 1]):
                found[0][place], found[1][place] = slots[entry], active[entry]
                found[2][place], found[3][place] = picked[entry], weights[entry]
                entry += 1
    return of_tiles, found[0], found[1], found[2], found[3]


@compiled()
def prefix_forward(x, atoms, block, first, last, residuals, losses, head, starts, active, picked, weights):
    """Follow the residuals of samples first..last-1 over their units, upward, in one block of columns.

    `head` are the weights of x. `residuals` gets the last residual and `losses` (C, B) the loss of the
    block's columns.
    """
    begin = block * COLUMNS
    for tile in range(len(starts)):
        start = starts[tile]
        for b in range(first, last):
            place = b * x.shape[1] + begin
            rest, sums = load(residuals if tile else x, place), no_sum(x)
            if tile == 0:
                losses[block, b] = 0.0
                sums = add_squares(sums, head[b], rest)
            for entry in range(np.uint64(start[b]), np.uint64(start[b + 1])):
                rest = add_row(rest, -picked[entry], atoms, active[entry] * COLUMNS)
                sums = add_squares(sums, weights[entry], rest)
            store(residuals, place, rest)
            losses[block, b] += add_up(sums)


@compiled()
def prefix_backward(
    residuals, atoms, upstream, block, first, last, dx, dpicked, datoms, head, starts, active, picked, weights
):
    """Follow the residuals of samples first..last-1 back, downward: gradients in one block of columns.

    With a_t = sum_{s>=t} w_s r_s the gradients are dz_t = -2 a_t.d, dd_t = -2 z_t a_t and dx = 2 a_0; `dx`
    holds -2 a_t in the meantime. `dpicked` (C, entries) gets the block's part of the first, and `datoms` the
    sum of the second over these samples.
    """
    walked = np.empty((last - first) * COLUMNS, residuals.dtype)
    datoms[:] = 0
    for tile in range(len(starts) - 1, -1, -1):
        start = starts[tile]
        for b in range(first, last):
            place, here = b * residuals.shape[1] + block * COLUMNS, (b - first) * COLUMNS
            if tile == len(starts) - 1:
                rest, suffix = load(residuals, place), zeros(residuals)
            else:
                rest, suffix = load(walked, here), load(dx, place)
            scale = residuals.dtype.type(-2) * upstream[b]
            for left in range(start[b + 1] - start[b]):
                entry = np.uint64(start[b + 1] - 1 - left)
                suffix, rest, dpicked[block, entry] = step_back(
                    suffix,
                    rest,
                    scale * weights[entry],
                    picked[entry],
                    atoms,
                    datoms,
                    active[entry] * COLUMNS,
                )
            if tile == 0:
                suffix = add_product(suffix, scale * head[b], rest)
                suffix = add_product(zeros(dx), dx.dtype.type(-1), suffix)
            else:
                store(walked, here, rest)
            store(dx, place, suffix)


@compiled()
def add_parts(parts, block, first, last, out):
    """Compute out[u] = parts[0, u] + parts[1, u] + ..., in order, for units first..last-1 and one block."""
    begin, one = block * COLUMNS, out.dtype.type(1)
    width = min(COLUMNS, out.shape[1] - begin)  # smaller if the last block is padded
    for unit in range(first, last):
        here, place = unit * COLUMNS, unit * out.shape[1] + begin
        if width == COLUMNS:
            total = load(parts, here)
            for part in range(1, len(parts)):
                total = add_row(total, one, parts, part * parts.shape[1] + here)
            store(out, place, total)
        else:
            out[unit, begin:] = parts[0, here : here + width]
            for part in range(1, len(parts)):
                out[unit, begin:] += parts[part, here : here + width]


@compiled()
def place_sums(parts, slots, out):
    """Set out[slots[e]] = parts[0, e] + parts[1, e] + ..., in order, and the rest of `out` to zero."""
    out[:] = 0
    for entry in range(len(slots)):
        total = parts[0, entry]
        for part in range(1, len(parts)):
            total += parts[part, entry]
        out[slots[entry]] = total


@compiled(fastmath=SUMS)
def gather_sum(values, active, units, table, first, last, out):
    """Compute out[b] = sum_t values[b, t] table[units[b, t]] over nonzero `active`, for b = first..last-1."""
    for b in range(first, last):
        row = out[b]
        row[:] = 0
        for t in range(values.shape[1]):
            if active[b, t] != 0:
                value = values[b, t]
                atom = table[units[b, t]]
                for i in range(len(row)):
                    row[i] += value * atom[i]


@compiled(fastmath=SUMS)
def gather_dot(active, units, table, rows, first, last, out):
    """Compute out[b, t] = rows[b] . table[units[b, t]] for samples first..last-1, with 0 at padding."""
    for b in range(first, last):
        for t in range(active.shape[1]):
            out[b, t] = dot(rows[b], table[units[b, t]]) if active[b, t] != 0 else 0


@compiled()  # in order, without SUMS
def sum_by_unit(values, starts, sums):
    """Compute sums[u] = sum of the values of unit u, which `by_unit` has sorted."""
    sums[:] = 0
    for start in starts:
        for unit in range(len(sums)):
            for entry in range(start[unit], start[unit + 1]):
                sums[unit] += values[entry]


@compiled(fastmath=SUMS)
def scatter_outer(values, starts, owners, rows, first, last, out):
    """Compute out[u] = sum of value * rows[b] for units u = first..last-1, in the order of samples.

    The rows of a turn, COLUMNS wide, stay in a cache while units take turns.
    """
    width = rows.shape[1]
    whole = width // COLUMNS * COLUMNS
    for begin in range(0, whole, COLUMNS):
        for turn in range(len(starts)):
            start = starts[turn]
            for unit in range(first, last):
                place = unit * width + begin
                sums = load(out, place) if turn else zeros(rows)
                for entry in range(np.uint64(start[unit]), np.uint64(start[unit + 1])):
                    sums = add_row(sums, values[entry], rows, np.int64(owners[entry]) * width + begin)
                store(out, place, sums)
    if whole < width:
        out[first:last, whole:] = 0
        for start in starts:
            for unit in range(first, last):
                left = out[unit, whole:]
                for entry in range(start[unit], start[unit + 1]):
                    value, row = values[entry], rows[owners[entry], whole:]
                    for i in range(len(left)):
                        left[i] += value * row[i]


# --- top-k ----------------------------------------------------------------------------------------
# Positive floats sort like their bits read as integers, and NaN (with a clear sign bit) sorts above infinity,
# as in torch.topk. Negative numbers have negative bits and are never selected.


@compiled()
def select_top(pre, bits, bias, k, first, last, values, units):
    """Find the k largest positive entries of rows first..last-1 of `pre` + `bias`, in the order of units.

    `bits` is `pre` viewed as integers. The row is folded into a few lines, one below the other; the maxima of
    the columns give a threshold that at least k entries reach, but not many more, and only columns that reach
    it are searched again. If fewer than k are positive, the rest is padding.
    """
    count = pre.shape[1]
    columns = -(-max(4 * k, count // 16) // 8) * 8
    columns = columns if 2 * columns < count else count
    top = np.empty(columns, bits.dtype)
    hot = np.empty(columns + 1, np.uint32)  # unsigned, to avoid checks for negative indices
    found = np.empty(count + columns + 1, bits.dtype)
    place = np.empty(count + columns + 1, np.uint32)
    for b in range(first, last):
        add_bias(pre[b], bits[b], bias)
        column_maxima(bits[b], top)
        floor = kth_largest(top, columns, k, k // 8)
        n = at_least(bits[b], top, floor, hot, found, place)
        write_top(pre[b], found, place, n, k, values[b], units[b])


@compiled()
def column_maxima(row, top):
    """Compute top[i] = the maximum of row[i], row[i + columns], ..."""
    columns = len(top)
    top[:] = row[:columns]
    for base in range(columns, len(row), columns):
        line = row[base : base + columns]
        for i in range(len(line)):
            new, old = line[i], top[i]
            top[i] = new if new > old else old


@compiled()
def at_least(row, top, floor, hot, found, place):
    """Return how many entries reach `floor`; write them to `found` and their indices to `place`, in order."""
    columns, last = np.uint32(len(top)), np.uint32(len(row) - 1)
    hots = np.uint32(0)
    for i in range(columns):  # always write: an entry below the floor is overwritten by the next
        hot[hots] = i
        hots += np.uint32(top[i] >= floor)
    n = np.uint32(0)
    for base in range(np.uint32(0), np.uint32(len(row)), columns):
        for h in range(hots):
            i = base + hot[h]
            if i <= last:
                found[n] = row[i]
                place[n] = i
                n += np.uint32(row[i] >= floor)
    return n


@compiled(fastmath=SUMS)
def add_bias(row, bits, bias):
    """Add `bias` to `row` in place, and clear the sign of NaN so that it sorts above everything."""
    total = row.dtype.type(0)
    for i in range(len(row)):
        shifted = row[i] + bias[i]
        row[i] = shifted
        total += shifted
    if not np.isfinite(total):
        for i in range(len(row)):
            if np.isnan(row[i]):
                bits[i] &= np.iinfo(bits.dtype).max - 1  # the last bit too, so that + 1 does not overflow


@compiled()
def kth_largest(bits, n, k, slack):
    """Return a number >= 1 that k to k + slack of the n numbers reach, or more in case of ties.

    If fewer than k are positive, return 1.
    """
    low, high = 1, 1 + max(0, bits[:n].max()) if n else 1
    reached = n
    while high - low > 1 and reached > k + slack:
        middle = low + (high - low) // 2
        at = bits.dtype.type(middle)
        reaching = 0
        for i in range(n):
            reaching += bits[i] >= at
        if reaching >= k:
            low, reached = middle, reaching
        else:
            high = middle
    return bits.dtype.type(low)


@compiled()
def write_top(row, found, place, n, k, values, units):
    """Write the k largest of the n found entries, in their order, padded if there are fewer."""
    least = kth_largest(found, n, k, 0)
    above = 0
    for i in range(n):
        above += found[i] > least
    ties, t = k - above, 0
    for i in range(n):
        if found[i] > least or (found[i] == least and ties > 0):
            ties -= found[i] == least
            values[t] = row[place[i]]
            units[t] = place[i]
            t += 1
    values[t:] = 0
    units[t:] = 0
