"""Options shared by all experiments. Nothing here needs torch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from osae.experiments.places import Place, PlaceOptions
from osae.options import option

FEW_SEEDS, QUICK_SEEDS = 5, 2
ENOUGH_SEEDS = 3  # for a verdict: two seeds form one pair, which has no interval


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(PlaceOptions):
    """The options of every experiment."""

    out: Path = option("folder for results and figures", metavar="DIR")
    quick: bool = option("run a short version with few seeds, in about a minute", default=False)

    @property
    def workers(self) -> int:
        """The number of parallel training runs on this machine."""
        return self.jobs or os.cpu_count() or 1

    @property
    def place(self) -> Place:
        """Where to run the training runs."""
        return self.find_place(self.workers, self.out)


def seeds_option(shown: str, *, least: int = 1) -> Any:
    """Declare the number of seeds; `shown` describes the default."""
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
