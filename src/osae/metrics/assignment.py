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
from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from osae.arrays import Array, as_tensor
from osae.metrics import matching_loops
from osae.metrics.matching import Matching, check_dictionaries, cosine, match, unit_rows

CERTIFIED = 1e-6  # relative gap up to which a matching counts as optimal

_DENSE_PAIRS = 1024**2  # pairs up to which scipy's dense solver is as fast
_FALLBACK_PAIRS = 8192**2  # pairs up to which the dense solver (1.5 GB) takes over what was not settled
_CANDIDATES = 32  # c: fewer take more rounds, more make each round slower
_BLOCK_ROWS = 256  # the largest array besides the dictionaries is this times m
_ROUNDS = 100  # a limit for dictionaries that are all near ties; the certificate holds either way

Progress = Callable[[int, float], None]


def match_atoms(
    a: Float[Array, "Ka d"],
    b: Float[Array, "Kb d"],
    *,
    absolute: bool = False,
    method: Literal["auto", "dense", "sparse"] = "auto",
    progress: Progress | None = None,
) -> Matching:
    """Return the one-to-one matching of atoms with the greatest total cosine (|cosine| if `absolute`).

    Every unit of the smaller dictionary is matched. "dense" holds all pairs and uses scipy's solver, "sparse"
    never holds them and certifies its result with a gap. "auto" chooses the faster one, and turns to the
    dense solver where many equal atoms keep the sparse one from an optimum.
    `progress(round, share)` is called as the rows of each round are done.
    """
    a, b = as_tensor(a, "a"), as_tensor(b, "b")
    check_dictionaries(a, b)
    if method not in ("auto", "dense", "sparse"):
        raise ValueError(f"method={method!r}: give 'auto', 'dense' or 'sparse'.")
    if method == "dense" or (method == "auto" and len(a) * len(b) <= _DENSE_PAIRS):
        return match(cosine(a, b, absolute=absolute))
    _load_loops()
    swapped = len(a) > len(b)
    rows, columns = (unit_rows(side).contiguous().numpy() for side in ((b, a) if swapped else (a, b)))
    problem = matching_loops.make_problem(rows, columns, _CANDIDATES, absolute=absolute)
    _solve(problem, progress)
    found = _certify(problem, swapped=swapped)
    if method == "auto" and not found.optimal and len(a) * len(b) <= _FALLBACK_PAIRS:
        return match(cosine(a, b, absolute=absolute))
    return found


def _solve(problem: matching_loops.Problem, progress: Progress | None) -> None:
    """Run rounds until every row is settled: no column but its candidates can be better than its u."""
    single = problem.rows.astype(np.float32), problem.columns.astype(np.float32)
    margin, fine = (_product_error(problem, dtype) for dtype in (np.float32, np.float64))
    for turn in range(_ROUNDS):
        excess = problem.ceiling - problem.u
        # Ties closer than single precision can resolve are settled in double precision, once and for all.
        close = excess <= 2 * margin
        coarse_rows, fine_rows = np.flatnonzero(~close), np.flatnonzero(close & (excess > 8 * fine))
        done, total = 0, len(coarse_rows) + len(fine_rows)
        if total == 0:
            return
        for chosen, sides, error in (
            (coarse_rows, single, margin),
            (fine_rows, (problem.rows, problem.columns), fine),
        ):
            for start in range(0, len(chosen), _BLOCK_ROWS):
                block = chosen[start : start + _BLOCK_ROWS]
                matching_loops.place_rows(problem, block, _products(*sides, block, problem.absolute), error)
                done += len(block)
                if progress is not None:
                    progress(turn, done / total)
        if len(problem.u) < len(problem.v):
            _empty_columns(problem, *single, margin)


def _products(rows: np.ndarray, columns: np.ndarray, chosen: np.ndarray, absolute: bool) -> np.ndarray:
    """Return the cosines of the chosen rows with all columns, as doubles whatever they were computed in."""
    # numpy, not torch: torch may be set to compute single-precision products in half precision.
    products = (rows[chosen] @ columns.T).astype(np.float64)
    return np.abs(products, out=products) if absolute else products


def _product_error(problem: matching_loops.Problem, dtype: type) -> float:
    """Return a bound on the error of computed cosines.

    In any order of summation |fl(x.y) - x.y| <= d e/(1 - d e) sum |x_l y_l|, where e is half the machine
    precision and the sum at most 1; the 16 are for rounding the entries and for subtracting prices.
    """
    return 1.01 * (problem.rows.shape[1] + 16) * float(np.finfo(dtype).eps) / 2


def _empty_columns(
    problem: matching_loops.Problem, rows: np.ndarray, columns: np.ndarray, margin: float
) -> None:
    """Lower the prices of unmatched columns to zero, and raise the ceilings where prices fell."""
    before = problem.v.copy()
    places = problem.candidates.ravel()
    entry = np.argsort(places, kind="stable")
    first = np.searchsorted(places[entry], np.arange(len(problem.v) + 1))
    matching_loops.lower_prices(problem, first, entry)
    fell = np.flatnonzero(problem.v < before)
    if len(fell) == 0:
        return
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = np.arange(start, min(start + _BLOCK_ROWS, len(rows)))
        above = _products(rows, columns[fell], block, problem.absolute) - problem.v[fell]
        problem.ceiling[block] = np.maximum(problem.ceiling[block], above.max(1) + margin)


def _certify(problem: matching_loops.Problem, *, swapped: bool) -> Matching:
    """Return the matching found, with the gap between its total and the bound on every total."""
    similarity = np.einsum("nd,nd->n", problem.rows, problem.columns[problem.column_of])
    similarity = np.abs(similarity) if problem.absolute else similarity
    u = (problem.values - problem.v[problem.candidates]).max(1)
    bound = float(np.maximum(u, problem.ceiling).sum() + problem.v.sum())
    total = float(similarity.sum())
    gap = max(0.0, bound - total) / max(abs(total), 1.0)
    rows, columns = np.arange(len(u)), problem.column_of
    if swapped:
        order = np.argsort(columns)
        rows, columns, similarity = columns[order], rows[order], similarity[order]
    left, right, similarity = (torch.from_numpy(part) for part in (rows, columns, similarity))
    return Matching(left, right, similarity, optimal=gap <= CERTIFIED, gap=gap)


@cache
def _load_loops() -> None:
    """Load the compiled loops; print a notice if compiling them first takes more than a second."""

    def notice() -> None:
        if matching_loops.place_rows.stats.cache_misses:
            print("osae: compiling the matcher, once on this machine ...", file=sys.stderr, flush=True)

    timer = threading.Timer(1.0, notice)
    timer.daemon = True
    timer.start()
    try:
        tiny = matching_loops.make_problem(np.eye(1, 2), np.eye(2), 1, absolute=False)
        _solve(tiny, None)
    finally:
        timer.cancel()


def prepare_matching(units_a: int, units_b: int) -> None:
    """Load what matching dictionaries of these sizes needs, so that threads need not wait for each other."""
    if units_a * units_b > _DENSE_PAIRS:
        _load_loops()
