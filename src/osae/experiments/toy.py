"""Table 1: every recipe on the Gaussian world, against the truth and across seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osae import metrics
from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments import figures_of, published
from osae.experiments.measure import EVALUATION_ROWS, Truth, gain_order, row
from osae.experiments.trained import Job, all_trained
from osae.experiments.tuned import tuned
from osae.model import SAE
from osae.recipes import RECIPES, Recipe, Task

SAMPLES_PER_UNIT, QUICK_SAMPLES_PER_UNIT = 30_000, 8_000  # seen in training; table 1: 30 epochs
LEAST_UNITS = 50  # smaller worlds train as long as one of this size
SEEDS, QUICK_SEEDS = 10, 2
COMPARED = ("stability_pairs", "stability_truth", "orderedness_truth", "mse")


@dataclass(frozen=True)
class Options:
    """What a reader may choose about an experiment."""

    out: Path
    seeds: int | None = None
    quick: bool = False
    jobs: int = 2
    methods: tuple[str, ...] = tuple(RECIPES)
    world: SparseWorld | None = None

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds or (QUICK_SEEDS if self.quick else SEEDS)))

    def task(self, world: SparseWorld) -> Task:
        """The task of the table's recipes on a world: more atoms, more samples to see."""
        per_unit = QUICK_SAMPLES_PER_UNIT if self.quick else SAMPLES_PER_UNIT
        samples = per_unit * max(world.units, LEAST_UNITS)
        return Task(world.width, world.units, world.active, samples)


Progress = Callable[[int, int, str], None]


def toy(options: Options, progress: Progress) -> dict[str, Any]:
    """Table 1 as results: one row per recipe, and TopK sorted afterwards."""
    world = options.world or SparseWorld()
    recipes = [tuned(name, options.task(world)) for name in options.methods]
    saes, seconds = trained_saes(world, recipes, options, progress)
    rows = measured_rows(saes, seconds, world)
    figures = figures_of.world_figures(saes, world, options.out)
    return {
        "title": "Table 1: the Gaussian world",
        "world": to_json(world),
        "seeds": options.seed_list,
        "chance": chance(world),
        "rows": rows,
        "figures": figures,
        "notes": notes(rows, options),
    }


def trained_saes(
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
    for count, done in enumerate(all_trained(jobs, options.out / folder, workers=options.jobs), start=1):
        name = done.job.recipe.name
        saes[name][done.job.seed] = done.sae
        seconds[name] += done.seconds / len(options.seed_list)
        progress(count, len(jobs), f"trained {name}, seed {done.job.seed}")
    in_order = {name: dict(sorted(group.items())) for name, group in saes.items()}
    return with_sorted(in_order, world), seconds


def with_sorted(saes: Mapping[str, dict[int, SAE]], world: SparseWorld) -> dict[str, dict[int, SAE]]:
    """The same, with TopK's units sorted on the training samples, by energy and by gain, right after it."""
    result: dict[str, dict[int, SAE]] = {}
    for name, group in saes.items():
        result[name] = group
        if name == "topk":
            x = world.draw("train").x
            for by, label in (("energy", "topk-sorted"), ("gain", "topk-sorted-by-gain")):
                result[label] = {s: sae.reordered(gain_order(sae, x, by=by)) for s, sae in group.items()}
    return result


def measured_rows(
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
        paper = found["paper"]
        if not paper:
            continue
        ahead = [
            key for key in COMPARED if key in found and _better(key, found[key]["mean"], paper[key]["mean"])
        ]
        said.append(
            f"{found['method']}: ahead of the paper's {paper['label']} on {len(ahead)} of {len(COMPARED)}."
        )
    by_name = {found["method"]: found for found in rows}
    if {"osae", "topk-sorted-by-gain"} <= set(by_name):
        ours, sorted_after = by_name["osae"], by_name["topk-sorted-by-gain"]
        for key in COMPARED:
            if key in ours and key in sorted_after:
                a, b = ours[key], sorted_after[key]
                apart = a["low"] > b["high"] or a["high"] < b["low"]
                verdict = "apart" if apart else "not told apart by their 95 % intervals"
                said.append(
                    f"{key}: osae {a['mean']:.4g}, TopK sorted afterwards {b['mean']:.4g}: {verdict}."
                )
    if options.quick:
        said.append("A quick run: few seeds and short training. Leave out --quick for the real table.")
    return said


def _better(key: str, ours: float, theirs: float) -> bool:
    return ours <= theirs if key == "mse" else ours >= theirs
