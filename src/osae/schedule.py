"""Schedules: functions of the step alone, so they have no state to save or restore."""

from collections.abc import Callable
from dataclasses import dataclass

from osae.config import later, variant


@variant
@dataclass(frozen=True)
class LearningRate:
    """A rate that rises to `peak` and falls to zero again.

    It rises over the first share `warmup` of training and falls over the last share `decay`.
    """

    peak: float
    warmup: float = 0.0
    decay: float = 0.0


@variant
@dataclass(frozen=True)
class KWarmup:
    """A k that falls from `start` (None: all units) to its target in the first share `share` of training."""

    share: float
    start: int | None = None


@variant
@dataclass(frozen=True)
class Sweep:
    """Units freeze one after another, the first after the share `burn_in` of training, the last at `until`.

    The first `part` of the units freeze, by default all; with `atoms_only`, their encoders keep learning.
    After the share `release` of training, all of them learn again and keep their places. With `restart`,
    prefixes are those of the units that still learn: the frozen ones belong to all of them.
    """

    burn_in: float = 0.1
    until: float = 1.0
    part: float = 1.0
    atoms_only: bool = False
    release: float = 1.0
    restart: bool = later(False)


@variant
@dataclass(frozen=True)
class Resort:
    """Units are sorted by gain `times` times, evenly spaced until the share `until` of training.

    Each unit is followed by the one that then lowers the error most: no swap of neighbours improves this
    order for any prefix distribution. Each sort reads `samples` rows; the last one reads every row of the
    current block.
    """

    times: int
    until: float = 1.0
    samples: int = 20_000


def learning_rate(spec: LearningRate, steps: int) -> Callable[[int], float]:
    """Return the function step -> learning rate."""
    up, down = spec.warmup * steps, spec.decay * steps

    def at(step: int) -> float:
        rising = min((step + 1) / up, 1.0) if up >= 1 else 1.0
        falling = min((steps - step) / down, 1.0) if down >= 1 else 1.0
        return spec.peak * min(rising, falling)

    return at


def active_units(spec: KWarmup | None, k: int, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> how many units may be active."""
    if spec is None or spec.share <= 0:
        return lambda step: k
    start, over = spec.start or units, spec.share * steps
    if start < k:
        raise ValueError(f"k warm-up starts at {start}, below its target {k}: start at {k} or more.")
    return lambda step: round(start + (k - start) * min(step / over, 1.0))


def frozen_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> how many of the first units are frozen."""
    placed = placed_units(spec, units, steps)
    if spec is None or spec.release >= 1:
        return placed
    release = round(spec.release * steps)
    return lambda step: placed(step) if step < release else 0


def placed_units(spec: Sweep | None, units: int, steps: int) -> Callable[[int], int]:
    """Return the function step -> how many of the first units have been frozen, and so keep their places."""
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
