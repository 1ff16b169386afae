"""The compiled loops of the exact matcher: candidates of a row, augmenting paths, falling prices.

Shapes: n rows, m >= n columns, c candidates of each row, d width.

At all times u_i + v_j >= C[i, j] for the candidates j of row i, with equality if they are matched.
"""

import heapq
from typing import NamedTuple, no_type_check

import numba
import numpy as np


class Problem(NamedTuple):
    """An unfinished matching. Partners are -1 where there is none; the arrays are changed in place."""

    rows: np.ndarray  # (n, d) atoms of length one; d is 0 for similarities of another kind
    columns: np.ndarray  # (m, d)
    absolute: bool
    candidates: np.ndarray  # (n, c+2) columns; the last two are the partner and the diagonal
    values: np.ndarray  # (n, c+2) their cosines, known once the row has been placed
    ceiling: np.ndarray  # (n,) no column outside the candidates has C[i, j] - v_j above this
    u: np.ndarray  # (n,)
    v: np.ndarray  # (m,) prices
    column_of: np.ndarray  # (n,)
    row_of: np.ndarray  # (m,)
    distance: np.ndarray  # (m,) infinite between searches
    parent: np.ndarray  # (m,)
    settled: np.ndarray  # (m,) False between searches


def make_problem(rows: np.ndarray, columns: np.ndarray, candidates: int, *, absolute: bool) -> Problem:
    """Return a problem without prices or partners, whose only candidates are the diagonal.

    The diagonal remains a candidate throughout, so a full matching within the candidates always exists.
    """
    n, m = len(rows), len(columns)
    width = min(candidates, m) + 2
    return Problem(
        rows=rows,
        columns=columns,
        absolute=absolute,
        candidates=np.repeat(np.arange(n)[:, None], width, axis=1),
        values=np.full((n, width), np.nan),
        ceiling=np.full(n, np.inf),
        u=np.full(n, -np.inf),
        v=np.zeros(m),
        column_of=np.full(n, -1),
        row_of=np.full(m, -1),
        distance=np.full(m, np.inf),
        parent=np.zeros(m, dtype=np.int64),
        settled=np.zeros(m, dtype=np.bool_),
    )


@numba.njit(cache=True, nogil=True)
@no_type_check
def place_rows(p, chosen, products, margin):
    """Give each chosen row new candidates at the current prices, and the best partner among them.

    Row r of `products` contains the cosines of row chosen[r], each with an error of at most `margin`. The
    cosines of the candidates are computed from the atoms, if there are any. Rows are placed one at a time,
    because similar rows would otherwise all compete for the same few columns.
    """
    for r in range(len(chosen)):
        i = chosen[r]
        _choose(p, i, products[r], margin)
        _evaluate(p, i, products[r])
        p.u[i] = -np.inf
        for s in range(p.candidates.shape[1]):
            p.u[i] = max(p.u[i], p.values[i, s] - p.v[p.candidates[i, s]])
        j = p.column_of[i]
        if j >= 0 and p.values[i, -2] - p.v[j] < p.u[i]:
            p.column_of[i] = p.row_of[j] = -1
        if p.column_of[i] < 0:
            _augment(p, i)


@numba.njit(cache=True)
@no_type_check
def _choose(p, i, products, margin):
    """Set the candidates of row i to the columns with the greatest product minus price, and its ceiling."""
    v = p.v
    count = p.candidates.shape[1] - 2
    least = np.empty(count)  # a heap with the smallest value on top
    place = np.empty(count, np.int64)
    for j in range(count):
        _sift_up(least, place, j, products[j] - v[j])
    for j in range(count, len(v)):
        if products[j] - v[j] > least[0]:
            _sift_down(least, place, j, products[j] - v[j])
    p.ceiling[i] = least[0] + margin if count < len(v) else -np.inf
    p.candidates[i, :count] = place
    p.candidates[i, -2] = p.column_of[i] if p.column_of[i] >= 0 else i


@numba.njit(cache=True)
@no_type_check
def _evaluate(p, i, products):
    """Set the values of the candidates of row i in double precision; without atoms, products are exact."""
    for s in range(p.candidates.shape[1]):
        j = p.candidates[i, s]
        value = _dot(p.rows[i], p.columns[j]) if p.rows.shape[1] > 0 else products[j]
        p.values[i, s] = abs(value) if p.absolute else value


@numba.njit(cache=True)
@no_type_check
def _sift_up(least, place, j, x):
    at = j
    while at > 0 and least[(at - 1) // 2] > x:
        least[at], place[at] = least[(at - 1) // 2], place[(at - 1) // 2]
        at = (at - 1) // 2
    least[at], place[at] = x, j


@numba.njit(cache=True)
@no_type_check
def _sift_down(least, place, j, x):
    at, child = 0, 1
    while child < len(least):
        if child + 1 < len(least) and least[child + 1] < least[child]:
            child += 1
        if x <= least[child]:
            break
        least[at], place[at] = least[child], place[child]
        at, child = child, 2 * child + 1
    least[at], place[at] = x, j


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _dot(x, y):
    total = 0.0
    for t in range(len(x)):
        total += x[t] * y[t]
    return total


@numba.njit(cache=True)
@no_type_check
def _augment(p, start):
    """Match row `start` along the shortest path to an unmatched column; prices along the path rise.

    Dijkstra over columns: a step from row i to column j costs u_i + v_j - C[i, j] >= 0, and going
    from a matched column to its row costs nothing.
    """
    distance, row_of = p.distance, p.row_of
    heap = [(0.0, np.int64(0)) for _ in range(0)]  # an empty list whose type numba can infer
    touched = [np.int64(0) for _ in range(0)]
    i, base, nearest = start, 0.0, np.inf
    while True:
        for s in range(p.candidates.shape[1]):
            j = p.candidates[i, s]
            to = base + max(0.0, p.u[i] + p.v[j] - p.values[i, s])
            if to < distance[j] and to < nearest:
                if distance[j] == np.inf:
                    touched.append(j)
                distance[j], p.parent[j] = to, i
                heapq.heappush(heap, (to, j))
                if row_of[j] < 0:
                    nearest = to
        base, j = heapq.heappop(heap)
        while p.settled[j]:
            base, j = heapq.heappop(heap)
        if row_of[j] < 0:
            break
        p.settled[j] = True
        i = row_of[j]
    p.u[start] -= base
    for k in touched:
        if p.settled[k]:
            p.u[row_of[k]] -= base - distance[k]
            p.v[k] += base - distance[k]
        distance[k] = np.inf
        p.settled[k] = False
    i = -1
    while i != start:
        i = p.parent[j]
        row_of[j] = i
        p.column_of[i], j = j, p.column_of[i]


@numba.njit(cache=True, nogil=True)
@no_type_check
def lower_prices(p, first, entry):
    """Lower the price of every unmatched column to zero; all rows must be matched.

    Column j is a candidate of the rows entry[first[j]:first[j+1]] // (c+2), at position entry % (c+2) of
    each.
    """
    for j in range(len(p.v)):
        if p.row_of[j] < 0 and p.v[j] > 0:
            _lower(p, j, first, entry)


@numba.njit(cache=True)
@no_type_check
def _lower(p, start, first, entry):
    """Lower the price of column `start` until it, or a column that gives up its row to it, costs nothing.

    Dijkstra over columns: column j may take a row i for u_i + v_j - C[i, j], which then leaves its previous
    column. The column whose price reaches zero first ends the path and stays unmatched.
    """
    distance, width = p.distance, p.candidates.shape[1]
    heap = [(0.0, start)]
    touched = [start]
    distance[start], fall, end = 0.0, p.v[start], start
    while len(heap) > 0:
        base, j = heapq.heappop(heap)
        if base >= fall:
            break
        if p.settled[j]:
            continue
        p.settled[j] = True
        if base + p.v[j] < fall:
            fall, end = base + p.v[j], j
        for e in entry[first[j] : first[j + 1]]:
            i = e // width
            left = p.column_of[i]
            to = base + max(0.0, p.u[i] + p.v[j] - p.values[i, e % width])
            if to < distance[left] and to < fall:
                if distance[left] == np.inf:
                    touched.append(left)
                distance[left], p.parent[left] = to, j
                heapq.heappush(heap, (to, left))
    for k in touched:
        if p.settled[k] and distance[k] < fall:
            p.v[k] -= fall - distance[k]
            if p.row_of[k] >= 0:
                p.u[p.row_of[k]] += fall - distance[k]
        distance[k] = np.inf
        p.settled[k] = False
    _pass_rows(p, start, end)


@numba.njit(cache=True)
@no_type_check
def _pass_rows(p, start, end):
    """Pass each row on the path to the preceding column, from `end`, which becomes free, back to `start`."""
    j, i = end, p.row_of[end]
    p.v[end], p.row_of[end] = 0.0, -1
    while j != start:
        j = p.parent[j]
        p.column_of[i] = j
        p.row_of[j], i = i, p.row_of[j]
