"""SAEs of every method and seed on one world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osae import passes
from osae.data.worlds import SparseWorld, World
from osae.experiments.jobs import Job, forecast_jobs, train_all
from osae.experiments.methods import SORTED_BY_ENERGY, SORTED_BY_GAIN
from osae.experiments.options import SeedOptions
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe, Task

SAMPLES_PER_UNIT, QUICK_SAMPLES_PER_UNIT = 25_000, 4_000  # seen in training; in table 1, 25 epochs
LEAST_UNITS = 50  # training on smaller worlds takes as many samples as on one of this size


@dataclass(frozen=True)
class Group:
    """The SAEs of one method by seed, their recipe, and the mean seconds of a training run.

    SAEs that were sorted after training keep the recipe of their training run, and have no seconds.
    """

    method: str
    recipe: Recipe
    saes: dict[int, SAE]
    seconds: float | None = None


def world_task(world: SparseWorld, *, quick: bool) -> Task:
    """Return the task of the tables' recipes on a world; more atoms require more samples."""
    per_unit = QUICK_SAMPLES_PER_UNIT if quick else SAMPLES_PER_UNIT
    return Task(world.width, world.units, world.active, per_unit * max(world.units, LEAST_UNITS))


def train_saes(
    world: World,
    recipes: Sequence[Recipe],
    options: SeedOptions,
    progress: Progress,
    *,
    folder: Path = Path(),
    source_of: Callable[[int], World] | None = None,
) -> list[Group]:
    """Return the SAEs of every recipe; they are stored in `folder`, inside the experiment's folder.

    `source_of` returns the world of a seed, if seeds are not meant to see the same samples.
    """
    jobs = [
        Job(recipe, seed, source_of(seed) if source_of else world)
        for recipe in recipes
        for seed in options.seed_list
    ]
    if source_of:
        jobs.sort(
            key=lambda job: job.seed
        )  # jobs on the same samples are adjacent, so that the samples can be reused
    root = options.out / folder / "saes"
    groups = {recipe.name: Group(recipe.name, recipe, {}, 0.0) for recipe in recipes}
    progress(0, len(jobs), f"training; {forecast_jobs(jobs, options.workers)}")
    for count, done in enumerate(train_all(jobs, root, place=options.place), start=1):
        name, seed = done.job.recipe.name, done.job.seed
        group = groups[name]
        seconds = (group.seconds or 0.0) + done.seconds / len(options.seed_list)
        groups[name] = replace(group, saes={**group.saes, seed: done.sae}, seconds=seconds)
        progress(count, len(jobs), f"trained {name}, seed {seed}")
    return [replace(group, saes=dict(sorted(group.saes.items()))) for group in groups.values()]


def add_sorted(groups: Sequence[Group], world: SparseWorld) -> list[Group]:
    """Return the groups, each TopK followed by its versions with units sorted by energy and by gain."""
    result: list[Group] = []
    for group in groups:
        result.append(group)
        if group.method in SORTED_BY_ENERGY:
            result.append(_sort_units(group, world, "energy", SORTED_BY_ENERGY[group.method]))
            result.append(_sort_units(group, world, "gain", SORTED_BY_GAIN[group.method]))
    return result


def _sort_units(group: Group, world: SparseWorld, by: passes.By, name: str) -> Group:
    """Return the SAEs with their units sorted on the training samples."""
    batches = world.draw("train").x.split(passes.ROWS)
    orders = {seed: passes.order_units(sae, batches, by=by) for seed, sae in group.saes.items()}
    saes = {seed: sae.reorder(orders[seed]) for seed, sae in group.saes.items()}
    return Group(name, group.recipe, saes)
