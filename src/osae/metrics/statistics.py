"""How reliable a mean over training runs is: intervals, differences between methods, tests.

Shapes: S runs (seeds) of one method; A, B runs on two sides that are compared with each other.

A mean of one value per run has a Student interval. Pairs of runs are not independent: the 45 pairs of 10 runs
contain no more than 10 runs. For one value per pair, the model is

    y_ij = mu + a_i + a_j + e_ij ,   Var a = s_a^2 (runs),  Var e = s_e^2 (pairs),

in which the mean over all P = S(S-1)/2 pairs has variance 4 s_a^2 / S + s_e^2 / P. Both components follow
from an analysis of variance, whose mean squares have expectations

    E[MS_a] = s_e^2 + (S-2) s_a^2   with S-1 degrees of freedom,
    E[MS_e] = s_e^2                 with S(S-3)/2 ,

so F = MS_a / MS_e shows whether runs differ. If they do, leaving out one run at a time (the jackknife) gives
the error, 4 MS_a / (S(S-2)) with S-1 degrees of freedom; if they do not, the pairs are independent, and the
error is their pooled variance over P, with P-1. Between F = 0.7 and 1.3 the two are blended, since a switch
would make the interval jump. Three runs cannot distinguish the two cases (see `_THREE_RUNS`); two runs make
one pair, which has no interval. Runs on two sides have y_ij = mu + a_i + b_j + e_ij, each with its own F,
blended between 1 and 2.

See `docs/statistics.md` for the coverage of these intervals in simulations.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from osae.results.base import Interval, Over

LEVEL = 0.95

# The three pairs of three runs cannot distinguish s_a from s_e: an interval that covers 95.0 % of the time if
# runs differ covers 98.7 % if only pairs do. This factor on its width makes it 93.1 % and 98.1 %; one for
# 98.0 % in the second case would make it 92.7 % in the first (docs/statistics.md).
_THREE_RUNS = 0.84
_RAMP = (0.7, 1.3)  # ratios of mean squares between which runs start to count
_RAMP_CROSSED = (1.0, 2.0)  # the same with two sides, either of which may seem to vary by chance
_THREE_CROSSED = 0.95  # on the width if a single degree of freedom is left for pairs: three runs, or two


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the degrees of freedom of that error.

    `runs` is the number of independent runs behind it. Tests use the `cautious` error, if there is one, with
    at most `runs` - 1 degrees of freedom: between equal methods, they must not be wrong too often, whether
    runs or pairs vary.
    """

    mean: float
    error: float
    freedom: float
    runs: int
    cautious: float | None = None

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the interval that covers the true mean with this probability."""
        from scipy.special import stdtrit

        half = self.error * float(stdtrit(self.freedom, (1 + level) / 2))
        return self.mean - half, self.mean + half

    def p_value(self) -> float:
        """Return the two-sided p-value of the hypothesis that the true mean is zero."""
        from scipy.special import stdtr

        error = self.error if self.cautious is None else max(self.cautious, self.error)
        if error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * stdtr(min(self.freedom, self.runs - 1), -abs(self.mean) / error))

    def shifted(self, by: float) -> "Estimate":
        """Return the estimate of the mean plus a constant."""
        return replace(self, mean=self.mean + by)

    def reversed(self) -> "Estimate":
        """Return the estimate of the mean with its sign reversed."""
        return replace(self, mean=-self.mean)


# --- means ------------------------------------------------------------------------------------------


def estimate_runs(values: Sequence[float] | np.ndarray) -> Estimate | None:
    """Return the mean of one value per run; None for a single run."""
    numbers = np.asarray(values, dtype=np.float64)
    runs = len(numbers)
    if runs < 2:
        return None
    return Estimate(float(numbers.mean()), float(numbers.std(ddof=1)) / runs**0.5, runs - 1, runs)


def estimate_pairs(matrix: np.ndarray) -> Estimate | None:
    """Return the mean over the entries above the diagonal, one per pair; None for fewer than three runs.

    Missing pairs are NaN.
    """
    runs = len(matrix)
    above = np.triu_indices(runs, 1)
    values = matrix[above]
    if runs < 3:
        return None
    if np.isnan(values).any():
        return _leave_one_out(matrix)
    mean = float(values.mean())
    whole = np.zeros((runs, runs))
    whole[above] = values
    effects = (whole.sum(0) + whole.sum(1) - (runs - 1) * mean) / (runs - 2)
    between = (runs - 2) * float(np.square(effects).sum())
    within = float(np.square(values - mean - effects[above[0]] - effects[above[1]]).sum())
    left_out = (4 * between / (runs * (runs - 1) * (runs - 2))) ** 0.5
    if runs == 3:
        return Estimate(mean, _THREE_RUNS * left_out, 2, runs, left_out)
    count = len(values)
    share = _ramp(between / (runs - 1), within / (count - runs), _RAMP)
    pooled = float(values.var(ddof=1)) / count
    error = (share * left_out**2 + (1 - share) * pooled) ** 0.5
    freedom = 1 / (share / (runs - 1) + (1 - share) / (count - 1))
    return Estimate(mean, error, freedom, runs, left_out)


def _ramp(between: float, within: float, ends: tuple[float, float]) -> float:
    """Return how much runs count, from 0 to 1, by the ratio of the mean squares."""
    low, high = ends
    if between <= low * within:
        return 0.0
    return 1.0 if between >= high * within else (between / within - low) / (high - low)


def _leave_one_out(matrix: np.ndarray) -> Estimate | None:
    """Return the mean over the pairs that exist, with the error from leaving out one run at a time.

    This jackknife does not need a complete set of pairs, and is somewhat too wide where only pairs vary.
    """
    runs = len(matrix)
    others = [np.delete(np.delete(matrix, i, 0), i, 1) for i in range(runs)]
    without = np.array([np.nanmean(rest) for rest in others if not np.isnan(rest).all()])
    if len(without) < 3:
        return None
    error = ((runs - 1) / runs * float(np.square(without - without.mean()).sum())) ** 0.5
    return Estimate(float(np.nanmean(matrix)), error, len(without) - 1, len(without))


def estimate_crossed(matrix: np.ndarray) -> Estimate | None:
    """Return the mean over pairs of a run of A with a run of B; None unless both sides have several.

    Missing pairs are NaN, usually those of a seed with itself.
    """
    a, b = matrix.shape
    present = ~np.isnan(matrix)
    count = int(present.sum())
    free_e = count - a - b + 1
    if a < 2 or b < 2 or free_e < 1:
        return None
    mean, rows, columns = _fit_sides(matrix, present)
    left = np.where(present, matrix - mean - rows[:, None] - columns, 0.0)
    within = float(np.square(left).sum()) / free_e
    sides = [
        (count / len(effects) * float(np.square(effects).sum()) / (len(effects) - 1), len(effects) - 1)
        for effects in (rows, columns)
    ]
    shares = [_ramp(square, within, _RAMP_CROSSED) for square, _ in sides]
    pooled = float(matrix[present].var(ddof=1))
    parts = [(share * square / count, free) for share, (square, free) in zip(shares, sides, strict=True)]
    parts.append(((1 - shares[0]) * (1 - shares[1]) * pooled / count, count - 1))
    cautious = (max(sum(square for square, _ in sides), pooled) / count) ** 0.5
    found = _satterthwaite(mean, parts, min(a, b), cautious)
    return found if free_e > 1 else replace(found, error=_THREE_CROSSED * found.error)


def _satterthwaite(
    mean: float, parts: Sequence[tuple[float, float]], runs: int, cautious: float | None = None
) -> Estimate:
    """Return the estimate whose variance is a sum of parts, each with its degrees of freedom."""
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / free for part, free in parts)
    freedom = variance**2 / spread if spread > 0 else min(free for _, free in parts)
    return Estimate(mean, variance**0.5, freedom, runs, cautious)


def _fit_sides(matrix: np.ndarray, present: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return mean, row effects and column effects by least squares, each kind of effect summing to zero."""
    a, b = matrix.shape
    i, j = np.nonzero(present)
    design = np.zeros((len(i) + 2, 1 + a + b))
    design[np.arange(len(i)), 0] = 1
    design[np.arange(len(i)), 1 + i] = 1
    design[np.arange(len(i)), 1 + a + j] = 1
    design[-2, 1 : 1 + a], design[-1, 1 + a :] = 1, 1
    found = np.linalg.lstsq(design, np.append(matrix[present], [0.0, 0.0]), rcond=None)[0]
    return float(found[0]), found[1 : 1 + a], found[1 + a :]


# --- intervals that keep their values ---------------------------------------------------------------


def runs_interval(values: Mapping[int, float]) -> Interval:
    """Return the mean over runs, by seed, with its interval and the values."""
    return _interval("runs", {(seed,): value for seed, value in values.items()})


def pairs_interval(values: Mapping[tuple[int, int], float]) -> Interval:
    """Return the mean over unordered pairs of runs of one method, with its interval and the values."""
    return _interval("pairs", values)


def crossed_interval(values: Mapping[tuple[int, int], float]) -> Interval:
    """Return the mean over pairs of a run of A with a run of B, with its interval and the values."""
    return _interval("crossed", values)


def make_interval(over: Over, values: Mapping[str, float]) -> Interval:
    """Return the mean with its interval, given the values that an interval keeps, by "3" or "0-3"."""
    return _interval(over, _seeds_of(values))


def _interval(over: Over, values: Mapping[tuple[int, ...], float]) -> Interval:
    numbers = np.array(list(values.values()), dtype=np.float64)
    if len(numbers) == 0:
        raise ValueError("no values: an interval needs at least one.")
    if not np.isfinite(numbers).all():
        raise ValueError("values contain NaN or infinite entries: leave those runs out.")
    found = _estimate(over, values)
    low, high = (None, None) if found is None else found.ends()
    std = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    kept = {"-".join(map(str, key)): float(value) for key, value in values.items()}
    return Interval(float(numbers.mean()), std, low, high, over, kept)


def _estimate(over: Over, values: Mapping[tuple[int, ...], float]) -> Estimate | None:
    if over == "runs":
        return estimate_runs(list(values.values()))
    matrix = to_matrix(values, symmetric=over == "pairs")
    return estimate_pairs(matrix) if over == "pairs" else estimate_crossed(matrix)


def to_matrix(values: Mapping[tuple[int, ...], float], *, symmetric: bool) -> np.ndarray:
    """Return the values of pairs as a matrix, NaN for missing pairs; above the diagonal if symmetric."""
    left, right = (sorted({key[side] for key in values}) for side in (0, 1))
    if symmetric:
        left = right = sorted({*left, *right})
    matrix = np.full((len(left), len(right)), np.nan)
    for (one, other), value in values.items():
        i, j = left.index(one), right.index(other)
        if symmetric and i == j:
            raise ValueError(f"pair ({one}, {other}): leave out pairs of a run with itself.")
        i, j = (min(i, j), max(i, j)) if symmetric else (i, j)
        if not np.isnan(matrix[i, j]):
            raise ValueError(f"pair ({one}, {other}) is given twice: give each unordered pair once.")
        matrix[i, j] = value
    return matrix


# --- differences ------------------------------------------------------------------------------------


def estimate(interval: Interval) -> Estimate | None:
    """Return the estimate behind an interval that keeps its values; None if it has no error."""
    return None if interval.over is None else _estimate(interval.over, _values(interval))


def difference(a: Interval, b: Interval) -> Estimate | None:
    """Return how far the mean of A is above that of B; None if either has no error.

    If both have values for the same runs or pairs, these are subtracted one by one, so that effects of a seed
    on both cancel. Otherwise, the two are treated as independent.
    """
    if a.over is not None and a.over == b.over:
        ours, theirs = _values(a), _values(b)
        common = {key: ours[key] - theirs[key] for key in ours if key in theirs}
        if common and (found := _estimate(a.over, common)) is not None:
            return found
    one, other = estimate(a), estimate(b)
    return None if one is None or other is None else independent_difference(one, other)


def contrast(parts: Sequence[tuple[float, Interval]]) -> Estimate | None:
    """Return a weighted sum of means over the same seeds, computed for each pair of seeds.

    Effects of a run that cancel in the sum do not count as its error. A value of a run belongs to its pairs
    in equal shares; runs crossed with others form a pair in both directions. None if there is no error.
    """
    known = [(weight, _values_of_pairs(part)) for weight, part in parts]
    common = set.intersection(*(set(values) for _, values in known))
    sums = {pair: sum(weight * values[pair] for weight, values in known) for pair in sorted(common)}
    return _estimate("pairs", sums) if sums else None


def _values_of_pairs(interval: Interval) -> dict[tuple[int, ...], float]:
    values = _values(interval)
    if interval.over == "runs":
        return {(a, b): (values[a,] + values[b,]) / 2 for (a,), (b,) in itertools.combinations(values, 2)}
    if interval.over == "crossed":
        return {(a, b): (x + values[b, a]) / 2 for (a, b), x in values.items() if a < b and (b, a) in values}
    return values


def independent_difference(a: Estimate, b: Estimate) -> Estimate:
    """Return how far one mean is above another, independent one (Welch)."""
    parts = [(a.error**2, a.freedom), (b.error**2, b.freedom)]
    cautious = (max(a.cautious or 0.0, a.error) ** 2 + max(b.cautious or 0.0, b.error) ** 2) ** 0.5
    return _satterthwaite(a.mean - b.mean, parts, a.runs + b.runs - 1, cautious)


def _values(interval: Interval) -> dict[tuple[int, ...], float]:
    return _seeds_of(interval.values or {})


def _seeds_of(values: Mapping[str, float]) -> dict[tuple[int, ...], float]:
    """Return values by seeds instead of their names: (0, 3) for "0-3"."""
    return {tuple(map(int, key.split("-"))): value for key, value in values.items()}


class Decision(NamedTuple):
    """Whether a quantity is above zero, below zero, or indistinguishable from zero."""

    above: bool
    below: bool


def decide(p_values: Sequence[float], means: Sequence[float], level: float = LEVEL) -> list[Decision]:
    """Return the joint decisions of several tests, by Holm's step-down procedure.

    The probability of even one wrong decision is at most 1 - `level`.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found = [Decision(False, False)] * len(order)
    for rank, i in enumerate(order):
        if p_values[i] * (len(order) - rank) > 1 - level:
            break
        found[i] = Decision(means[i] > 0, means[i] < 0)
    return found
