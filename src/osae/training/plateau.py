"""Early stopping when training no longer improves, based on the log alone so that resumed runs agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from osae.config import variant


@variant
@dataclass(frozen=True)
class Plateau:
    """Stop once the mean loss over the last `lines` log entries is hardly lower than over the `lines` before.

    `improvement` is the minimum relative decrease. Entries before the end of the warm-ups do not count.
    """

    improvement: float
    lines: int = 10

    def __post_init__(self):
        if not 0 <= self.improvement < 1:
            raise ValueError(f"improvement={self.improvement}: give a share from 0 to below 1.")
        if self.lines < 1:
            raise ValueError(f"lines={self.lines}: give at least 1 log entry to average over.")


class Stopped(Exception):
    """Raised when a run ends early because its losses have reached a plateau."""

    def __init__(self, done: int):
        super().__init__(f"stopped on a plateau after {done} steps")
        self.done = done


def has_levelled_off(rule: Plateau, losses: Sequence[float | None]) -> bool:
    """Return whether these losses, one per log entry, have reached a plateau."""
    finite = [loss for loss in losses[-2 * rule.lines :] if loss is not None]  # those of skipped batches
    if len(finite) < 2 * rule.lines:
        return False
    before, last = fmean(finite[: rule.lines]), fmean(finite[rule.lines :])
    return last > (1 - rule.improvement) * before
