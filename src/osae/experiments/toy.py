"""Table 1: every recipe on the Gaussian world, against the truth and across seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from osae import metrics, passes
from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments import claims, figures_of, published, world_claims
from osae.experiments.measure import EVALUATION_ROWS, Truth, row
from osae.experiments.trained import Job, train_all
from osae.experiments.tuned import tuned
from osae.model import SAE
from osae.recipes import WORLD_RECIPES, Recipe, Task

SAMPLES_PER_UNIT, QUICK_SAMPLES_PER_UNIT = 25_000, 4_000  # seen in training; table 1: 25 epochs
LEAST_UNITS = 50  # smaller worlds train as long as one of this size
SEEDS, QUICK_SEEDS = 10, 2
PUBLISHED = ("stability_pairs", "stability_truth", "orderedness_truth", "mse")
MANY_SEEDS = 5  # for an interval to mean much
SORTED: tuple[tuple[passes.By, str], ...] = (("energy", "sorted"), ("gain", "sorted-by-gain"))


@dataclass(frozen=True)
class Options:
    """What a reader may choose about an experiment."""

    out: Path
    seeds: int | None = None
    quick: bool = False
    jobs: int = 2
    methods: tuple[str, ...] | None = None
    world: Mapping[str, Any] = field(default_factory=dict)
    exponents: tuple[float, ...] | None = None  # of the Zipf sweep

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds or (QUICK_SEEDS if self.quick else SEEDS)))

    def method_list(self) -> tuple[str, ...]:
        """The recipes asked for, by default all."""
        return self.methods if self.methods is not None else tuple(WORLD_RECIPES)

    @property
    def conclusive(self) -> bool:
        """Whether the run is long enough for verdicts."""
        return not self.quick and len(self.seed_list) >= claims.ENOUGH_SEEDS

    def only(self, *fields: str) -> None:
        """Refuses choices that an experiment has no use for: it takes these fields of the world at most."""
        if self.methods is not None:
            raise ValueError("this experiment has methods of its own: leave out --methods.")
        self.world_fields(*fields)

    def world_fields(self, *fields: str) -> None:
        """Refuses fields of the world other than these."""
        if unused := [name for name in self.world if name not in fields]:
            takes = ", ".join(fields) or "nothing"
            raise ValueError(f"this experiment sets the world's {unused[0]} itself: you may choose {takes}.")

    def task(self, world: SparseWorld) -> Task:
        """The task of the table's recipes on a world: more atoms, more samples to see."""
        per_unit = QUICK_SAMPLES_PER_UNIT if self.quick else SAMPLES_PER_UNIT
        samples = per_unit * max(world.units, LEAST_UNITS)
        return Task(world.width, world.units, world.active, samples)


Progress = Callable[[int, int, str], None]


def toy(options: Options, progress: Progress) -> dict[str, Any]:
    """Table 1 as results: one row per recipe, and TopK sorted afterwards."""
    world = replace(SparseWorld(), **options.world)
    recipes = [tuned(name, options.task(world)) for name in options.method_list()]
    saes, seconds = train_saes(world, recipes, options, progress)
    rows = measure_rows(saes, seconds, world)
    figures = figures_of.world_figures(saes, world, options.out)
    return {
        "title": "Table 1: the Gaussian world",
        "world": to_json(world),
        "seeds": options.seed_list,
        "chance": chance(world),
        "rows": rows,
        "claims": world_claims.table_1(rows) if options.conclusive else [],
        "figures": figures,
        "notes": notes(rows, options),
    }


def train_saes(
    world: SparseWorld,
    recipes: Sequence[Recipe],
    options: Options,
    progress: Progress,
    *,
    folder: str = "saes",
) -> tuple[dict[str, dict[int, SAE]], dict[str, float]]:
    """The SAEs of every recipe by seed, with "TopK, sorted afterwards" among them; and mean seconds."""
    jobs = [Job(recipe, seed, world) for recipe in recipes for seed in options.seed_list]
    saes: dict[str, dict[int, SAE]] = {recipe.name: {} for recipe in recipes}
    seconds: dict[str, float] = dict.fromkeys(saes, 0.0)
    progress(0, len(jobs), "training")
    for count, done in enumerate(train_all(jobs, options.out / folder, workers=options.jobs), start=1):
        name = done.job.recipe.name
        saes[name][done.job.seed] = done.sae
        seconds[name] += done.seconds / len(options.seed_list)
        progress(count, len(jobs), f"trained {name}, seed {done.job.seed}")
    in_order = {name: dict(sorted(group.items())) for name, group in saes.items()}
    return add_sorted(in_order, world), seconds


def add_sorted(saes: Mapping[str, dict[int, SAE]], world: SparseWorld) -> dict[str, dict[int, SAE]]:
    """The same, and after each TopK its units sorted on the training samples, by energy and by gain."""
    result: dict[str, dict[int, SAE]] = {}
    for name, group in saes.items():
        result[name] = group
        if name.startswith("topk"):
            x = world.draw("train").x
            for by, label in SORTED:
                orders = {s: passes.order_units(sae, x.split(passes.ROWS), by=by) for s, sae in group.items()}
                result[f"{name}-{label}"] = {s: sae.reorder(orders[s]) for s, sae in group.items()}
    return result


def measure_rows(
    saes: Mapping[str, dict[int, SAE]], seconds: Mapping[str, float], world: SparseWorld
) -> list[dict[str, Any]]:
    """One row per method, with the published row beside it on the world of the paper."""
    truth = Truth(world.dictionary(), world.draw("test", EVALUATION_ROWS))
    as_published = replace(world, seed=0) == SparseWorld()
    rows = []
    for name, group in saes.items():
        about = {
            "method": name,
            "seconds": seconds.get(name),
            "paper": published.beside(name) if as_published else None,
        }
        rows.append({**about, **row(group, truth)})
    return rows


def chance(world: SparseWorld) -> dict[str, float]:
    """Stability and orderedness of two random dictionaries of the world's shape."""
    level = metrics.chance_level(world.units, world.units, world.width)
    return {"stability": level.stability, "orderedness": level.orderedness}


def notes(rows: Sequence[Mapping[str, Any]], options: Options) -> list[str]:
    """What the table says in words, computed from it."""
    said = []
    for found in rows:
        if paper := found["paper"]:
            ahead = [key for key in PUBLISHED if key in found and _sign(key, found[key], paper[key]) >= 0]
            of_all = f"{len(ahead)} of {len(PUBLISHED)} measures"
            said.append(f"{found['method']}: at least as good as the paper's {paper['label']} on {of_all}.")
    if len(options.seed_list) < MANY_SEEDS:
        said.append(
            f"{len(options.seed_list)} seeds hardly tell methods apart: ask for {MANY_SEEDS} or more."
        )
    if options.quick:
        said.append("A quick run, with short training. Leave out --quick for the real table.")
    return said


def _sign(key: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Positive where ours is better."""
    difference = ours["mean"] - theirs["mean"]
    return -difference if key == "mse" else difference
