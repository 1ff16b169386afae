"""The best one-to-one matching of two dictionaries: exact at any size, without the matrix of all pairs.

Shapes: n <= m units (the smaller dictionary's are the rows), d width, c candidates of each row.

With C the cosines, the matching with the greatest total and its dual, prices v >= 0 of the columns, are

    max sum_i C[i, mu(i)]  =  min sum_i u_i + sum_j v_j   over   u_i + v_j >= C[i, j] for all pairs,

with v_j = 0 for unmatched columns. Only pairs near C[i, j] = u_i + v_j matter, so each row keeps the c
columns with the greatest C[i, j] - v_j as its candidates, together with a *ceiling*: a proven bound on
C[i, j] - v_j over all other columns, obtained in the same pass over the row. While some rows' ceilings are
above their u_i:

1. compute the cosines of those rows with all columns, a block of rows at a time;
2. row by row, choose new candidates and the ceiling at the current prices, and match the row within its
   candidates by a shortest augmenting path, which keeps u_i + v_j >= C[i, j] (see `matching_loops`).

Paths only raise prices, which leaves ceilings valid, so most rows are visited once. Whatever the prices,
sum_i max(u_i, ceiling_i) + sum_j v_j bounds the total of *every* matching: this is the certificate.

Cosines of candidates are in double precision. Blocks are in single precision, with a proven bound on their
error added to the ceiling; rows too close to call are revisited in double precision.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from osae.arrays import Array, HasDecoder, as_decoder
from osae.metrics import matching_loops
from osae.metrics.matching import Matching, check_dictionaries, cosine, match, unit_rows

CERTIFIED = 1e-6  # relative gap up to which a matching counts as optimal

DENSE_PAIRS = 1024**2  # pairs up to which scipy's dense solver is as fast
FALLBACK_PAIRS = 8192**2  # pairs up to which the dense solver (1.5 GB) takes over from the sparse one
_CANDIDATES = 32  # c: fewer take more rounds, more make each round slower
_BLOCK_ROWS = 256  # the largest array besides the dictionaries is this times m
_ROUNDS = 100  # a limit for dictionaries that are all near ties; the certificate holds either way

ALL = slice(None)

_loading = threading.Lock()

Progress = Callable[[int, float], None]


def match_atoms(
    a: Float[Array, "Ka d"] | HasDecoder,
    b: Float[Array, "Kb d"] | HasDecoder,
    *,
    absolute: bool = False,
    method: Literal["auto", "dense", "sparse"] = "auto",
    progress: Progress | None = None,
) -> Matching:
    """Return the one-to-one matching of atoms with the greatest total cosine (|cosine| if `absolute`).

    Every unit of the smaller dictionary is matched. "dense" holds all pairs and uses scipy's solver, "sparse"
    never holds them and certifies its result with a gap. "auto" chooses the faster one, and falls back to the
    dense solver where many equal atoms keep the sparse one from reaching an optimum. `progress(round, share)`
    is called as the rows of each round are processed.
    """
    a, b = as_decoder(a, "a"), as_decoder(b, "b")
    check_dictionaries(a, b)
    if method not in ("auto", "dense", "sparse"):
        raise ValueError(f"method={method!r}: give 'auto', 'dense' or 'sparse'.")
    if method == "dense" or (method == "auto" and not needs_loops(len(a), len(b))):
        return match(cosine(a, b, absolute=absolute))
    _load_loops()
    swapped = len(a) > len(b)
    rows, columns = (unit_rows(side).contiguous().numpy() for side in ((b, a) if swapped else (a, b)))
    problem = matching_loops.make_problem(rows, columns, _CANDIDATES, absolute=absolute)
    _solve(problem, [_Cosines(rows, columns, absolute, kind) for kind in (np.float32, np.float64)], progress)
    found = _certify(problem, swapped=swapped)
    if method == "auto" and not found.optimal and len(a) * len(b) <= FALLBACK_PAIRS:
        return match(cosine(a, b, absolute=absolute))
    return found


def match_rows(
    rows: Callable[[np.ndarray], np.ndarray], n: int, m: int
) -> tuple[Matching, Float[Tensor, "n"]]:
    """Return the matching of n rows with m >= n columns that has the greatest total similarity.

    `rows` takes the indices of some rows and returns their similarities with all columns, in double
    precision; it must always return the same numbers. The second result is u, the amount that each row adds
    to the total: if none is negative, no matching of fewer rows has a greater total.
    """
    _load_loops()
    nothing = np.empty((n, 0)), np.empty((m, 0))
    problem = matching_loops.make_problem(*nothing, _CANDIDATES, absolute=False)
    _solve(problem, [_Exact(rows)], None)
    return _certify(problem, swapped=False), torch.from_numpy(problem.u)


class _Products(Protocol):
    """A source of the similarities of rows with all columns, and a bound on their error."""

    error: float

    def __call__(self, chosen: np.ndarray, columns: np.ndarray | slice = ...) -> np.ndarray:
        """Return the similarities of the chosen rows with some columns, as doubles."""
        ...


class _Cosines:
    """Cosines of atoms, computed in single or in double precision."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray, absolute: bool, dtype: type) -> None:
        self.rows, self.columns = (side.astype(dtype, copy=False) for side in (rows, columns))
        self.absolute = absolute
        # In any order of summation |fl(x.y) - x.y| <= d e/(1 - d e) sum |x_l y_l|, where e is half the
        # machine precision and the sum is at most 1; the 16 accounts for rounding the entries and subtracting
        # prices.
        self.error = 1.01 * (rows.shape[1] + 16) * float(np.finfo(dtype).eps) / 2

    def __call__(self, chosen: np.ndarray, columns: np.ndarray | slice = ALL) -> np.ndarray:
        # numpy, not torch: torch may be set to compute single-precision products in half precision.
        products = (self.rows[chosen] @ self.columns[columns].T).astype(np.float64)
        return np.abs(products, out=products) if self.absolute else products


class _Exact:
    """Exact similarities; only subtracting prices rounds."""

    error = 8 * float(np.finfo(np.float64).eps)

    def __init__(self, rows: Callable[[np.ndarray], np.ndarray]) -> None:
        self.rows = rows

    def __call__(self, chosen: np.ndarray, columns: np.ndarray | slice = ALL) -> np.ndarray:
        return np.ascontiguousarray(self.rows(chosen)[:, columns])


def _solve(problem: matching_loops.Problem, sources: Sequence[_Products], progress: Progress | None) -> None:
    """Run rounds until every row is settled: no column outside its candidates can be better than its u.

    `sources` are ordered from coarse to fine. Ties closer than a source can resolve are settled by the next
    one.
    """
    for turn in range(_ROUNDS):
        excess = problem.ceiling - problem.u
        chosen = _choose_rows(excess, sources)
        done, total = 0, sum(map(len, chosen))
        if total == 0:
            return
        for rows, source in zip(chosen, sources, strict=True):
            for start in range(0, len(rows), _BLOCK_ROWS):
                block = rows[start : start + _BLOCK_ROWS]
                matching_loops.place_rows(problem, block, source(block), source.error)
                done += len(block)
                if progress is not None:
                    progress(turn, done / total)
        if len(problem.u) < len(problem.v):
            _empty_columns(problem, sources[0])


def _choose_rows(excess: np.ndarray, sources: Sequence[_Products]) -> list[np.ndarray]:
    """Return the rows for each source to visit: those that it can resolve, but no coarser source can."""
    above, found = np.full(len(excess), True), []
    for source in sources[:-1]:
        visits = above & (excess > 2 * source.error)
        found.append(np.flatnonzero(visits))
        above &= ~visits
    found.append(np.flatnonzero(above & (excess > 8 * sources[-1].error)))
    return found


def _empty_columns(problem: matching_loops.Problem, source: _Products) -> None:
    """Lower the prices of unmatched columns to zero, and raise the ceilings where prices fell."""
    before = problem.v.copy()
    places = problem.candidates.ravel()
    entry = np.argsort(places, kind="stable")
    first = np.searchsorted(places[entry], np.arange(len(problem.v) + 1))
    matching_loops.lower_prices(problem, first, entry)
    fell = np.flatnonzero(problem.v < before)
    if len(fell) == 0:
        return
    for start in range(0, len(problem.u), _BLOCK_ROWS):
        block = np.arange(start, min(start + _BLOCK_ROWS, len(problem.u)))
        above = source(block, fell) - problem.v[fell]
        problem.ceiling[block] = np.maximum(problem.ceiling[block], above.max(1) + source.error)


def _certify(problem: matching_loops.Problem, *, swapped: bool) -> Matching:
    """Return the matching found, with the gap between its total and the bound on every total."""
    rows, columns = np.arange(len(problem.u)), problem.column_of
    place = (problem.candidates == columns[:, None]).argmax(1)  # a partner is always a candidate
    similarity = problem.values[rows, place]
    u = (problem.values - problem.v[problem.candidates]).max(1)
    bound = float(np.maximum(u, problem.ceiling).sum() + problem.v.sum())
    total = float(similarity.sum())
    gap = max(0.0, bound - total) / max(abs(total), 1.0)
    if swapped:
        order = np.argsort(columns)
        rows, columns, similarity = columns[order], rows[order], similarity[order]
    left, right, similarity = (torch.from_numpy(part) for part in (rows, columns, similarity))
    return Matching(left, right, similarity, optimal=gap <= CERTIFIED, gap=gap)


def _load_loops() -> None:
    """Load the compiled loops; if several threads need them at once, the others wait for the first."""
    with _loading:
        _compile_loops()


@cache
def _compile_loops() -> None:
    """Compile the loops or load them; print a notice if compiling them takes more than a second."""

    def notice() -> None:
        if matching_loops.place_rows.stats.cache_misses:
            print("osae: compiling the matcher, once on this machine ...", file=sys.stderr, flush=True)

    timer = threading.Timer(1.0, notice)
    timer.daemon = True
    timer.start()
    try:
        tiny = matching_loops.make_problem(np.eye(1, 2), np.eye(2), 1, absolute=False)
        _solve(tiny, [_Cosines(np.eye(1, 2), np.eye(2), False, np.float64)], None)
    finally:
        timer.cancel()


def needs_loops(units_a: int, units_b: int) -> bool:
    """Return whether matching dictionaries of these sizes needs the compiled loops."""
    return units_a * units_b > DENSE_PAIRS


def prepare_matching(units_a: int, units_b: int) -> None:
    """Load what matching dictionaries of these sizes needs, so that threads do not wait for each other."""
    if needs_loops(units_a, units_b):
        _load_loops()
