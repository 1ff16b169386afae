"""Schedules: functions of the step alone, so there is nothing to save and nothing to resume."""

from collections.abc import Callable
from dataclasses import dataclass

from osae.config import variant


@variant
@dataclass(frozen=True)
class LearningRate:
    """Up to `peak` over the share `warmup` of training, down to zero over the last share `decay`."""

    peak: float
    warmup: float = 0.0
    decay: float = 0.0


@variant
@dataclass(frozen=True)
class KWarmup:
    """k falls from `start` (None: all units) to its target over the share `share` of training."""

    share: float
    start: int | None = None


@variant
@dataclass(frozen=True)
class Sweep:
    """After the share `burn_in`, one more unit freezes every so often, the last at the share `until`.

    The first `part` of the units freeze, by default all; `atoms_only` leaves their encoders free to learn.
    After the share `release` all of them learn again, and keep their places.
    """

    burn_in: float = 0.1
    until: float = 1.0
    part: float = 1.0
    atoms_only: bool = False
    release: float = 1.0


@variant
@dataclass(frozen=True)
class Resort:
    """Units move to their place, `times` times evenly until the share `until` of training.

    Next comes the unit that lowers the error most after those before it: the order that no swap of
    neighbours can improve for any prefix distribution. Each time reads
    `samples` rows; the last reads every row of the block at hand.
    """

    times: int
    until: float = 1.0
    samples: int = 20_000


def learning_rate(spec: LearningRate, steps: int) -> Callable[[int], float]:
    """step -> learning rate."""
    up, down = spec.warmup * steps, spec.decay * steps

    def at(step: int) -> float:
        rising = min((step + 1) / up, 1.0) if up >= 1 else 1.0
        falling = min((steps - step) / down, 1.0) if down >= 1 else 1.0
        return spec.peak * min(rising, falling)

    return at


def active_units(spec: KWarmup | None, k: int, units: int, steps: int) -> Callable[[int], int]:
    """step -> how many units may speak."""
    if spec is None or spec.share <= 0:
        return lambda step: k
    start, over = spec.start or units, spec.share * steps
    if start < k:
        raise ValueError(f"k warm-up starts at {start}, below its target {k}: start at {k} or more.")
    return lambda step: round(start + (k - start) * min(step / over, 1.0))


def frozen_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """step -> how many of the first units are frozen."""
    placed = placed_units(spec, units, steps)
    if spec is None or spec.release >= 1:
        return placed
    release = round(spec.release * steps)
    return lambda step: placed(step) if step < release else 0


def placed_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """step -> how many of the first units have been frozen, and so keep their places."""
    if spec is None:
        return lambda step: 0
    first, last, most = round(spec.burn_in * steps), round(spec.until * steps), round(spec.part * units)
    end = round(spec.release * steps) if spec.release < 1 else None

    def at(step: int) -> int:
        if end is not None:
            step = min(step, end - 1)  # no more freeze after all are let go
        if step < first:
            return 0
        return most if step >= last else most * (step - first) // (last - first)

    return at


def evenly(times: int, until: float, steps: int, since: float = 0.0) -> tuple[int, ...]:
    """The numbers of finished steps that divide training from `since` to `until` in `times` parts."""
    shares = [since + (until - since) * part / times for part in range(1, times + 1)]
    return tuple(sorted({max(1, round(steps * share)) for share in shares}))
