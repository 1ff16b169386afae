"""Table 1: every recipe on the Gaussian world, against the truth and across seeds."""

from collections.abc import Sequence

from osae.config import to_json
from osae.experiments.claims import add_claims
from osae.experiments.published import TABLE_1_MEASURES
from osae.experiments.worlds.figures import draw_groups
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import ToyOptions
from osae.experiments.worlds.training import add_sorted, train_saes, world_task
from osae.experiments.worlds.trials import tuned_recipe
from osae.measures import measure
from osae.progress import Progress
from osae.results.experiment import ExperimentResult, MethodRow

MANY_SEEDS = 5  # for an interval to mean much


def run(options: ToyOptions, progress: Progress) -> ExperimentResult:
    """Return one row per recipe, and TopK sorted afterwards."""
    world = options.world()
    task = world_task(world, quick=options.quick)
    recipes = [tuned_recipe(name, task) for name in options.methods]
    groups = add_sorted(train_saes(world, recipes, options, progress), world)
    rows = measure_rows(groups, world)
    result = ExperimentResult(
        experiment="toy",
        title="Table 1: the Gaussian world",
        world=to_json(world),
        seeds=options.seed_list,
        chance=measure_chance(groups, world),
        rows=rows,
        figures=tuple(draw_groups(groups, world, options.out)),
        notes=(*_against_the_paper(rows), *_limits(options)),
    )
    return add_claims(result, conclusive=options.conclusive)


def _against_the_paper(rows: Sequence[MethodRow]) -> list[str]:
    """Return a sentence for each published method: on how many measures ours is at least as good."""
    said = []
    for row in rows:
        if paper := row.paper:
            ahead = [key for key in TABLE_1_MEASURES if key in row.measures and _ahead(row, key) >= 0]
            of_all = f"{len(ahead)} of {len(TABLE_1_MEASURES)} measures"
            said.append(f"{row.method}: at least as good as the paper's {paper.label} on {of_all}.")
    return said


def _ahead(row: MethodRow, key: str) -> float:
    """Return how much better our mean is than the published one."""
    assert row.paper is not None
    published = MethodRow(row.method, measures=row.paper.measures)
    return measure(key).ahead(row.mean(key), published.mean(key))


def _limits(options: ToyOptions) -> list[str]:
    """Return notes on the limits of a short run."""
    said = []
    if len(options.seed_list) < MANY_SEEDS:
        said.append(
            f"{len(options.seed_list)} seeds are too few to distinguish methods: use {MANY_SEEDS} or more."
        )
    if options.quick:
        said.append("This was a quick run with short training. Leave out --quick for the real table.")
    return said
