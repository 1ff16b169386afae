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
    """Return the entries with nonzero `active` and value, by turns of `turn` samples, then by units.

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
        samples, found = range(np.uint64(i * turn), np.uint64(min(size, (i + 1) * turn))), starts[i]
        for b in samples:
            for t in range(np.uint64(width)):
                found[np.uint64(units[b, t])] += (active[b, t] != 0) & (values[b, t] != 0)
        for unit in range(count):
            cursor[unit] = done
            done += found[unit]
            found[unit] = cursor[unit]
        found[count] = done
        for b in samples:
            for t in range(np.uint64(width)):
                if (active[b, t] != 0) & (values[b, t] != 0):
                    unit = np.uint64(units[b, t])
                    place = np.uint64(cursor[unit])
                    picked[place], owners[place] = values[b, t], b
                    cursor[unit] = place + np.uint64(1)
    return starts, picked[:done], owners[:done]


# --- the passes over prefixes -----------------------------------------------------------------------
# They follow each sample over its active units, in blocks of COLUMNS columns: what changes from one unit to
# the next, the residual and a sum of residuals, stays in registers. Samples take turns after every tile of
# units, whose atoms stay in a cache: those of a block are stored together, as rows of (C, K * COLUMNS). Rows
# are padded to whole blocks.


@compiled()
def find_starts(values, units, power, starts):
    """Compute where the nonzero entries of each sample begin in the order of `by_tile`.

    Return False, with `starts` (tiles, B + 1) undefined, if units are not in order in each sample.
    """
    size, width = values.shape
    starts[:] = 0
    for b in range(size):
        tile, number, last = 0, 0, np.int64(-1)
        for t in range(width):
            if values[b, t] != 0:
                unit = units[b, t]
                if unit < last:
                    return False
                last = unit
                if unit >> power != tile:
                    starts[tile, b] = number
                    tile, number = unit >> power, 0
                number += 1
        starts[tile, b] = number
    done = 0
    for tile in range(len(starts)):
        for b in range(size):
            done += starts[tile, b]
            starts[tile, b] = done - starts[tile, b]
        starts[tile, size] = done
    return True


@compiled()
def by_tile(values, units, mass, power, starts):
    """Return the nonzero entries in the order of tiles of 2^power units, then of samples, then of units.

    `head` (B) has the weight of x itself. The entries of sample b in a tile are the range starts[tile, b]..
    starts[tile, b + 1] of `slots` (positions in the flattened code), `active` (units), `picked` (values) and
    `weights` (of the residual after each entry). `mass` is S(j), which decreases with j. `find_starts`
    computes `starts`.
    """
    size, width, done = len(values), np.uint64(values.shape[1]), starts[-1, -1]
    slots, active = np.empty(done, np.int32), np.empty(done, np.int32)
    picked, weights = np.empty(done, values.dtype), np.empty(done, values.dtype)
    head = np.empty(size, values.dtype)
    for b in range(np.uint64(size)):
        after, tile, place = 0.0, np.uint64(len(starts)), np.uint64(0)
        for left in range(width):
            t = width - np.uint64(1) - left
            if values[b, t] != 0:
                unit = np.uint64(units[b, t])
                if unit >> np.uint64(power) != tile:
                    tile = unit >> np.uint64(power)
                    place = np.uint64(starts[tile, b + np.uint64(1)])
                place -= np.uint64(1)
                here = mass[unit]
                slots[place], active[place] = b * width + t, unit
                picked[place], weights[place] = values[b, t], here - after
                after = here
        head[b] = mass[0] - after
    return head, slots, active, picked, weights


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

    `bits` is `pre` viewed as integers, and `values` is the output viewed as such. The row is folded into a
    few lines, one below the other; the maxima of the columns give a threshold that at least k entries reach,
    but not many more, and only columns that reach it are searched again. If fewer than k are positive, the
    rest is padding. Every search starts from the result of the row before.
    """
    count = pre.shape[1]
    columns = -(-max(4 * k, count // 16) // 8) * 8
    columns = columns if 2 * columns < count else count
    top = np.empty(columns, bits.dtype)
    hot = np.empty(columns + 1, np.uint32)  # unsigned, to avoid checks for negative indices
    found = np.empty(count + columns + 1, bits.dtype)
    place = np.empty(count + columns + 1, np.uint32)
    floor = least = bits.dtype.type(1)
    for b in range(first, last):
        add_bias(pre[b], bits[b], bias)
        if columns < count:
            column_maxima(bits[b], top)
            floor = kth_largest(top, columns, k, k // 8, 1, floor)
            n = at_least(bits[b], top, floor, hot, found, place)
        else:
            floor = kth_largest(bits[b], count, k, k // 8, 1, floor)
            n = reaching(bits[b], floor, found, place)
        least = kth_largest(found, n, k, 0, floor, least)
        write_top(found, place, n, least, values[b], units[b])


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


@compiled()
def reaching(row, floor, found, place):
    """Do the same as `at_least` without looking at columns first."""
    n = np.uint32(0)
    for i in range(np.uint32(len(row))):
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
def kth_largest(bits, n, k, slack, low, guess):
    """Return a number >= `low` that k to k + slack of the n numbers reach, or more in case of ties.

    If fewer than k reach `low`, return `low`, which is at least 1. The search begins at `guess` and moves
    away from it in growing steps, until the number is between two known ones, which it bisects.
    """
    high = 1 + max(low, bits[:n].max()) if n else low
    reached, step, middle = n, 2**16, guess
    while high - low > 1 and reached > k + slack:
        if not low < middle < high:
            middle = low + (high - low) // 2
        reaching = count_reaching(bits, n, middle)
        if reaching >= k:
            low, reached = middle, reaching
            middle += step
        else:
            high = middle
            middle -= step
        step *= 4
    return bits.dtype.type(low)


@compiled()
def count_reaching(bits, n, least):
    """Return how many of the n numbers reach `least`."""
    least, total = bits.dtype.type(least), np.int32(0)
    for i in range(n):
        total = np.int32(total + (bits[i] >= least))  # four bytes, as wide as the numbers
    return total


@compiled()
def write_top(found, place, n, least, values, units):
    """Write the largest of the n found entries, down to `least`, in their order; pad what is missing."""
    k = len(values)
    above = count_reaching(found, n, least + 1)
    ties, t = k - above, np.uint32(0)
    for i in range(np.uint32(n)):
        here = found[i]
        kept = (here > least) | ((here == least) & (ties > 0))
        ties -= here == least
        found[t], place[t] = here, place[i]
        t += np.uint32(kept)
    for i in range(k):
        values[i] = found[i] if i < t else 0
        units[i] = place[i] if i < t else 0
