"""Stitching: the effect of larger SAEs' units on smaller SAEs of the same method, over several pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from osae import passes
from osae.config import to_json
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.shelf import Shelf
from osae.experiments.methods import BATCHTOPK, MATRYOSHKA_RANDOM, NOISE, OSAE, OSAE_PAPER
from osae.experiments.published import STITCHING
from osae.metrics.statistics import runs_interval
from osae.model import SAE
from osae.progress import Progress
from osae.results.experiment import MethodRow
from osae.results.lm import Place, StitchingTable
from osae.results.stitching import SHARES

STITCHED = (BATCHTOPK, MATRYOSHKA_RANDOM, OSAE_PAPER, OSAE)


@dataclass(frozen=True)
class _Kept:
    """An SAE on disk: its training run, and its folder."""

    job: Job
    root: Path

    def load(self) -> SAE:
        return SAE.load(self.job.folder(self.root))


def measure_stitching(shelf: Shelf, progress: Progress) -> StitchingTable | None:
    """Return what larger SAEs add to smaller ones of the same method on held-out text.

    The SAEs start from noise if that was tried; from the data, both would start with the same atoms.
    """
    plan = shelf.plan
    methods = [method for method in STITCHED if method in plan.methods]
    if not plan.stitch or not methods:
        return None
    place = Place(plan.first_text, NOISE if NOISE in plan.starts else plan.starts[0])
    small = plan.stitch_units or plan.units
    large = plan.stitch * small
    pairs = {method: _plan_pairs(shelf, place, method, small, large) for method in methods}
    _train_missing([kept for found in pairs.values() for pair in found for kept in pair], shelf, progress)
    x = plan.texts[place.text].test_rows()
    rows = [_measure_row(method, found, x) for method, found in pairs.items()]
    return StitchingTable(small, large, tuple(rows), place.start)


def _plan_pairs(shelf: Shelf, place: Place, method: str, small: int, large: int) -> list[tuple[_Kept, _Kept]]:
    """Return pairs of a smaller and a larger SAE, all of different seeds; those of the tables are reused."""
    plan = shelf.plan

    def new(units: int, seed: int) -> _Kept:
        made = plan.recipe(method, place.start, shelf.rates[place.start][method], plan.task(units=units))
        made = replace(made, name=f"{method}-{units}")
        job = Job(made, seed, plan.source(place.text, seed), device=plan.device)
        return _Kept(job, plan.out / "stitching" / place.start)

    count = plan.stitch_seeds
    there = shelf.jobs(place, method) if small == plan.units else []
    smaller = [_Kept(job, shelf.root(place)) for job in there[:count]]
    smaller += [new(small, seed) for seed in range(len(smaller), count)]
    return [(one, new(large, max(count, plan.seeds) + pair)) for pair, one in enumerate(smaller)]


def _train_missing(kept: Sequence[_Kept], shelf: Shelf, progress: Progress) -> None:
    """Train the SAEs that do not exist yet."""
    total, count = len(kept), 0
    for root in dict.fromkeys(one.root for one in kept):
        jobs = [one.job for one in kept if one.root == root]
        for done in train_all(jobs, root, place=shelf.plan.where):
            count += 1
            progress(count, total, f"trained {done.job.name} for stitching")


def _measure_row(method: str, pairs: Sequence[tuple[_Kept, _Kept]], x: Tensor) -> MethodRow:
    """Return the shares of the larger SAEs' units, over all pairs."""
    values = [_measure_shares(small.load(), large.load(), x) for small, large in pairs]
    measures = {
        key: runs_interval({pair: found[key] for pair, found in enumerate(values)}) for key in values[0]
    }
    about = to_json(pairs[0][1].job.recipe)
    return MethodRow(method, paper=STITCHING.get(method), recipe=about, measures=measures)


def _measure_shares(small: SAE, large: SAE, x: Tensor) -> dict[str, float]:
    """Return the shares of the larger SAE's units by effect, among all units and among those that fire."""
    found = passes.stitch(small, large, x.split(passes.ROWS))
    change = found.change[found.frequency > 0]
    shares = {key: getattr(found, key) for key in SHARES}
    return shares | {
        "novel_of_firing": float((change < 0).double().mean()),
        "reconstruction_of_firing": float((change > 0).double().mean()),
    }
