"""What is measured of the trained SAEs: agreement by prefix length, error on held-out text, stitching."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import joblib
import torch
from torch import Tensor

from osae import metrics, passes
from osae.config import to_json
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.plan import Plan
from osae.experiments.lm.shelf import Group, Shelf
from osae.experiments.methods import BATCHTOPK, MATRYOSHKA_RANDOM, OSAE, OSAE_PAPER, UNTRAINED
from osae.experiments.published import STITCHING
from osae.measures import measures_of
from osae.metrics.statistics import crossed_interval, pairs_interval, runs_interval
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe
from osae.results.base import Interval
from osae.results.experiment import MethodRow
from osae.results.lm import (
    SHARES,
    CrossedMoment,
    Crossing,
    Curve,
    Curves,
    Moment,
    Progression,
    StitchingTable,
)

STITCHED = (BATCHTOPK, MATRYOSHKA_RANDOM, OSAE_PAPER, OSAE)
BOTH = ("stability", "orderedness")
MEASURES = tuple(
    measure.key for measure in measures_of("prefix") if measure.key in metrics.PrefixConsistency._fields
)

Key = TypeVar("Key", bound=Hashable)
Agreements = Mapping[Key, Sequence[metrics.PrefixConsistency]]  # at every prefix length


# --- agreement by prefix length ---------------------------------------------------------------------


def measure_seeds(group: Group, plan: Plan) -> Curves:
    """Return the agreement of a method's seeds on one text."""
    decoders = {seed: sae.decoder.detach() for seed, sae in group.items()}
    pairs = {(a, b): (decoders[a], decoders[b]) for a, b in itertools.combinations(decoders, 2)}
    return _make_curves(_compare_pairs(pairs, plan), plan, pairs_interval)


def measure_crossings(shelf: Shelf) -> Iterator[Crossing]:
    """Yield the agreement across the first two texts, of different seeds and of the same seed."""
    plan = shelf.plan
    for start in plan.starts:
        places = [place for place in shelf.places if place.start == start][:2]
        if len(places) < 2:
            continue
        for method in shelf.methods:
            one, other = (shelf.moments(place, method) for place in places)
            moments = [
                CrossedMoment(tokens, *_measure_across(one[tokens], other[tokens], plan)) for tokens in one
            ]
            last = moments[-1]
            yield Crossing(start, method, last.other_seed, last.same_seed, tuple(moments))


def _measure_across(one: Group, other: Group, plan: Plan) -> tuple[Curves, Curves]:
    """Return the agreement of different seeds, and of the same seed."""
    pairs = {
        (a, b): (one[a].decoder.detach(), other[b].decoder.detach()) for a, b in itertools.product(one, other)
    }
    found = _compare_pairs(pairs, plan)
    apart = {(a, b): entries for (a, b), entries in found.items() if a != b}
    alike = {a: entries for (a, b), entries in found.items() if a == b}
    return _make_curves(apart, plan, crossed_interval), _make_curves(alike, plan, runs_interval)


def measure_training(shelf: Shelf) -> Iterator[Progression]:
    """Yield each method in the course of training: agreement of seeds, and with the own start."""
    for place, method in itertools.product(shelf.places, shelf.plan.methods):
        saes = shelf.moments(place, method)
        x = shelf.plan.texts[place.text].test_rows()
        moments = tuple(
            Moment(
                tokens,
                explained_variance=_explained_variance(group, x) if tokens else None,
                seeds=measure_seeds(group, shelf.plan),
                start=_measure_own_start(saes[0], group, shelf.plan),
            )
            for tokens, group in saes.items()
        )
        yield Progression(place, method, moments)


def _explained_variance(group: Group, x: Tensor) -> Interval:
    return runs_interval({seed: _reconstruct(sae, x)["explained_variance"] for seed, sae in group.items()})


def _measure_own_start(first: Group, group: Group, plan: Plan) -> Curves:
    pairs = {seed: (first[seed].decoder.detach(), sae.decoder.detach()) for seed, sae in group.items()}
    return _make_curves(_compare_pairs(pairs, plan), plan, runs_interval)


def _compare_pairs(
    pairs: Mapping[Key, tuple[Tensor, Tensor]], plan: Plan
) -> dict[Key, list[metrics.PrefixConsistency]]:
    """Return the consistency of each pair of decoders at every prefix length."""
    work = (joblib.delayed(_compare_pair)(a, b, plan.lengths) for a, b in pairs.values())
    found: Any = joblib.Parallel(n_jobs=plan.workers)(work)
    return dict(zip(pairs, found, strict=True))


def _compare_pair(a: Tensor, b: Tensor, lengths: Sequence[int]) -> list[metrics.PrefixConsistency]:
    torch.set_num_threads(1)
    return metrics.prefix_consistency(a, b, lengths)


def _make_curves(
    found: Agreements[Key], plan: Plan, make_interval: Callable[[dict[Key, float]], Interval]
) -> dict[str, Curve]:
    """Return for each measure its mean and interval at every length, over the values of all pairs."""
    curves = {}
    for measure in MEASURES:
        at = [
            make_interval({pair: getattr(entries[i], measure) for pair, entries in found.items()})
            for i in range(len(plan.lengths))
        ]
        ends = [one.ends() for one in at if one.low is not None]  # a single pair has no interval
        low, high = zip(*ends, strict=True) if ends else (None, None)
        values = {key: tuple((one.values or {})[key] for one in at) for key in at[0].values or {}}
        curves[measure] = Curve(plan.lengths, tuple(one.mean for one in at), low, high, at[0].over, values)
    return curves


# --- tables -----------------------------------------------------------------------------------------


def measure_row(method: str, recipe: Recipe | None, group: Group, curves: Curves, x: Tensor) -> MethodRow:
    """Return a method's row: how it reconstructs held-out text, and its seeds' agreement by prefix."""
    measures: dict[str, Interval] = {}
    if method != UNTRAINED:  # before training only the atoms mean anything
        single = {seed: _reconstruct(sae, x) for seed, sae in group.items()}
        measures |= {
            key: runs_interval({seed: found[key] for seed, found in single.items()})
            for key in next(iter(single.values()))
        }
    for measure in BOTH:
        curve = curves[measure]
        for i, length in enumerate(curve.prefix):
            measures[f"{measure}_{length}"] = curve.at(i)
    about = None if recipe is None else to_json(recipe)
    return MethodRow(method, reference=method == UNTRAINED, recipe=about, measures=measures)


def _reconstruct(sae: SAE, x: Tensor) -> dict[str, float]:
    found = passes.reconstruct(sae, x.split(passes.ROWS))
    return {
        "explained_variance": found.explained_variance,
        "mse": found.mse,
        "l0": found.l0,
        "dead": found.dead_share,
    }


def chance_curves(plan: Plan) -> dict[str, Curve]:
    """Return the agreement of random dictionaries at every prefix length."""
    width = plan.task().width
    levels = [metrics.chance_level(length, length, width) for length in plan.lengths]
    return {
        "stability": Curve(plan.lengths, tuple(level.stability for level in levels)),
        "orderedness": Curve(plan.lengths, (0.0,) * len(levels)),
    }


# --- stitching --------------------------------------------------------------------------------------


def measure_stitching(shelf: Shelf, progress: Progress) -> StitchingTable | None:
    """Return what a larger SAE of the same method adds to the first seed's, on held-out text."""
    plan = shelf.plan
    methods = [method for method in STITCHED if method in plan.methods]
    if not plan.stitch or not methods:
        return None
    place, units = shelf.places[0], plan.stitch * plan.units
    task, source = plan.task(units=units), plan.source(place.text)
    recipes = [plan.recipe(method, place.start, shelf.rates[method], task) for method in methods]
    larger = {f"{one.name}-{units}": replace(one, name=f"{one.name}-{units}") for one in recipes}
    method_of = dict(zip(larger, methods, strict=True))
    jobs = [Job(one, plan.seeds, source, device=plan.device) for one in larger.values()]  # their own seed
    x, rows = plan.texts[place.text].test_rows(), {}
    for count, done in enumerate(train_all(jobs, plan.out / "larger" / place.start, workers=plan.workers), 1):
        method = method_of[done.job.recipe.name]
        progress(count, len(jobs), f"trained {method} with {units} units")
        rows[method] = _stitch_row(method, shelf.group(place, method)[0], done.sae, x)
    return StitchingTable(plan.units, units, tuple(rows[method] for method in methods))


def _stitch_row(method: str, small: SAE, large: SAE, x: Tensor) -> MethodRow:
    found = passes.stitch(small, large, x.split(passes.ROWS))
    shares = {key: getattr(found, key) for key in SHARES}
    return MethodRow(method, paper=STITCHING.get(method), measures=shares)
