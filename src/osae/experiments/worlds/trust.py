"""Does reproducibility separate true atoms from false ones, and does it predict what the next run finds?

On worlds, every unit is compared with the true features. On activations there are none, but each run in turn
is left out of the scores: how often it finds units with a given score measures their calibration.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import defaults, metrics
from osae.config import to_json
from osae.data.shards import Shards
from osae.data.source import OnDisk, SourceSpec
from osae.data.worlds import ForestWorld, SparseWorld
from osae.experiments.jobs import Job, train_all
from osae.experiments.worlds.figures import make_folder
from osae.experiments.worlds.options import TrustTestOptions
from osae.experiments.worlds.trials import tuned_recipe
from osae.metrics import statistics
from osae.metrics.reproducibility import SAME, Calibration
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe, Task, recipe, world_recipe
from osae.results.base import Interval
from osae.results.experiment import ExperimentResult, Figure, MethodRow, Section
from osae.results.units import SAEUnits, UnitTable
from osae.studies.compare import compare
from osae.studies.trust import split_rows

SHORT = (1000, 1500, 2000)  # samples per unit that a short run sees; the tables take 25,000
QUICK_SHORT = (1500,)
TABLE = SparseWorld()
FOREST = ForestWorld(
    width=64, units=96, active=4.0, zipf=0.5, samples=100_000, roots=16, branching=3, depth=1, correlation=0.3
)
FOREST_SHORT = (2000, 1000)  # the first with --quick
MEASURED_ROWS = 8000
UNITS, K = 512, 24  # of SAEs on activations
BATCH = 500  # on worlds


@dataclass(frozen=True, eq=False)
class TrustSetting:
    """Data to train on: a source for each run, rows to measure on, and the true features if known."""

    title: str
    folder: str
    recipes: tuple[Recipe, ...]
    sources: tuple[SourceSpec, ...]
    rows: Tensor | Shards
    features: Float[Tensor, "F d"] | None


@dataclass(frozen=True)
class MethodScores:
    """The results of one method: its row, and its calibration."""

    row: MethodRow
    calibration: Calibration


def run(options: TrustTestOptions, progress: Progress) -> ExperimentResult:
    """Return a section for each setting: worlds with short training, or activations if they are given."""
    runs = len(options.seed_list)
    settings = list(_activations(options, runs) if options.data else _worlds(options, runs))
    sections, curves = [], {}
    for setting in settings:
        found = [_score(setting, each, options, progress) for each in setting.recipes]
        sections.append(Section(setting.title, tuple(one.row for one in found), columns=_columns(setting)))
        if setting.features is None:
            sections += [_tabulate(one) for one in found]
        curves |= {f"{one.row.method}, {setting.title}": one.calibration for one in found}
    return ExperimentResult(
        experiment="trust",
        title="Which units can be trusted: reproducibility against the truth and against the next run",
        world={},
        seeds=options.seed_list,
        sections=tuple(sections),
        figures=(_draw(curves, options.out),),
        notes=(
            f"Each of the {runs} runs is held out in turn: the scores of the other {runs - 1} predict what "
            "it finds. The calibration error is the mean over held-out runs, whose predictions share runs.",
            f"A unit counts as true if its cosine with a true feature exceeds {SAME:.3f}, as for units that "
            "count as found again.",
        ),
    )


def _columns(setting: TrustSetting) -> tuple[str, ...]:
    of_truth = (
        ("true_units", "auc", "auc_support", "auc_nearest", "auc_matched")
        if setting.features is not None
        else ()
    )
    found = ("found_units", "calibration_error", "found_next_always", "found_next_never")
    return (*of_truth, *found, "calibration_error_three", "calibration_error_worst", "found_fourth")


def _tabulate(found: MethodScores) -> Section:
    """Return the calibration curve as a table."""
    bins = zip(*found.calibration, strict=True)
    rows = (
        {"binned_expected": expected, "binned_found": seen, "binned_units": units}
        for expected, seen, units in bins
    )
    return Section(
        f"Calibration of {found.row.method}: units by the share of further runs expected to find them",
        tuple(MethodRow(_name_bin(row["binned_expected"]), measures=row) for row in rows),
        columns=("binned_expected", "binned_found", "binned_units"),
        head="Expected share",
    )


def _name_bin(expected: float) -> str:
    tenth = min(int(expected * 10), 9)
    return f"{tenth / 10} to {(tenth + 1) / 10}"


# --- settings ---------------------------------------------------------------------------------------


def _worlds(options: TrustTestOptions, runs: int) -> Iterator[TrustSetting]:
    if "table" in options.world_kinds:
        yield from _tables(options, runs)
    if "trees" in options.world_kinds:
        yield from _forests(options, runs)


def _tables(options: TrustTestOptions, runs: int) -> Iterator[TrustSetting]:
    table = replace(TABLE, seed=options.world_seed or 0)
    for samples in QUICK_SHORT if options.quick else SHORT:
        task = Task(table.width, table.units, table.active, samples * table.units, batch=BATCH)
        yield TrustSetting(
            f"Table 1's world, {samples:,} samples per unit",
            f"gaussian-{samples}",
            tuple(tuned_recipe(name, task) for name in options.methods),
            (table,) * runs,
            table.draw("test", MEASURED_ROWS).x,
            table.dictionary(),
        )


def _forests(options: TrustTestOptions, runs: int) -> Iterator[TrustSetting]:
    forest = replace(FOREST, seed=options.world_seed or 0)
    for samples in FOREST_SHORT[:1] if options.quick else FOREST_SHORT:
        task = Task(forest.width, forest.units, round(forest.active), samples * forest.units, batch=BATCH)
        yield TrustSetting(
            f"Trees of correlated atoms, {samples:,} samples per unit",
            f"forest-{samples}",
            tuple(world_recipe(name, task) for name in options.methods),
            tuple(replace(forest, part=part) for part in range(runs)),
            forest.draw("test", MEASURED_ROWS).x,
            list_features(forest),
        )


def list_features(world: ForestWorld) -> Float[Tensor, "F d"]:
    """Return the directions that count as correct for a unit: atoms, and atoms plus their ancestors.

    A child fires only where its parent does. One unit for both together needs fewer active units than one
    unit for each, so both descriptions of such data are correct.
    """
    atoms, parents = world.dictionary(), world.trees().parents
    found = [atoms]
    sums, above = atoms.clone(), torch.from_numpy(parents).clone()
    while bool((above >= 0).any()):
        inside = above >= 0
        sums[inside] += atoms[above[inside]]
        found.append(torch.nn.functional.normalize(sums[inside], dim=1))
        above[inside] = torch.from_numpy(parents)[above[inside]]
    return torch.cat(found)


def _activations(options: TrustTestOptions, runs: int) -> Iterator[TrustSetting]:
    """Yield the activations, in parts of documents that only one run sees."""
    assert options.data is not None
    whole = Shards(options.data)
    *parts, measured = split_rows(whole, options.out / "data", runs)
    samples = options.tokens or min(part.rows for part in parts)
    batch = min(defaults.BATCH, samples)
    task = Task(whole.width, options.units or UNITS, options.k or K, samples, batch=batch)
    yield TrustSetting(
        f"{options.data.name}, {samples:,} samples",
        options.data.name,
        tuple(recipe(name, task) for name in options.methods),
        tuple(OnDisk(str(part.folder.absolute()), part.provenance()["sha256"]) for part in parts),
        measured,
        None,
    )


# --- scores -----------------------------------------------------------------------------------------


def _score(
    setting: TrustSetting, chosen: Recipe, options: TrustTestOptions, progress: Progress
) -> MethodScores:
    """Train the runs of a recipe and return its row and calibration."""
    saes = _train(setting, chosen, options, progress)
    result = compare(saes, data=setting.rows, prefixes=[], chance_draws=0)
    assert result.units is not None
    turns, seeds = predict_runs(result.units), options.seed_list
    calibration = metrics.calibration(*map(torch.cat, zip(*turns, strict=True)))
    errors = [metrics.calibration(*turn).error for turn in turns]
    found = [float(_column(sae, "reproducibility").mean()) for sae in result.units.saes]
    measures: dict[str, Interval | float | None] = {
        "found_units": statistics.runs_interval(dict(zip(seeds, found, strict=True))),
        "calibration_error": statistics.runs_interval(dict(zip(seeds, errors, strict=True))),
        "found_next_always": calibration.observed[-1],
        "found_next_never": calibration.observed[0],
    }
    measures |= _predict_fourth(result.units)
    if setting.features is not None:
        measures |= _against_truth(result.units, dict(zip(seeds, saes, strict=True)), setting.features)
    return MethodScores(MethodRow(chosen.name, recipe=to_json(chosen), measures=measures), calibration)


def _train(setting: TrustSetting, chosen: Recipe, options: TrustTestOptions, progress: Progress) -> list[SAE]:
    jobs = [Job(chosen, seed, setting.sources[seed]) for seed in options.seed_list]
    saes: dict[int, SAE] = {}
    for count, done in enumerate(train_all(jobs, _folder(options, setting), place=options.place), start=1):
        saes[done.job.seed] = done.sae
        progress(count, len(jobs), f"trained {chosen.name}, seed {done.job.seed}, {setting.title}")
    return [saes[seed] for seed in options.seed_list]


def _folder(options: TrustTestOptions, setting: TrustSetting) -> Path:
    return options.out / setting.folder / "saes"


def predict_runs(units: UnitTable) -> list[tuple[Float[Tensor, "n"], Bool[Tensor, "n"]]]:
    """Return, for each SAE, the predicted chance that it finds each unit of the others, and whether it does.

    The SAE itself is not used in the prediction.
    """
    places = range(len(units.saes))
    turns = (_count_found(units, [place for place in places if place != last], last) for last in places)
    return [(metrics.expected_share(counts, len(places) - 2), found) for counts, found in turns]


def _count_found(
    units: UnitTable, runs: Sequence[int], last: int
) -> tuple[Int[Tensor, "n"], Bool[Tensor, "n"]]:
    """Return for each unit of some runs how many others of them find it, and whether the last one does."""
    counts, found = [], []
    for place in runs:
        by_sae = {partners.sae: torch.tensor(partners.found) for partners in units.saes[place].partners}
        counts.append(torch.stack([by_sae[other] for other in runs if other != place]).sum(0))
        found.append(by_sae[last])
    return torch.cat(counts), torch.cat(found)


def _predict_fourth(units: UnitTable) -> dict[str, float | None]:
    """Return how well any three runs predict any other one; nothing if there are fewer than four."""
    errors, again = [], []
    places = range(len(units.saes))
    for runs in combinations(places, 3):
        for last in (place for place in places if place not in runs):
            counts, found = _count_found(units, runs, last)
            errors.append(metrics.calibration(metrics.expected_share(counts, 2), found).error)
            again += [float(found[counts == 2].double().mean())] if bool((counts == 2).any()) else []
    if not errors:
        return {}
    return {
        "calibration_error_three": sum(errors) / len(errors),
        "calibration_error_worst": max(errors),
        "found_fourth": sum(again) / len(again) if again else None,
    }


def _against_truth(
    units: UnitTable, saes: Mapping[int, SAE], features: Float[Tensor, "F d"]
) -> dict[str, Interval | float | None]:
    """Return the share of true features among units, and how well scores separate those from the others."""
    by_seed = {seed: _is_true(sae, features) for seed, sae in saes.items()}
    shares = {seed: float(true.double().mean()) for seed, true in by_seed.items()}
    true = torch.cat(list(by_seed.values()))
    keys = {
        "auc": "reproducibility",
        "auc_support": "support",
        "auc_nearest": "nearest_cosine",
        "auc_matched": "matched_cosine",
    }
    ranked = {name: metrics.ranking_quality(_scores(units, key), true) for name, key in keys.items()}
    return {"true_units": statistics.runs_interval(shares), **ranked}


def _is_true(sae: SAE, features: Float[Tensor, "F d"]) -> Bool[Tensor, "K"]:
    near, _ = metrics.find_neighbours(sae.decoder, features)
    return near.cosine > SAME


def _scores(units: UnitTable, key: str) -> Float[Tensor, "n"]:
    return torch.cat([_column(sae, key) for sae in units.saes])


def _column(sae: SAEUnits, key: str) -> Float[Tensor, "n"]:
    return torch.tensor([value or 0.0 for value in sae.measures[key]], dtype=torch.float64)


def _draw(curves: dict[str, Calibration], out: Path) -> Figure:
    """Draw how often a held-out run finds units, against what the other runs predict."""
    from osae.report import figures

    path = make_folder(out) / "calibration.png"
    lines = {"predicted": ([0.0, 1.0], [0.0, 1.0])}
    lines |= {name: (list(one.expected), list(one.observed)) for name, one in curves.items()}
    figures.curve(
        lines,
        out / path,
        title="Units found in a held-out run",
        x_label="share of further runs expected to find the unit",
        y_label="share found in a held-out run",
    )
    return Figure(
        str(path), "Calibration: units by the share of runs expected to find them, and how often one did."
    )
