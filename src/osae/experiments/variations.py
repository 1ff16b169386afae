"""The other experiments on worlds: sizes, the Zipf sweep, PCA, energy against frequency, ablations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from osae import metrics
from osae.config import alter, to_json
from osae.data.worlds import PCAWorld, SparseWorld
from osae.experiments import figures_of, world_claims
from osae.experiments.measure import EVALUATION_ROWS, interval
from osae.experiments.toy import Options, Progress, chance, measure_rows, train_saes
from osae.experiments.trained import Job, train_all
from osae.experiments.tuned import tuned
from osae.model import SAE, SAEConfig
from osae.prefix import Boundaries, Full, Geometric, Mixed, Piecewise, RandomBoundaries, Uniform, Zipf
from osae.recipes import Recipe, Task, group_ends, world_recipe
from osae.revival import AuxK
from osae.schedule import LearningRate, Resort, Sweep
from osae.sparsify import Linear

SIZES = ((10, 2), (30, 3), (50, 5))
DRAWN = ("topk", "osae-paper", "osae")  # the paper draws its vanilla SAE and the O-SAE
ALPHAS, QUICK_ALPHAS = (0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 1.0)
ZIPF_STEPS, QUICK_ZIPF_STEPS = 30_000, 2_000
OUR_ZIPF_STEPS = 1 / 3  # of these: at a hundred times the rate our recipes need no more
FEW_SEEDS = 5
OUR_TOPK = "topk-our-settings"


def sizes(options: Options, progress: Progress) -> dict[str, Any]:
    """The table of the Gaussian world at smaller dictionaries, one section for each size."""
    options.world_fields("width", "zipf", "samples", "seed")
    base = replace(SparseWorld(), **options.world)
    options = replace(options, seeds=options.seeds or (2 if options.quick else FEW_SEEDS))
    sections, figures = [], []
    for units, active in SIZES:
        world = replace(base, units=units, active=active)
        folder = f"K{units}-m{active}"
        recipes = [tuned(name, options.task(world)) for name in options.method_list()]
        saes, seconds = train_saes(world, recipes, options, progress, folder=f"{folder}/saes")
        rows = measure_rows(saes, seconds, world)
        title = f"{units} atoms, {active} active"
        sections.append({"title": title, "world": to_json(world), "chance": chance(world), "rows": rows})
        drawn = {name: group for name, group in saes.items() if name in DRAWN} or saes
        made = figures_of.world_figures(drawn, world, options.out / folder)
        figures += [{"file": f"{folder}/{f['file']}", "caption": f"{title}. {f['caption']}"} for f in made]
    about = {"title": "Other sizes of the Gaussian world", "seeds": options.seed_list, "sections": sections}
    claims = world_claims.other_sizes(sections) if options.conclusive else []
    return about | {"world": to_json(base), "rows": [], "claims": claims, "figures": figures, "notes": []}


def zipf(options: Options, progress: Progress) -> dict[str, Any]:
    """All measures against the world's Zipf exponent, trained as the paper's appendix says."""
    options.only("width", "units", "active", "samples", "seed")
    base = replace(SparseWorld(width=16, units=32, active=3, samples=50_000), **options.world)
    options = replace(options, seeds=options.seeds or (2 if options.quick else FEW_SEEDS))
    sections = []
    for alpha in options.exponents or (QUICK_ALPHAS if options.quick else ALPHAS):
        world = replace(base, zipf=alpha)
        recipes = zipf_recipes(world, QUICK_ZIPF_STEPS if options.quick else ZIPF_STEPS)
        saes, seconds = train_saes(world, recipes, options, progress, folder=f"alpha{alpha}/saes")
        rows = measure_rows(saes, seconds, world)
        title = f"Zipf exponent {alpha}"
        sections.append(
            {"title": title, "x": alpha, "world": to_json(world), "chance": chance(world), "rows": rows}
        )
    return {
        "title": "The Zipfian world: measures against the exponent",
        "world": to_json(base),
        "seeds": options.seed_list,
        "rows": [],
        "sections": sections,
        "claims": world_claims.zipfian(sections, OUR_TOPK) if options.conclusive else [],
        "figures": [figures_of.sweep_figure(sections, options.out)],
        "notes": [
            f"`osae` and `{OUR_TOPK}` train at our settings (learning rate 1e-2 that falls, warm-up of k, "
            "splitting) for a third of the steps; all others at the appendix's (1e-4, none of these). "
            "Compare within each kind."
        ],
    }


def zipf_recipes(world: SparseWorld, steps: int) -> list[Recipe]:
    """The appendix's methods at its settings, and ours at ours, for fewer steps."""
    task = Task(world.width, world.units, world.active, samples=steps * 500)
    ours = replace(task, samples=int(steps * OUR_ZIPF_STEPS) * 500)
    as_paper = {"lr": LearningRate(1e-4), "k_warmup": None, "revival": None}
    weights = Zipf(world.zipf)
    at_ends = group_ends(world.units, 8)
    masses = tuple(float(end) ** -world.zipf for end in at_ends)
    prefixes = {
        "topk": Full(),
        "matryoshka-fixed": Boundaries(at_ends, masses),
        "matryoshka-random": RandomBoundaries(weights, 4),
        "osae-paper": weights,
    }
    plain = alter(world_recipe("vanilla", task), {**as_paper, "sae.sparsifier.l1": 0.01})
    settings = [
        alter(world_recipe(name, task), {**as_paper, "sweep": None, "prefix": prefix})
        for name, prefix in prefixes.items()
    ]
    return [plain, *settings, replace(world_recipe("topk", ours), name=OUR_TOPK), world_recipe("osae", ours)]


def ablate(options: Options, progress: Progress) -> dict[str, Any]:
    """Our recipe with one choice changed at a time."""
    title = "Ablations: one choice changed at a time"
    return _changed(title, ablations, options, progress)


def schedules(options: Options, progress: Progress) -> dict[str, Any]:
    """The paper's recipe without each of its two schedules."""
    results = _changed("The paper's recipe without its schedules", unscheduled, options, progress)
    claims = world_claims.schedules(results["rows"]) if options.conclusive else []
    return {**results, "claims": claims}


def _changed(
    title: str, recipes_of: Callable[[Task], list[Recipe]], options: Options, progress: Progress
) -> dict[str, Any]:
    """The table of recipes that differ in one choice each, on the Gaussian world."""
    options.only("width", "units", "active", "zipf", "samples", "seed")
    world = replace(SparseWorld(), **options.world)
    options = replace(options, seeds=options.seeds or (2 if options.quick else FEW_SEEDS))
    saes, seconds = train_saes(world, recipes_of(options.task(world)), options, progress)
    rows = measure_rows(saes, seconds, world)
    keys = ("stability_truth", "orderedness_truth", "stability_pairs", "mse")
    return {
        "title": title,
        "world": to_json(world),
        "seeds": options.seed_list,
        "chance": chance(world),
        "rows": rows,
        "figures": [figures_of.bars_figure(rows, keys, options.out)],
        "notes": [],
    }


def ablations(task: Task) -> list[Recipe]:
    """The recipe `osae` and its neighbours, named by what differs."""
    base = world_recipe("osae", task)
    changes: dict[str, dict[str, Any]] = {
        "osae": {},
        "no sorting": {"resort": None},
        "sorted at the end only": {"resort": Resort(1)},
        "no warm-up of k": {"k_warmup": None},
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


def unscheduled(task: Task) -> list[Recipe]:
    """The recipe `osae-paper`, and without unit sweeping, and without warm-up of k."""
    changes: dict[str, dict[str, Any]] = {
        "osae-paper": {},
        "no unit sweeping": {"sweep": None},
        "no warm-up of k": {"k_warmup": None},
    }
    return [replace(alter(tuned("osae-paper", task), by), name=name) for name, by in changes.items()]


def energy(options: Options, progress: Progress) -> dict[str, Any]:
    """Which order the objective finds when how often an atom occurs and how much it explains disagree."""
    options.only("width", "samples", "seed")
    units = 20
    strengths = tuple(float(j) ** 1.2 / 5 for j in range(1, units + 1))
    world = SparseWorld(40, units, 2, zipf=1.0, samples=50_000, strengths=strengths)
    world = replace(world, **options.world)
    options = replace(options, seeds=options.seeds or (2 if options.quick else FEW_SEEDS))
    recipes = [world_recipe(name, options.task(world)) for name in ("topk", "osae-paper", "osae")]
    saes, seconds = train_saes(world, recipes, options, progress)
    rows = measure_rows(saes, seconds, world)
    samples = world.draw("test", EVALUATION_ROWS)
    code, atoms = samples.code, world.dictionary()
    orders = {
        "frequency": metrics.frequency(code.values, code.units, units).argsort(descending=True),
        "energy": code.dense(units).square().mean(0).argsort(descending=True),
    }
    for row in rows:
        group = saes[row["method"]].values()
        for name, order in orders.items():
            found = [metrics.orderedness(sae.decoder, atoms[order]) for sae in group]
            row[f"orderedness_{name}"] = interval(metrics.mean_interval(found))
    between = metrics.rank_correlation(orders["frequency"].argsort(), orders["energy"].argsort())
    return {
        "title": "The objective orders by explained energy, not by frequency",
        "world": to_json(world),
        "seeds": options.seed_list,
        "chance": chance(world),
        "columns": ["orderedness_frequency", "orderedness_energy", "stability_truth", "mse", "seconds"],
        "rows": rows,
        "claims": world_claims.order_by_energy(rows, between) if options.conclusive else [],
        "figures": [],
        "notes": [
            f"The orders by frequency and by energy have rank correlation {between:.2f} in this world.",
            "The paper's theorem says the order is by frequency; what the objective sees is energy.",
        ],
    }


def pca(options: Options, progress: Progress) -> dict[str, Any]:
    """The nested loss on a linear code: each unit against the principal direction of its place."""
    options.only("width", "units", "samples", "seed")
    world = replace(PCAWorld(), **options.world)
    options = replace(options, seeds=options.seeds or (2 if options.quick else FEW_SEEDS))
    recipes = [pca_recipe(world, "ordered", Uniform()), pca_recipe(world, "plain", Full())]
    jobs = [Job(r, seed, world) for r in recipes for seed in options.seed_list]
    saes: dict[str, list[SAE]] = {r.name: [] for r in recipes}
    progress(0, len(jobs), "training")
    for count, done in enumerate(train_all(jobs, options.out / "saes", workers=options.jobs), start=1):
        saes[done.job.recipe.name].append(done.sae)
        progress(count, len(jobs), f"trained {done.job.recipe.name}, seed {done.job.seed}")
    rows = [_pca_row(name, group, world) for name, group in saes.items()]
    level = metrics.chance_level(world.units, world.units, world.width, absolute=True)
    return {
        "title": "The PCA world: |cosine| of each unit with the principal direction of its place",
        "world": to_json(world),
        "seeds": options.seed_list,
        "chance": {"stability": level.stability, "orderedness": level.orderedness},
        "columns": ["least_cosine", "cosine_in_place", "mse", "least_possible_mse"],
        "rows": rows,
        "claims": world_claims.principal_directions(rows) if options.conclusive else [],
        "figures": [],
        "notes": [
            "`plain` may only find the span of the leading directions; `ordered` finds each, in order."
        ],
    }


def pca_recipe(world: PCAWorld, name: str, prefix: Uniform | Full) -> Recipe:
    """A linear autoencoder under a prefix distribution."""
    sae = SAEConfig(world.width, world.units, Linear(), encoder_bias=False, decoder_bias=False)
    rate = LearningRate(2e-2, decay=0.8)
    return Recipe(name, sae, samples=30 * world.samples, batch=500, lr=rate, prefix=prefix)


@torch.no_grad()
def _pca_row(name: str, saes: Sequence[SAE], world: PCAWorld) -> dict[str, Any]:
    directions, x = world.dictionary(), world.draw("test", EVALUATION_ROWS).x
    in_place = [(sae.decoder * directions).sum(-1).abs() for sae in saes]
    errors = [metrics.mse(x, sae(x).reconstruction) for sae in saes]
    best = metrics.mse(x, x @ directions.T @ directions)
    numbers = {
        "least_cosine": [float(c.min()) for c in in_place],
        "cosine_in_place": [float(c.mean()) for c in in_place],
        "mse": errors,
        "least_possible_mse": [best] * len(saes),
    }
    measured = {key: interval(metrics.mean_interval(values)) for key, values in numbers.items()}
    return {"method": name, "paper": None, **measured}
