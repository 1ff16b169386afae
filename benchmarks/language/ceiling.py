"""Estimate where the agreement of two runs levels off, from trials that differ in their number of tokens.

Agreement after T tokens is modelled as s(T) = c - a T^-b, so that c is the agreement of endless runs. For
each power b, c and a follow from least squares. A pair of runs is a noisy measurement of agreement, so the
fit is repeated on measurements with additional noise of that size: c ranges over the middle 90 % of fits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.trials import Record

NOISE = 0.015  # standard deviation of the stability of one pair of runs
POWERS = np.linspace(0.2, 1.0, 33)
DRAWS = 2000
LEAST = 3  # numbers of tokens
USUAL = ((0.5, 1.0, 0.35), (0.5, 1.0, None))  # decay and power of the rate, share of the warm-up of k


class Ceiling(NamedTuple):
    """The limit of agreement, the interval that noise leaves, and the power of the fit."""

    limit: float
    low: float
    high: float
    power: float


def estimate(points: Mapping[int, float]) -> Ceiling:
    """Return the limit of the stabilities at these numbers of tokens; at least three are needed."""
    tokens, found = np.array(sorted(points)), np.array([points[at] for at in sorted(points)])
    noise = np.random.default_rng(0).normal(0, NOISE, (DRAWS, len(found)))
    limits, _ = _fit(tokens, found + noise)
    limit, power = _fit(tokens, found[None])
    low, high = np.quantile(limits, [0.05, 0.95])
    return Ceiling(float(limit[0]), float(low), float(high), float(power[0]))


def _fit(tokens: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the limit and the power of the best fit to each row; no limit is above 1, or below its row."""
    errors, limits = [], []
    for power in POWERS:
        design = np.stack([np.ones(len(tokens)), -((tokens / tokens[0]) ** -power)], axis=1)
        fitted = np.linalg.lstsq(design, found.T, rcond=None)[0]
        errors.append(np.square(design @ fitted - found.T).sum(0))
        limits.append(np.clip(fitted[0], found.max(1), 1.0))
    best = np.argmin(errors, axis=0)
    return np.take_along_axis(np.array(limits), best[None], 0)[0], np.asarray(POWERS)[best]


def group_by_length(trials: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Return the mean stability by number of tokens, for trials that differ in nothing else, by method.

    Left out are methods with fewer than three lengths, or whose agreement does not rise with length.
    """
    groups: dict[str, dict[int, list[float]]] = {}
    for trial in trials:
        if trial.get("way") is None and "prototype" not in trial and _has_usual_schedule(trial["recipe"]):
            points = groups.setdefault(_name(trial), {})
            points.setdefault(trial["tokens"], []).append(trial["measures"]["stability"])
    means = {
        name: {at: float(np.mean(each)) for at, each in points.items()} for name, points in groups.items()
    }
    return {name: points for name, points in means.items() if len(points) >= LEAST and _rises(points)}


def _has_usual_schedule(made: Mapping[str, Any]) -> bool:
    rate, warmup = made["lr"], made["k_warmup"]
    return (rate["decay"], rate.get("power", 1.0), warmup and warmup["share"]) in USUAL


def _rises(points: Mapping[int, float]) -> bool:
    found = [points[at] for at in sorted(points)]
    return found == sorted(found)


def tabulate_ceilings(trials: Sequence[Record]) -> list[list[str]]:
    """Return the rows of a table: what was trained, stability by length, and the estimated limit."""
    rows = [["trials", "stability by tokens", "limit", "middle 90 %"], ["---"] * 4]
    for name, points in group_by_length(trials).items():
        found = estimate(points)
        by_length = ", ".join(f"{at:,}: {points[at]:.3f}" for at in sorted(points))
        rows.append([name, by_length, f"{found.limit:.2f}", f"{found.low:.2f} to {found.high:.2f}"])
    return rows


def _name(trial: Mapping[str, Any]) -> str:
    made = trial["recipe"]
    start = made["start"]["kind"].removeprefix("From").lower()
    return " · ".join(
        [
            trial["text"],
            f"{trial['units']} units",
            f"`{trial['method']}`, full {made['prefix'].get('full', 1):g}, from {start}",
            f"batch {trial['batch']}",
            f"rate {made['lr']['peak']:g}",
        ]
    )
