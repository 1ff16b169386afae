"""Measure the trained SAEs: agreement by prefix length, and error on held-out text."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import joblib
import torch
from torch import Tensor

from osae import metrics, passes
from osae.config import to_json
from osae.experiments.lm.plan import Plan
from osae.experiments.lm.shelf import Group, Shelf
from osae.experiments.methods import UNTRAINED
from osae.measures import AGREEMENT, keys_of
from osae.metrics.statistics import crossed_interval, pairs_interval, runs_interval
from osae.model import SAE
from osae.recipes import Recipe
from osae.results.base import Interval
from osae.results.experiment import MethodRow
from osae.results.lm import CrossedMoment, Crossing, Curve, Curves, Moment, Progression

MEASURES = tuple(key for key in keys_of("prefix") if key in metrics.PrefixConsistency._fields)

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
    """Yield each method during training: agreement of seeds, and with each SAE's own start."""
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
    return runs_interval(
        {
            seed: passes.reconstruct(sae, x.split(passes.ROWS)).explained_variance
            for seed, sae in group.items()
        }
    )


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
    """Return a method's row: its error on held-out text, and its seeds' agreement by prefix."""
    measures: dict[str, Interval] = {}
    if method != UNTRAINED:  # before training, only the atoms are meaningful
        single = {
            seed: passes.reconstruct(sae, x.split(passes.ROWS)).measures() for seed, sae in group.items()
        }
        for key in keys_of("reconstruction"):
            known = {seed: value for seed, found in single.items() if (value := found[key]) is not None}
            measures |= {key: runs_interval(known)} if known else {}
    for measure in AGREEMENT:
        curve = curves[measure]
        for i, length in enumerate(curve.prefix):
            measures[f"{measure}_{length}"] = curve.at(i)
    about = None if recipe is None else to_json(recipe)
    return MethodRow(method, reference=method == UNTRAINED, recipe=about, measures=measures)


def chance_curves(shelf: Shelf) -> dict[str, Curve]:
    """Return the agreement of random dictionaries at every prefix length.

    Their atoms have the mean and covariance of all trained SAEs of the first seed, or are isotropic.
    """
    plan = shelf.plan
    trained = [
        SAE.load(job.folder(shelf.root(place))).decoder.detach()
        for place in shelf.places
        for method in plan.methods
        for job in shelf.jobs(place, method)[:1]
    ]
    like, width = metrics.fit_atoms(*trained), plan.task().width
    fitted = [metrics.chance_level(length, length, width, like=like) for length in plan.lengths]
    isotropic = [metrics.chance_level(length, length, width) for length in plan.lengths]
    spread = tuple(level.orderedness_std for level in fitted)
    return {
        "stability": Curve(plan.lengths, tuple(level.stability for level in fitted)),
        "stability_isotropic": Curve(plan.lengths, tuple(level.stability for level in isotropic)),
        "orderedness": Curve(plan.lengths, (0.0,) * len(fitted), tuple(-one for one in spread), spread),
    }
