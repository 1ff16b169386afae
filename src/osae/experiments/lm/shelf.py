"""The trained SAEs: learning rates tried, SAEs trained where they are missing, and read when asked for."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from osae import passes
from osae.data.source import OnDisk, open_source
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.plan import Plan
from osae.experiments.methods import TOPK, TOPK_SORTED, UNTRAINED
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe
from osae.results.lm import Place, RateTrial

TUNING_SEED = 1000  # no table uses it

Group = dict[int, SAE]  # by seed


def try_rates(plan: Plan, progress: Progress) -> list[RateTrial]:
    """Return a trial of every method at every rate, on the first text from the first kind of start.

    Nothing is tried if there is only one rate.
    """
    if len(plan.rates) == 1:
        return []
    jobs, about = [], {}
    task = plan.task(tokens=min(plan.tuning_tokens, plan.tokens))
    source = plan.source(plan.first_text)
    for method, rate in itertools.product(plan.methods, plan.rates):
        tried = replace(plan.recipe(method, plan.starts[0], rate, task), name=f"{method}-{rate:g}")
        jobs.append(Job(tried, TUNING_SEED, source, device=plan.device))
        about[tried.name] = (method, rate)
    x, trials = plan.texts[plan.first_text].tuning_rows(), []
    for count, done in enumerate(train_all(jobs, plan.out / "trials", workers=plan.workers), 1):
        method, rate = about[done.job.recipe.name]
        explained = passes.reconstruct(done.sae, x.split(passes.ROWS)).explained_variance
        trials.append(RateTrial(method, rate, explained))
        progress(count, len(jobs), f"trial of {method} at {rate:g}: explains {explained:.3f}")
    return sorted(trials, key=lambda trial: (plan.methods.index(trial.method), trial.rate))


def choose_rates(plan: Plan, trials: list[RateTrial]) -> dict[str, float]:
    """Return the rate of each method that explains most; the only one if none were tried."""
    if not trials:
        return dict.fromkeys(plan.methods, plan.rates[0])
    mine = {method: [trial for trial in trials if trial.method == method] for method in plan.methods}
    return {
        method: max(tried, key=lambda trial: trial.explained_variance).rate for method, tried in mine.items()
    }


class Shelf:
    """The trained SAEs, read when they are asked for: all of them at once may not fit into memory."""

    def __init__(self, plan: Plan, rates: Mapping[str, float]):
        self.plan, self.rates = plan, rates
        self.places = plan.places()
        self.methods = [*plan.methods, UNTRAINED, *([TOPK_SORTED] if TOPK in plan.methods else [])]
        self._jobs = {place: list(plan.jobs(place, rates)) for place in self.places}
        self._orders: dict[Place, dict[int, torch.Tensor]] = {}

    def jobs(self, place: Place, method: str) -> list[Job]:
        """Return the training runs of a method at a place, by seed."""
        return [job for job in self._jobs[place] if job.recipe.name == method]

    def recipe(self, place: Place, method: str) -> Recipe | None:
        """Return the recipe of a method at a place; None for SAEs that were not trained."""
        jobs = self.jobs(place, TOPK if method == TOPK_SORTED else method)
        return jobs[0].recipe if jobs else None

    def root(self, place: Place) -> Path:
        """Return the folder of the SAEs of a place."""
        return self.plan.out / "saes" / place.start / place.text

    def group(self, place: Place, method: str) -> Group:
        """Return a method's SAEs by seed: as they are, sorted afterwards, or as they started."""
        root = self.root(place)
        if method == UNTRAINED:  # every method starts with the same atoms
            first = self.jobs(place, self.plan.methods[0])
            return {job.seed: SAE.load(job.snapshot(root, 0)) for job in first}
        mine = self.jobs(place, TOPK if method == TOPK_SORTED else method)
        saes = {job.seed: SAE.load(job.folder(root)) for job in mine}
        return self._sort_units(saes, place) if method == TOPK_SORTED else saes

    def moments(self, place: Place, method: str) -> dict[int, Group]:
        """Return a method's SAEs as they were after so many tokens, by seed; the last are the finished ones.

        SAEs that were sorted afterwards, or never trained, have a single moment.
        """
        root, jobs = self.root(place), self.jobs(place, method)
        snapshots = jobs[0].snapshots if jobs else ()
        found = {
            tokens: {job.seed: SAE.load(job.snapshot(root, tokens)) for job in jobs} for tokens in snapshots
        }
        return found | {self.plan.tokens: self.group(place, method)}

    def _sort_units(self, saes: Group, place: Place) -> Group:
        """Return the SAEs with units in order of gain, on as many rows as `osae` is sorted by at its end."""
        orders = self._orders.setdefault(place, {})
        if not orders:
            x = open_source(OnDisk(str(self.plan.texts[place.text].train))).block(0)
            orders |= {seed: passes.order_units(sae, x.split(passes.ROWS)) for seed, sae in saes.items()}
        return {seed: sae.reorder(orders[seed]) for seed, sae in saes.items()}

    def train(self, progress: Progress) -> None:
        """Train the SAEs that are not already there."""
        total, count = sum(map(len, self._jobs.values())), 0
        for place, jobs in self._jobs.items():
            for done in train_all(jobs, self.root(place), workers=self.plan.workers):
                count += 1
                name, seed = done.job.recipe.name, done.job.seed
                progress(count, total, f"trained {name}, seed {seed}, {place.text}")
