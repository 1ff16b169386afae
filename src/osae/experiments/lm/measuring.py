"""What is measured of the trained SAEs: agreement by prefix length, error on held-out text, stitching."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import joblib
import torch
from torch import Tensor

from osae import metrics, passes
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.plan import Plan
from osae.experiments.lm.shelf import Group, Shelf
from osae.experiments.methods import BATCHTOPK, MATRYOSHKA_RANDOM, OSAE, OSAE_PAPER, UNTRAINED
from osae.experiments.published import STITCHING
from osae.measures import measures_of
from osae.model import SAE
from osae.progress import Progress
from osae.results.base import Interval
from osae.results.experiment import MethodRow
from osae.results.lm import (
    SHARES,
    Crossing,
    Curve,
    Curves,
    MethodCurves,
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
    return _make_curves(_compare_pairs(pairs, plan), plan, metrics.pair_interval)


def measure_crossings(shelf: Shelf) -> Iterator[Crossing]:
    """Yield the agreement across the first two texts, of different seeds and of the same seed."""
    plan = shelf.plan
    for start in plan.starts:
        places = [place for place in shelf.places if place.start == start][:2]
        if len(places) < 2:
            continue
        for method in shelf.methods:
            one, other = (shelf.group(place, method) for place in places)
            pairs = {
                (a, b): (one[a].decoder.detach(), other[b].decoder.detach())
                for a, b in itertools.product(one, other)
            }
            found = _compare_pairs(pairs, plan)
            apart = {pair: entries for pair, entries in found.items() if pair[0] != pair[1]}
            alike = {pair: entries for pair, entries in found.items() if pair[0] == pair[1]}
            yield Crossing(
                start,
                method,
                other_seed=_make_curves(apart, plan, _interval_across),
                same_seed=_make_curves(alike, plan, _interval_over_seeds),
            )


def measure_training(shelf: Shelf) -> Iterator[tuple[Progression, MethodCurves]]:
    """Yield each method's agreement in the course of training, and with its own start."""
    plan = shelf.plan
    for place, method in itertools.product(shelf.places, plan.methods):
        jobs, root = shelf.jobs(place, method), shelf.root(place)
        final = [SAE.load(job.folder(root)).decoder.detach() for job in jobs]
        first = [SAE.load(job.snapshot(root, 0)).decoder.detach() for job in jobs]
        pairs: dict[int, tuple[Tensor, Tensor]] = {}
        for tokens in jobs[0].snapshots:
            one, other = (SAE.load(job.snapshot(root, tokens)).decoder.detach() for job in jobs[:2])
            pairs[tokens] = (one, other)
        pairs[plan.tokens] = (final[0], final[1])
        moments = [_make_moment(tokens, found) for tokens, found in _compare_pairs(pairs, plan).items()]
        own = _compare_pairs(dict(enumerate(zip(first, final, strict=True))), plan)
        yield (
            Progression(place, method, plan.lengths, tuple(moments)),
            MethodCurves(place, method, _make_curves(own, plan, _interval_over_seeds)),
        )


def _make_moment(tokens: int, found: Sequence[metrics.PrefixConsistency]) -> Moment:
    values = {measure: tuple(getattr(entry, measure) for entry in found) for measure in BOTH}
    return Moment(tokens, values)


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
        curves[measure] = Curve(plan.lengths, tuple(one.mean for one in at), low, high)
    return curves


def _interval_over_seeds(numbers: Mapping[Any, float]) -> Interval:
    return metrics.mean_interval(list(numbers.values()))


def _interval_across(numbers: Mapping[tuple[int, int], float]) -> Interval:
    size = 1 + max(max(pair) for pair in numbers)
    matrix = torch.full((size, size), float("nan"), dtype=torch.float64)
    for (a, b), value in numbers.items():
        matrix[a, b] = value
    return metrics.cross_interval(matrix)


# --- tables -----------------------------------------------------------------------------------------


def measure_row(method: str, group: Group, curves: Curves, x: Tensor) -> MethodRow:
    """Return a method's row: how it reconstructs held-out text, and its seeds' agreement by prefix."""
    measures: dict[str, Interval] = {}
    if method != UNTRAINED:  # before training only the atoms mean anything
        single = [_reconstruct(sae, x) for sae in group.values()]
        measures |= {key: metrics.mean_interval([one[key] for one in single]) for key in single[0]}
    for measure in BOTH:
        curve = curves[measure]
        for i, length in enumerate(curve.prefix):
            measures[f"{measure}_{length}"] = curve.at(i)
    return MethodRow(method, reference=method == UNTRAINED, measures=measures)


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
