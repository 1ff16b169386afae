"""The inner loops of the CPU backend, compiled by numba: plain arrays in, plain arrays out, no torch.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

The loops over the entries of a batch run *unit by unit*, not sample by sample: a unit's atom stays in the
first cache while the samples that use it are processed, and its gradient is summed in place. To this end, the
entries are sorted by unit once (`by_unit`), at a hundredth of the cost of the loops that use them.

A loop writes only to its own rows or columns, so its blocks run on any number of threads with the same result
to the last bit.
"""

import numpy as np
from numba import njit

# Sums may be reordered and fused into multiply-adds; NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}


@njit(nogil=True, cache=True)
def bad_unit(units, count):
    """Return a unit outside 0..count-1, or 0 if there is none."""
    low, high = 0, 0
    for unit in units.ravel():
        low, high = min(low, unit), max(high, unit)
    return high if high >= count else low


@njit(nogil=True, cache=True, fastmath=SUMS)
def dot(a, b):
    """Return the inner product, inlined: numba's own calls BLAS, which is slower for such short rows."""
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True)
def by_unit(values, units, count, samples):
    """Return the nonzero entries, sorted by unit within each group of `samples` samples.

    They are returned as `starts` (groups, count + 1), `slots` and `owners`: the entries of unit j in group s
    are `slots[starts[s, j] : starts[s, j + 1]]`, as positions in the flattened (B, k) code, and the same
    range of `owners` contains their samples.
    """
    size, width = values.shape
    groups = max(1, -(-size // samples))
    starts = np.zeros((groups, count + 1), np.int64)
    slots, owners = np.empty(size * width, np.int64), np.empty(size * width, np.int64)
    done = 0
    for group in range(groups):
        start = starts[group]
        first, last = group * samples, min(size, (group + 1) * samples)
        for b in range(first, last):
            for t in range(width):
                start[units[b, t]] += values[b, t] != 0
        for unit in range(count):
            done += start[unit]
            start[unit] = done - start[unit]
        start[count] = done
        cursor = start.copy()
        for b in range(first, last):
            for t in range(width):
                if values[b, t] != 0:
                    slots[cursor[units[b, t]]] = b * width + t
                    owners[cursor[units[b, t]]] = b
                    cursor[units[b, t]] += 1
    return starts, slots[:done], owners[:done]


@njit(nogil=True, cache=True, fastmath=SUMS)
def prefix_forward(x, values, decoder, mass, start, owners, first, last, cuts, residuals, losses):
    """Follow the residuals of samples first..last-1 over their units, upward, in blocks of columns.

    Block c has the columns cuts[c]..cuts[c + 1] - 1. Each block is summed separately, so sums do not depend
    on which blocks are processed together; wide rows are faster. `values` are in the order of `owners`.
    `residuals` (B, d) gets the last residual and `losses` (blocks, B) the loss of the columns of each block.
    """
    blocks = len(cuts) - 1
    held = np.full(last - first, mass[0])
    norm = np.empty((last - first, blocks))
    for b in range(first, last):
        for c in range(blocks):
            row = residuals[b, cuts[c] : cuts[c + 1]]
            row[:] = x[b, cuts[c] : cuts[c + 1]]
            norm[b - first, c] = dot(row, row)
            losses[c, b] = 0.0
    for unit in range(len(decoder)):
        for entry in range(start[unit], start[unit + 1]):
            b, value = owners[entry], values[entry]
            weight = held[b - first] - mass[unit]
            held[b - first] = mass[unit]
            for c in range(blocks):
                atom = decoder[unit, cuts[c] : cuts[c + 1]]
                row = residuals[b, cuts[c] : cuts[c + 1]]
                total = values.dtype.type(0)
                for i in range(len(row)):
                    rest = row[i] - value * atom[i]
                    row[i] = rest
                    total += rest * rest
                losses[c, b] += weight * norm[b - first, c]
                norm[b - first, c] = total
    for b in range(first, last):
        for c in range(blocks):
            losses[c, b] += held[b - first] * norm[b - first, c]


@njit(nogil=True, cache=True, fastmath=SUMS)
def prefix_backward(
    values, decoder, mass, residuals, upstream, start, slots, owners, first, last, cuts, fresh,
    dx, dvalues, ddecoder,
):  # fmt: skip
    """Follow residuals back, unit by unit downward: gradients of samples first..last-1, in blocks of columns.

    With a_t = sum_{s>=t} w_s r_s the gradients are dz_t = -2 a_t.d, dd_t = -2 z_t a_t and dx = 2 a_0. Blocks
    and `values` are as in `prefix_forward`, `residuals` (B, d) are the last ones, and `dx` (B, d) holds
    -2 a_t in the meantime. `dvalues` (blocks, B * k) gets the part of each block; at padding it is left
    unchanged. `ddecoder` is added to, unless it is `fresh`: then it is set.
    """
    blocks = len(cuts) - 1
    lo, hi = cuts[0], cuts[blocks]
    held = np.zeros(last - first)
    walked = residuals[first:last, lo:hi].copy()
    dx[first:last, lo:hi] = 0
    for unit in range(len(decoder) - 1, -1, -1):
        if fresh:
            ddecoder[unit, lo:hi] = 0
        for entry in range(start[unit], start[unit + 1]):
            b, value = owners[entry], values[entry]
            weight = decoder.dtype.type(-2 * upstream[b] * (mass[unit] - held[b - first]))
            held[b - first] = mass[unit]
            for c in range(blocks):
                atom = decoder[unit, cuts[c] : cuts[c + 1]]
                datom = ddecoder[unit, cuts[c] : cuts[c + 1]]
                row = walked[b - first, cuts[c] - lo : cuts[c + 1] - lo]
                suffix = dx[b, cuts[c] : cuts[c + 1]]
                total = values.dtype.type(0)
                for i in range(len(row)):
                    rest = row[i]
                    step = suffix[i] + weight * rest
                    suffix[i] = step
                    total += step * atom[i]
                    datom[i] += value * step
                    row[i] = rest + value * atom[i]
                dvalues[c, slots[entry]] = total
    for b in range(first, last):
        weight = decoder.dtype.type(-2 * upstream[b] * (mass[0] - held[b - first]))
        row = walked[b - first]
        suffix = dx[b, lo:hi]
        for i in range(hi - lo):
            suffix[i] = -(suffix[i] + weight * row[i])


@njit(nogil=True, cache=True)
def add_parts(parts, first, last, out):
    """Compute out[u] += parts[0, u] + parts[1, u] + ..., in order, for units u = first..last-1."""
    for unit in range(first, last):
        row = out[unit]
        for part in range(len(parts)):
            other = parts[part, unit]
            for i in range(len(row)):
                row[i] += other[i]


@njit(nogil=True, cache=True, fastmath=SUMS)
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


@njit(nogil=True, cache=True, fastmath=SUMS)
def gather_dot(active, units, table, rows, first, last, out):
    """Compute out[b, t] = rows[b] . table[units[b, t]] for samples first..last-1, with 0 at padding."""
    for b in range(first, last):
        for t in range(active.shape[1]):
            out[b, t] = dot(rows[b], table[units[b, t]]) if active[b, t] != 0 else 0


@njit(nogil=True, cache=True)  # in order, without SUMS
def sum_by_unit(values, start, first, last, sums):
    """Compute sums[u] = sum of the values of unit u, for u = first..last-1."""
    for unit in range(first, last):
        total = values.dtype.type(0)
        for entry in range(start[unit], start[unit + 1]):
            total += values[entry]
        sums[unit] = total


@njit(nogil=True, cache=True, fastmath=SUMS)
def scatter_outer(values, start, owners, rows, first, last, out):
    """Compute out[u] = sum of value * rows[b] for units u = first..last-1.

    `values` are in the order of `owners`. Four entries are added at a time, in their order, so that the sum
    is read and written once for the four of them.
    """
    for unit in range(first, last):
        acc = out[unit]
        acc[:] = 0
        begin, end = start[unit], start[unit + 1]
        rest = end - (end - begin) % 4
        for entry in range(begin, rest, 4):
            v0, v1, v2, v3 = values[entry], values[entry + 1], values[entry + 2], values[entry + 3]
            row0, row1 = rows[owners[entry]], rows[owners[entry + 1]]
            row2, row3 = rows[owners[entry + 2]], rows[owners[entry + 3]]
            for i in range(len(acc)):
                acc[i] = (((acc[i] + v0 * row0[i]) + v1 * row1[i]) + v2 * row2[i]) + v3 * row3[i]
        for entry in range(rest, end):
            value, row = values[entry], rows[owners[entry]]
            for i in range(len(acc)):
                acc[i] += value * row[i]


# --- top-k ----------------------------------------------------------------------------------------
# Positive floats sort like their bits read as integers, and NaN (with a clear sign bit) sorts above infinity,
# as in torch.topk. Negative numbers have negative bits and are never selected.


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def column_maxima(row, top):
    """Compute top[i] = the maximum of row[i], row[i + columns], ..."""
    columns = len(top)
    top[:] = row[:columns]
    for base in range(columns, len(row), columns):
        line = row[base : base + columns]
        for i in range(len(line)):
            new, old = line[i], top[i]
            top[i] = new if new > old else old


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True, fastmath=SUMS)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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
