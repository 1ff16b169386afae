"""What every experiment lets its users choose. Nothing here needs torch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from osae.options import Options, option

FEW_SEEDS, QUICK_SEEDS = 5, 2
ENOUGH_SEEDS = 3  # for a verdict: two seeds are one pair, which has no interval


def jobs_option(shown: str) -> Any:
    """Declare the number of training runs at a time; `shown` says how many there are by default."""
    return option("number of parallel training runs", default=None, least=1, shown=shown)


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(Options):
    """The options of every experiment."""

    out: Path = option("folder for results and figures", metavar="DIR")
    quick: bool = option("a short version with few seeds, in about a minute", default=False)
    jobs: int | None = jobs_option("one per core")

    @property
    def workers(self) -> int:
        """The number of training runs at a time."""
        return self.jobs or os.cpu_count() or 1


def seeds_option(shown: str, *, least: int = 1) -> Any:
    """Declare the number of seeds; `shown` says how many there are by default."""
    return option("number of training seeds", default=None, least=least, shown=shown)


@dataclass(frozen=True, kw_only=True)
class SeedOptions(ExperimentOptions):
    """The options of an experiment that trains several seeds of each method."""

    SEEDS: ClassVar[int] = FEW_SEEDS

    seeds: int | None = seeds_option(f"{FEW_SEEDS}, with --quick {QUICK_SEEDS}")

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The training seeds."""
        return tuple(range(self.seeds or (QUICK_SEEDS if self.quick else self.SEEDS)))

    @property
    def conclusive(self) -> bool:
        """Whether the run is long enough for verdicts."""
        return not self.quick and len(self.seed_list) >= ENOUGH_SEEDS


def check_distinct(flag: str, values: Sequence[object]) -> None:
    """Raise `ValueError` if a value is given twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{flag} {','.join(map(str, values))}: give {value} once.")
