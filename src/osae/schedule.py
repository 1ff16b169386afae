"""Schedules: functions of the step alone, with no state to save or restore."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import TypeVar

from osae.config import later, variant

_T = TypeVar("_T")


@variant
@dataclass(frozen=True)
class LearningRate:
    """A learning rate that rises to `peak` and decays to zero.

    It rises during the first fraction `warmup` of training and decays during the last fraction `decay`, in
    proportion to the remaining time to the power `power`: linearly by default.
    """

    peak: float
    warmup: float = 0.0
    decay: float = 0.0
    power: float = later(1.0)

    def __post_init__(self):
        if not (isfinite(self.peak) and self.peak >= 0):
            raise ValueError(f"peak={self.peak}: give a finite learning rate of at least 0.")
        if not (isfinite(self.power) and self.power > 0):
            raise ValueError(f"power={self.power}: give a finite power above 0.")
        _check_fractions(warmup=self.warmup, decay=self.decay)


@variant
@dataclass(frozen=True)
class KWarmup:
    """A k that falls from `start` (None: all units) to its target during the first `share` of training."""

    share: float
    start: int | None = None

    def __post_init__(self):
        _check_fractions(share=self.share)
        if self.start is not None and self.start < 1:
            raise ValueError(f"start={self.start}: give a positive number of units, or null for all.")


@variant
@dataclass(frozen=True)
class Sweep:
    """Units are frozen one by one, the first after the fraction `burn_in` of training, the last at `until`.

    Only the first fraction `part` of the units is frozen, by default all; with `atoms_only`, encoders keep
    learning. After the fraction `release` of training, all units learn again and keep their positions. With
    `restart`, prefixes count the units that still learn, and contain all frozen ones.
    """

    burn_in: float = 0.1
    until: float = 1.0
    part: float = 1.0
    atoms_only: bool = False
    release: float = 1.0
    restart: bool = later(False)

    def __post_init__(self):
        _check_fractions(burn_in=self.burn_in, until=self.until, part=self.part, release=self.release)


@variant
@dataclass(frozen=True)
class Resort:
    """Units are sorted by gain `times` times, evenly spaced until the fraction `until` of training.

    Each unit is followed by the one that then lowers the error most: no swap of neighbours improves this
    order for any prefix distribution. Each sort reads `samples` rows; the last one reads every row of the
    current block.
    """

    times: int
    until: float = 1.0
    samples: int = 20_000

    def __post_init__(self):
        _check_fractions(until=self.until)
        if self.times < 0 or self.samples < 1:
            raise ValueError(f"times={self.times}, samples={self.samples}: give numbers of at least 0 and 1.")


def _check_fractions(**given: float) -> None:
    """Raise `ValueError` unless each of these is a fraction of training or of the units."""
    for name, value in given.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: give a fraction from 0 to 1.")


def learning_rate(spec: LearningRate, steps: int) -> Callable[[int], float]:
    """Return the function step -> learning rate."""
    up, down = spec.warmup * steps, spec.decay * steps

    def at(step: int) -> float:
        rising = min((step + 1) / up, 1.0) if up >= 1 else 1.0
        falling = min((steps - step) / down, 1.0) ** spec.power if down >= 1 else 1.0
        return spec.peak * min(rising, falling)

    return at


def active_units(spec: KWarmup | None, k: int, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> number of units that may be active."""
    if spec is None or spec.share <= 0:
        return lambda step: k
    start, over = spec.start or units, spec.share * steps
    if start < k:
        raise ValueError(f"k warm-up starts at {start}, below its target {k}: start at {k} or above.")
    return lambda step: round(start + (k - start) * min(step / over, 1.0))


def frozen_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> number of leading units that are frozen."""
    placed = placed_units(spec, units, steps)
    if spec is None or spec.release >= 1:
        return placed
    release = round(spec.release * steps)
    return lambda step: placed(step) if step < release else 0


def placed_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> number of leading units that have been frozen and keep their positions."""
    if spec is None:
        return lambda step: 0
    first, last, most = round(spec.burn_in * steps), round(spec.until * steps), round(spec.part * units)
    end = round(spec.release * steps) if spec.release < 1 else None

    def at(step: int) -> int:
        if end is not None:
            step = min(step, end - 1)  # no unit freezes after the release
        if step < first:
            return 0
        return most if step >= last else most * (step - first) // (last - first)

    return at


def space_evenly(times: int, until: float, steps: int, since: float = 0.0) -> tuple[int, ...]:
    """Return the step counts that divide training from `since` to `until` into `times` equal parts."""
    shares = [since + (until - since) * part / times for part in range(1, times + 1)]
    return tuple(sorted({max(1, round(steps * share)) for share in shares}))


def in_turn(schedules: Sequence[Callable[[int], _T]], steps: Sequence[int]) -> Callable[[int], _T]:
    """Return the function that follows each schedule in turn for its number of steps."""
    if len(schedules) == 1:
        return schedules[0]
    starts = [0, *accumulate(steps[:-1])]

    def at(step: int) -> _T:
        part = bisect_right(starts, step) - 1
        return schedules[part](step - starts[part])

    return at
