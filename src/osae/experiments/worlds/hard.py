"""Hard worlds: how much of the truth, and of each other, is found by runs that share only the recipe.

Run number i of a method has seed i and trains on part i of the world, an independent draw. Methods are the
recipes for activations, as in `osae.fit` and `osae train --data`, with default options. The batch size and
the start can be changed, for all methods alike.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osae import passes
from osae.config import to_json
from osae.data.source import open_source
from osae.data.worlds import ForestWorld
from osae.experiments.claims import add_claims
from osae.experiments.methods import BATCHTOPK, SORTED_BY_GAIN, TOPK, UNTRAINED
from osae.experiments.worlds.figures import draw_hard
from osae.experiments.worlds.hard_measures import find_truth, measure_hard
from osae.experiments.worlds.measuring import EVALUATION_ROWS, measure_chance
from osae.experiments.worlds.options import HardOptions
from osae.experiments.worlds.training import Group, train_saes
from osae.progress import Progress
from osae.recipes import Recipe, Task, recipe
from osae.results.experiment import ExperimentResult, MethodRow, Section
from osae.training.member import Member

EPOCHS = 10
QUICK_SAMPLES, QUICK_EPOCHS = 20_000, 2
WORLDS = {
    "flat": ForestWorld(),
    "tree": ForestWorld(roots=16),
    "mixed": ForestWorld(width=48, units=192, roots=12, correlation=0.3, bias=1.0, noise=0.05),
}
COLUMNS = (
    "mcc_truth",
    "f1_truth",
    "stability_pairs",
    "orderedness_pairs",
    "stability_firing_pairs",
    "stability_truth",
    "orderedness_truth",
    "explained_variance",
    "ev_quarter",
    "ev_half",
    "dead",
    "seconds",
)
NOTES = (
    "Two runs share nothing but the recipe: each has its own seed and its own draw of samples, also for its "
    "start. `untrained` is the start of TopK, computed from each run's own samples.",
    "MCC and F1 are defined as in SAELens; MCC ignores the sign of an atom, stability to the truth does not.",
)


def run(options: HardOptions, progress: Progress) -> ExperimentResult:
    """Return a section for each world."""
    sections = tuple(_run_world(name, options, progress) for name in options.forests)
    result = ExperimentResult(
        experiment="hard",
        title="Hard worlds",
        world=to_json(WORLDS[options.forests[0]]),
        seeds=options.seed_list,
        sections=sections,
        columns=COLUMNS,
        figures=tuple(draw_hard(section, options.out) for section in sections),
        notes=NOTES,
    )
    return add_claims(result, conclusive=options.conclusive)


def _run_world(name: str, options: HardOptions, progress: Progress) -> Section:
    """Return the table of one world."""
    world = WORLDS[name]
    if options.quick:
        world = replace(world, samples=QUICK_SAMPLES)
    task = hard_task(world, options)
    recipes = [recipe(method, task, start=options.start) for method in options.methods]

    def own_part(seed: int) -> ForestWorld:
        return replace(world, part=seed)

    groups = train_saes(world, recipes, options, progress, folder=Path(name), source_of=own_part)
    groups = add_orders(groups, world)
    truth = find_truth(world, EVALUATION_ROWS)
    rows = [
        MethodRow(
            group.method,
            reference=group.method == UNTRAINED,
            recipe=to_json(group.recipe),
            measures={"seconds": group.seconds, **measure_hard(group.saes, truth)},
        )
        for group in groups
    ]
    return Section(name, tuple(rows), chance=measure_chance(groups, world), world=to_json(world))


def hard_task(world: ForestWorld, options: HardOptions) -> Task:
    """Return the recipes' task on a hard world: as many units as atoms, and as many of them active."""
    batch, epochs = options.rows_per_step, QUICK_EPOCHS if options.quick else EPOCHS
    if batch > world.samples:
        raise ValueError(f"--batch {batch} exceeds the world's {world.samples} samples: give a smaller one.")
    return Task(world.width, world.units, max(1, round(world.active)), epochs * world.samples, batch)


def add_orders(groups: Sequence[Group], world: ForestWorld) -> list[Group]:
    """Return the groups, with TopK and BatchTopK followed by their sorted versions, and TopK's start.

    Each SAE is sorted by gain on the samples that it was trained on.
    """
    result: list[Group] = []
    for group in groups:
        result.append(group)
        if group.method in (TOPK, BATCHTOPK):
            saes = {}
            for seed, sae in group.saes.items():
                rows = open_source(replace(world, part=seed)).block(0)
                saes[seed] = sae.reorder(passes.order_units(sae, rows.split(passes.ROWS), by="gain"))
            result.append(Group(SORTED_BY_GAIN[group.method], group.recipe, saes))
        if group.method == TOPK:
            result.append(_take_starts(group.recipe, tuple(group.saes), world))
    return result


def _take_starts(made: Recipe, seeds: Sequence[int], world: ForestWorld) -> Group:
    """Return the SAEs that runs start from, each computed from its own samples."""
    parts = {seed: open_source(replace(world, part=seed)).block(0) for seed in seeds}
    return Group(UNTRAINED, made, {seed: Member(made, seed, rows).finish() for seed, rows in parts.items()})
