"""Table 1 after training runs of several lengths, every method with and without splitting.

All methods use the same learning rate and the same warm-up of k, so that they differ only in their
objective. In table 1, by contrast, the best trials of the baselines use splitting, and the paper's recipe
does not.
"""

from dataclasses import replace
from pathlib import Path

from osae.config import alter, to_json
from osae.experiments.claims import add_claims
from osae.experiments.methods import TOPK, WITH_SPLITTING
from osae.experiments.worlds.figures import draw_budgets
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import BudgetOptions
from osae.experiments.worlds.training import add_sorted, train_saes
from osae.progress import Progress
from osae.recipes import Recipe, Task, world_recipe
from osae.results.base import count
from osae.results.experiment import ExperimentResult, Section
from osae.revival import Split

TITLE = "Table 1 after training runs of several lengths, with and without splitting"


def run(options: BudgetOptions, progress: Progress) -> ExperimentResult:
    """Return a section for each length of training."""
    world = options.world()
    sections = tuple(_run_budget(epochs, options, progress) for epochs in options.budget_list)
    result = ExperimentResult(
        experiment="budgets",
        title=TITLE,
        world=to_json(world),
        seeds=options.seed_list,
        sections=sections,
        figures=tuple(draw_budgets(sections, options.out)),
    )
    return add_claims(result, conclusive=options.conclusive)


def _run_budget(epochs: int, options: BudgetOptions, progress: Progress) -> Section:
    """Return the table after that many epochs."""
    world = options.world()
    task = Task(world.width, world.units, world.active, epochs * world.samples)
    groups = add_sorted(
        train_saes(world, budget_recipes(task), options, progress, folder=Path(f"epochs{epochs}")), world
    )
    return Section(
        count(epochs, "epoch"),
        measure_rows(groups, world),
        chance=measure_chance(groups, world),
        x=float(epochs),
    )


def budget_recipes(task: Task) -> list[Recipe]:
    """Return every method with and without splitting, all else being equal."""
    warmup = world_recipe(TOPK, task).k_warmup
    made = []
    for name, split in WITH_SPLITTING.items():
        plain = alter(world_recipe(name, task), {"revival": None, "k_warmup": warmup})
        made += [plain, replace(plain, name=split, revival=Split(20))]
    return made
