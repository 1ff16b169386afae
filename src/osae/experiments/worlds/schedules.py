"""The paper's recipe without each of its two schedules, and unit sweeping as the paper describes it."""

from dataclasses import replace
from typing import Any

from osae.config import alter
from osae.experiments.methods import (
    NO_SWEEPING,
    NO_WARMUP,
    OSAE_PAPER,
    OSAE_SWEPT,
    OSAE_SWEPT_RESTARTING,
    SOON_SPARSE,
    SWEPT_NO_SWEEPING,
)
from osae.experiments.worlds.options import VariantOptions
from osae.experiments.worlds.trials import tuned_recipe
from osae.experiments.worlds.variants import compare_variants
from osae.progress import Progress
from osae.recipes import BURN_IN, Recipe, Task, world_recipe
from osae.results.experiment import ExperimentResult
from osae.schedule import KWarmup


def run(options: VariantOptions, progress: Progress) -> ExperimentResult:
    """Return one row with both schedules and one without each."""
    title = "The paper's recipe without its schedules"
    return compare_variants("schedules", title, drop_schedules, options, progress)


def drop_schedules(task: Task) -> list[Recipe]:
    """Return `osae-paper` as it is and without each schedule, and `osae-swept` with and without sweeping.

    The latter are also trained with a k that reaches its target before the first unit is frozen.
    """
    changes: dict[str, dict[str, Any]] = {
        OSAE_PAPER: {},
        NO_SWEEPING: {"sweep": None},
        NO_WARMUP: {"k_warmup": None},
    }
    base = tuned_recipe(OSAE_PAPER, task)
    described = [world_recipe(name, task) for name in (OSAE_SWEPT, OSAE_SWEPT_RESTARTING)]
    described.append(replace(described[0], name=SWEPT_NO_SWEEPING, sweep=None))
    return [
        *(replace(alter(base, change), name=name) for name, change in changes.items()),
        *described,
        *(replace(one, name=SOON_SPARSE[one.name], k_warmup=KWarmup(BURN_IN)) for one in described),
    ]
