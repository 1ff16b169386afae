"""Six measures against the world's Zipf exponent, with the methods of the paper's appendix and ours."""

from dataclasses import replace
from pathlib import Path

from osae.config import alter, to_json
from osae.data.worlds import SparseWorld
from osae.experiments.claims import add_claims
from osae.experiments.methods import (
    MATRYOSHKA_EQUAL,
    MATRYOSHKA_FIXED,
    MATRYOSHKA_RANDOM,
    OSAE,
    OSAE_PAPER,
    TOPK,
    TOPK_OUR_SETTINGS,
    VANILLA,
)
from osae.experiments.worlds.figures import draw_sweep
from osae.experiments.worlds.measuring import measure_chance, measure_rows
from osae.experiments.worlds.options import ZipfOptions
from osae.experiments.worlds.training import add_sorted, train_saes
from osae.prefix import Boundaries, Full, PrefixWeights, RandomBoundaries, Zipf
from osae.progress import Progress
from osae.recipes import Recipe, Task, group_ends, world_recipe
from osae.results.experiment import ExperimentResult, Section
from osae.schedule import LearningRate

STEPS, QUICK_STEPS, BATCH = 30_000, 2_000, 500
OUR_STEPS = 1 / 3  # share of `STEPS`: at a hundred times the learning rate, our recipes need no more
NOTE = (
    f"`{OSAE}` and `{TOPK_OUR_SETTINGS}` train at our settings (learning rate 1e-2 with decay, warm-up of k, "
    "splitting) for a third of the steps; all others train at the appendix's (1e-4, none of these). Compare "
    "methods within each of the two groups."
)


def run(options: ZipfOptions, progress: Progress) -> ExperimentResult:
    """Return a section for each exponent."""
    base = SparseWorld(width=16, units=32, active=3, samples=50_000)
    base = replace(base, **options.world_changes())
    worlds = [replace(base, zipf=exponent) for exponent in options.exponent_list]
    sections = tuple(_run_exponent(world, options, progress) for world in worlds)
    result = ExperimentResult(
        experiment="zipf",
        title="The Zipfian world: measures against the exponent",
        world=to_json(base),
        seeds=options.seed_list,
        sections=sections,
        figures=(draw_sweep(sections, options.out),),
        notes=(NOTE,),
    )
    return add_claims(result, conclusive=options.conclusive)


def _run_exponent(world: SparseWorld, options: ZipfOptions, progress: Progress) -> Section:
    """Return the table of one exponent."""
    recipes = zipf_recipes(world, QUICK_STEPS if options.quick else STEPS)
    groups = add_sorted(
        train_saes(world, recipes, options, progress, folder=Path(f"alpha{world.zipf}")), world
    )
    return Section(
        f"Zipf exponent {world.zipf}",
        measure_rows(groups, world),
        chance=measure_chance(groups, world),
        world=to_json(world),
        x=world.zipf,
    )


def zipf_recipes(world: SparseWorld, steps: int) -> list[Recipe]:
    """Return the appendix's methods at its settings, and our methods at our settings, for fewer steps."""
    task = Task(world.width, world.units, world.active, samples=steps * BATCH)
    ours = replace(task, samples=int(steps * OUR_STEPS) * BATCH)
    as_paper = {"lr": LearningRate(1e-4), "k_warmup": None, "revival": None}
    weights = Zipf(world.zipf)
    ends = group_ends(world.units, 8)
    equal = tuple(world.units * group // 8 for group in range(1, 9)) if world.units >= 8 else ends
    prefixes: dict[str, PrefixWeights] = {
        TOPK: Full(),
        MATRYOSHKA_FIXED: _weigh(ends, world),
        MATRYOSHKA_EQUAL: _weigh(equal, world),
        MATRYOSHKA_RANDOM: RandomBoundaries(weights, 4),
        OSAE_PAPER: weights,
    }
    plain = alter(world_recipe(VANILLA, task), {**as_paper, "sae.sparsifier.l1": 0.01})
    settings = [
        replace(
            alter(
                world_recipe(MATRYOSHKA_FIXED if name == MATRYOSHKA_EQUAL else name, task),
                {**as_paper, "sweep": None, "prefix": prefix},
            ),
            name=name,
        )
        for name, prefix in prefixes.items()
    ]
    our_topk = replace(world_recipe(TOPK, ours), name=TOPK_OUR_SETTINGS)
    return [plain, *settings, our_topk, world_recipe(OSAE, ours)]


def _weigh(ends: tuple[int, ...], world: SparseWorld) -> Boundaries:
    """Return boundaries weighted by the world's Zipf law, evaluated at their last units."""
    return Boundaries(ends, tuple(float(end) ** -world.zipf for end in ends))
