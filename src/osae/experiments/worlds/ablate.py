"""Our recipe with one choice changed at a time."""

from dataclasses import replace
from typing import Any

from osae.config import alter
from osae.experiments.methods import NO_WARMUP, OSAE
from osae.experiments.worlds.options import VariantOptions
from osae.experiments.worlds.variants import compare_variants
from osae.prefix import Full, Geometric, Mixed, Piecewise, Uniform, Zipf
from osae.progress import Progress
from osae.recipes import Recipe, Task, group_ends, world_recipe
from osae.results.experiment import ExperimentResult
from osae.revival import AuxK
from osae.schedule import Resort, Sweep


def run(options: VariantOptions, progress: Progress) -> ExperimentResult:
    """Return one row per change."""
    return compare_variants("ablate", "Ablations: one choice changed at a time", ablations, options, progress)


def ablations(task: Task) -> list[Recipe]:
    """Return the recipe `osae` and its neighbours, named by what differs."""
    base = world_recipe(OSAE, task)
    changes: dict[str, dict[str, Any]] = {
        OSAE: {},
        "no sorting": {"resort": None},
        "sorted at the end only": {"resort": Resort(1)},
        NO_WARMUP: {"k_warmup": None},
        "warm-up of k from all units": {"k_warmup.start": None},
        "no splitting": {"revival": None},
        "AuxK for splitting": {"revival": AuxK(4 * task.k, 1 / 8)},
        "unit sweeping": {"sweep": Sweep(0.7, 1.0)},
        "unit sweeping, no sorting": {"sweep": Sweep(0.7, 1.0), "resort": None},
        "prefix uniform": {"prefix": Uniform()},
        "prefix half on the whole": {"prefix": Mixed(Uniform(), 0.5)},
        "prefix all on the whole": {"prefix": Full()},
        "prefix Zipf 1": {"prefix": Zipf(1.0)},
        "prefix geometric": {"prefix": Geometric(0.97)},
        "prefix piecewise": {"prefix": Piecewise(group_ends(task.units, task.groups))},
    }
    return [replace(alter(base, change), name=name) for name, change in changes.items()]
