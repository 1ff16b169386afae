"""The table of the Gaussian world for smaller dictionaries, one section for each size."""

from dataclasses import replace
from pathlib import Path

from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments.claims import add_claims
from osae.experiments.methods import OSAE, OSAE_PAPER, TOPK
from osae.experiments.worlds.figures import draw_groups
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import SizesOptions
from osae.experiments.worlds.training import add_sorted, train_saes, world_task
from osae.experiments.worlds.trials import tuned_recipe
from osae.progress import Progress
from osae.results.experiment import ExperimentResult, Figure, Section

SIZES = ((10, 2), (30, 3), (50, 5))  # atoms, active atoms
DRAWN = (TOPK, OSAE_PAPER, OSAE)  # the paper draws its vanilla SAE and the O-SAE


def run(options: SizesOptions, progress: Progress) -> ExperimentResult:
    """Return a section for each size."""
    base = replace(SparseWorld(), **options.world_changes())
    sections: list[Section] = []
    figures: list[Figure] = []
    for units, active in SIZES:
        section, drawn = _run_size(replace(base, units=units, active=active), options, progress)
        sections.append(section)
        figures += drawn
    result = ExperimentResult(
        experiment="sizes",
        title="Other sizes of the Gaussian world",
        world=to_json(base),
        seeds=options.seed_list,
        sections=tuple(sections),
        figures=tuple(figures),
    )
    return add_claims(result, conclusive=options.conclusive)


def _run_size(world: SparseWorld, options: SizesOptions, progress: Progress) -> tuple[Section, list[Figure]]:
    """Return the table and the figures of one size."""
    folder, title = Path(f"K{world.units}-m{world.active}"), f"{world.units} atoms, {world.active} active"
    task = world_task(world, quick=options.quick)
    recipes = [tuned_recipe(name, task) for name in options.methods]
    groups = add_sorted(train_saes(world, recipes, options, progress, folder=folder), world)
    drawn = [group for group in groups if group.method in DRAWN] or groups
    section = Section(
        title,
        measure_rows(groups, world),
        chance=measure_chance(groups, world),
        world=to_json(world),
    )
    return section, list(draw_groups(drawn, world, options.out, folder=folder, about=f"{title}. "))
