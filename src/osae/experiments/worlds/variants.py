"""Tables of recipes that differ in one choice each, on the Gaussian world."""

from collections.abc import Callable, Sequence

from osae.config import to_json
from osae.experiments.claims import add_claims
from osae.experiments.worlds.figures import draw_variants
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import VariantOptions
from osae.experiments.worlds.training import add_sorted, train_saes, world_task
from osae.progress import Progress
from osae.recipes import Recipe, Task
from osae.results.experiment import ExperimentResult


def compare_variants(
    name: str,
    title: str,
    make_recipes: Callable[[Task], Sequence[Recipe]],
    options: VariantOptions,
    progress: Progress,
) -> ExperimentResult:
    """Return one row per variant of a recipe."""
    world = options.world()
    recipes = make_recipes(world_task(world, quick=options.quick))
    groups = add_sorted(train_saes(world, recipes, options, progress), world)
    rows = measure_rows(groups, world)
    result = ExperimentResult(
        experiment=name,
        title=title,
        world=to_json(world),
        seeds=options.seed_list,
        chance=measure_chance(groups, world),
        rows=rows,
        figures=(draw_variants(rows, options.out),),
    )
    return add_claims(result, conclusive=options.conclusive)
