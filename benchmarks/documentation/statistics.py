"""Simulate how often intervals cover the truth, and how often tests declare equal methods different:

    python -m benchmarks.documentation.statistics

writes evidence/statistics/table.md (about four minutes); `benchmarks.documentation.pages` puts it into
docs/statistics.md. A study draws values of S training runs, or of their pairs, from a known distribution.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from benchmarks import ROOT
from osae.files import atomic_write
from osae.metrics.statistics import (
    contrast,
    crossed_interval,
    decide,
    difference,
    estimate_crossed,
    estimate_pairs,
    estimate_runs,
    pairs_interval,
    runs_interval,
)
from osae.results.base import Interval

Effects = tuple[float, float]  # standard deviations of the effect of a run, and of a pair

STUDIES, ALARM_STUDIES = 40_000, 5_000
RUNS = (2, 3, 4, 5, 7, 10, 15, 20)
EFFECTS: dict[str, Effects] = {"runs": (1.0, 0.0), "both": (1.0, 1.0), "pairs": (0.0, 1.0)}
ALARM_RUNS, RIVALS = (2, 3, 5, 10), (1, 4, 8)


def cover_runs(runs: int, *, studies: int = STUDIES) -> float:
    """Return how often the interval of a mean over runs contains the true mean, zero."""
    rng = np.random.default_rng(runs)
    return _share(lambda: estimate_runs(rng.normal(size=runs)), studies)


def cover_pairs(runs: int, effects: str, *, studies: int = STUDIES) -> float:
    """Return how often the interval of a mean over pairs contains the true mean, zero."""
    rng = np.random.default_rng(runs)
    return _share(lambda: estimate_pairs(_draw_pairs(rng, runs, EFFECTS[effects])), studies)


def cover_crossed(runs: int, effects: str, *, itself: bool = False, studies: int = STUDIES) -> float:
    """Return how often the interval of a mean over runs crossed with others contains the true mean, zero.

    A seed is crossed with itself only if requested.
    """
    rng = np.random.default_rng(runs)
    of_run, of_pair = EFFECTS[effects]

    def study() -> object:
        sides = rng.normal(0, of_run, (runs, 1)) + rng.normal(0, of_run, (1, runs))
        values = sides + rng.normal(0, of_pair, (runs, runs))
        if not itself:
            np.fill_diagonal(values, np.nan)
        return estimate_crossed(values)

    return _share(study, studies)


def _share(study: Callable[[], object], studies: int) -> float:
    found = [study() for _ in range(studies)]
    ends = [one.ends() for one in found if one is not None]  # pyright: ignore[reportAttributeAccessIssue]
    return sum(low <= 0 <= high for low, high in ends) / studies


def _draw_pairs(rng: np.random.Generator, runs: int, effects: Effects) -> np.ndarray:
    added = rng.normal(0, effects[0], runs)
    return added[:, None] + added + rng.normal(0, effects[1], (runs, runs))


def tell_apart(
    runs: int, over: Literal["runs", "pairs"], *, rivals: int, studies: int = ALARM_STUDIES
) -> float:
    """Return how often a claim about equal methods, one against several rivals, is decided either way."""
    rng = np.random.default_rng(runs)
    alarms = 0
    for _ in range(studies):
        shared = rng.normal(size=runs)  # the effect of a seed on every method
        mine, *others = (_draw_method(rng, shared, over) for _ in range(rivals + 1))
        tests = [difference(mine, other) for other in others]
        known = [(test.p_value(), test.mean) for test in tests if test is not None]
        decided = decide([p for p, _ in known], [mean for _, mean in known])
        alarms += any(one.above or one.below for one in decided)
    return alarms / studies


def tell_sides_apart(runs: int, *, studies: int = ALARM_STUDIES) -> float:
    """Return how often agreement within two sides and across them, which are equal, are told apart.

    Runs of both sides have effects on their agreement, which are not the same within a side and across.
    """
    rng = np.random.default_rng(runs)
    alarms = 0
    for _ in range(studies):
        inside = [(0.5, _draw_method(rng, np.zeros(runs), "pairs")) for _ in range(2)]
        left, right = rng.normal(size=(2, runs))
        pairs = itertools.permutations(range(runs), 2)
        across = crossed_interval({(i, j): float(left[i] + right[j] + rng.normal()) for i, j in pairs})
        found = contrast([*inside, (-1.0, across)])
        alarms += found is not None and found.p_value() <= 0.05
    return alarms / studies


def _draw_method(rng: np.random.Generator, shared: np.ndarray, over: str) -> Interval:
    own = shared + rng.normal(size=len(shared))
    if over == "runs":
        return runs_interval(dict(enumerate(own.tolist())))
    pairs = itertools.combinations(range(len(own)), 2)
    return pairs_interval({(i, j): float(own[i] + own[j] + rng.normal()) for i, j in pairs})


# --- the page ---------------------------------------------------------------------------------------


def tabulate_coverage(studies: int = STUDIES) -> list[list[str]]:
    """Return the coverage of every kind of interval by number of runs, as the rows of a table."""
    heads = ["Runs", "Mean over runs", *(f"Pairs, {name} vary" for name in EFFECTS)]
    rows = [[*heads, *(f"Crossed, {name} vary" for name in EFFECTS)]]
    for runs in RUNS:
        of_pairs = [cover_pairs(runs, name, studies=studies) if runs > 2 else None for name in EFFECTS]
        crossed = [cover_crossed(runs, name, studies=studies) if runs > 2 else None for name in EFFECTS]
        numbers = [cover_runs(runs, studies=studies), *of_pairs, *crossed]
        rows.append([str(runs), *("no interval" if x is None else f"{100 * x:.1f} %" for x in numbers)])
        print("  ".join(rows[-1]), flush=True)
    return rows


def tabulate_alarms(studies: int = ALARM_STUDIES) -> list[list[str]]:
    """Return how often equal methods are declared different, as the rows of a table."""
    heads = [f"{over}, {count} rival{'s' * (count > 1)}" for over in ("Runs", "Pairs") for count in RIVALS]
    rows = [["Seeds", *heads, "Within and across"]]
    for runs in ALARM_RUNS:
        numbers = [
            None if over == "pairs" and runs < 3 else tell_apart(runs, over, rivals=count, studies=studies)
            for over in ("runs", "pairs")
            for count in RIVALS
        ]
        numbers.append(tell_sides_apart(runs, studies=studies) if runs > 2 else None)
        rows.append([str(runs), *("never" if x is None else f"{100 * x:.1f} %" for x in numbers)])
        print("  ".join(rows[-1]), flush=True)
    return rows


def write_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first is the header."""
    head, *body = rows
    lines = [head, ["--:"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Run all simulations and write their tables."""
    parts = [
        "## Coverage",
        write_table(tabulate_coverage()),
        "## False alarms",
        write_table(tabulate_alarms()),
    ]
    path = ROOT / "evidence" / "statistics" / "table.md"
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as part:
        part.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
