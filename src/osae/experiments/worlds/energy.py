"""Which order the objective finds when the frequency of an atom and the energy it explains disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from osae import metrics
from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments.claims import add_claims
from osae.experiments.methods import OSAE, OSAE_PAPER, TOPK
from osae.experiments.worlds.figures import draw_orders
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import EnergyOptions
from osae.experiments.worlds.orders import correlate_orders, true_orders
from osae.experiments.worlds.training import Group, add_sorted, train_saes, world_task
from osae.metrics.statistics import runs_interval
from osae.progress import Progress
from osae.recipes import world_recipe
from osae.results.experiment import ExperimentResult, MethodRow

UNITS = 20
STRENGTHS = tuple(float(j) ** 1.2 / 5 for j in range(1, UNITS + 1))  # the rarer an atom, the stronger


def run(options: EnergyOptions, progress: Progress) -> ExperimentResult:
    """Return the orderedness of each method by frequency and by energy."""
    world = SparseWorld(40, UNITS, 2, zipf=1.0, samples=50_000, strengths=STRENGTHS)
    world = replace(world, **options.world_changes())
    task = world_task(world, quick=options.quick)
    recipes = [world_recipe(name, task) for name in (TOPK, OSAE_PAPER, OSAE)]
    trained = train_saes(world, recipes, options, progress)
    groups = add_sorted(trained, world)
    orders = true_orders(world)
    result = ExperimentResult(
        experiment="energy",
        title="The objective orders by explained energy, not by frequency",
        world=to_json(world),
        seeds=options.seed_list,
        chance=measure_chance(groups, world),
        columns=("orderedness_frequency", "orderedness_energy", "stability_truth", "mse", "seconds"),
        rows=_add_orderedness(measure_rows(groups, world), groups, world.dictionary(), orders),
        figures=(draw_orders(trained, world.dictionary(), orders, options.out),),
        notes=(
            f"In this world, the orders by frequency and by energy have rank correlation "
            f"{correlate_orders(world):.2f}.",
            "The paper's theorem says that the order is by frequency; what the objective sees is energy.",
        ),
    )
    return add_claims(result, conclusive=options.conclusive)


def _add_orderedness(
    rows: Sequence[MethodRow], groups: Sequence[Group], atoms: Tensor, orders: Mapping[str, Tensor]
) -> tuple[MethodRow, ...]:
    """Return the rows with the orderedness of their SAEs in each of the orders."""
    result = []
    for row, group in zip(rows, groups, strict=True):
        found = {
            f"orderedness_{name}": runs_interval(
                {seed: metrics.orderedness(sae.decoder, atoms[order]) for seed, sae in group.saes.items()}
            )
            for name, order in orders.items()
        }
        result.append(replace(row, measures={**row.measures, **found}))
    return tuple(result)
