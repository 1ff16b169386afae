"""The trained SAEs: try learning rates, train the SAEs that are missing, and read them on demand."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from osae import passes
from osae.data.source import open_source
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.plan import Plan, Rates
from osae.experiments.methods import TOPK, TOPK_SORTED, UNTRAINED
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe
from osae.results.lm import Place, RateTrial

TUNING_SEED = 1000  # no table uses it

Group = dict[int, SAE]  # by seed


def try_rates(plan: Plan, progress: Progress) -> list[RateTrial]:
    """Return a trial of every method at every rate from every kind of start, on the first text.

    Nothing is tried if there is only one rate.
    """
    if len(plan.rates) == 1:
        return []
    trials: list[RateTrial] = []
    x = plan.texts[plan.first_text].tuning_rows()
    for start in plan.starts:
        jobs = {job.name: (job, trial) for job, trial in _trials(plan, start)}
        wanted = [job for job, _ in jobs.values()]
        for count, done in enumerate(train_all(wanted, plan.out / "trials" / start, place=plan.where), 1):
            trial = jobs[done.job.name][1]
            explained = passes.reconstruct(done.sae, x.split(passes.ROWS)).explained_variance
            trials.append(replace(trial, explained_variance=explained))
            words = f"trial of {trial.method} from {start} at {trial.rate:g}: explains {explained:.3f}"
            progress(count, len(wanted), words)
    order = {
        (start, method): i for i, (start, method) in enumerate(itertools.product(plan.starts, plan.methods))
    }
    return sorted(trials, key=lambda trial: (order[trial.start, trial.method], trial.rate))


def _trials(plan: Plan, start: str) -> Iterator[tuple[Job, RateTrial]]:
    """Yield the training run of each trial from a start, and the trial without its outcome."""
    task, source = plan.task(tokens=min(plan.tuning_tokens, plan.tokens)), plan.source(plan.first_text)
    for method, rate in itertools.product(plan.methods, plan.rates):
        made = replace(plan.recipe(method, start, rate, task), name=f"{method}-{rate:g}")
        yield Job(made, TUNING_SEED, source, device=plan.device), RateTrial(method, rate, 0.0, start)


def choose_rates(plan: Plan, trials: Sequence[RateTrial]) -> dict[str, dict[str, float]]:
    """Return, by start, the best learning rate of each method; the only one if none were tried."""
    if not trials:
        return {start: dict.fromkeys(plan.methods, plan.rates[0]) for start in plan.starts}
    best: dict[str, dict[str, float]] = {start: {} for start in plan.starts}
    for trial in sorted(trials, key=lambda trial: trial.explained_variance):
        best[trial.start][trial.method] = trial.rate
    return best


class Shelf:
    """The trained SAEs, read on demand: all of them at once may not fit into memory."""

    def __init__(self, plan: Plan, rates: Rates):
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
        """Return a method's SAEs by seed: as trained, sorted afterwards, or at their start."""
        root = self.root(place)
        if method == UNTRAINED:  # every method starts with the same atoms
            first = self.jobs(place, self.plan.methods[0])
            return {job.seed: SAE.load(job.snapshot(root, 0)) for job in first}
        mine = self.jobs(place, TOPK if method == TOPK_SORTED else method)
        saes = {job.seed: SAE.load(job.folder(root)) for job in mine}
        return self._sort_units(saes, place) if method == TOPK_SORTED else saes

    def moments(self, place: Place, method: str) -> dict[int, Group]:
        """Return a method's SAEs after each number of tokens, by seed; the last are the finished SAEs.

        SAEs that were sorted afterwards, or never trained, have a single moment.
        """
        root, jobs = self.root(place), self.jobs(place, method)
        snapshots = jobs[0].snapshots if jobs else ()
        found = {
            tokens: {job.seed: SAE.load(job.snapshot(root, tokens)) for job in jobs} for tokens in snapshots
        }
        return found | {self.plan.tokens: self.group(place, method)}

    def _sort_units(self, saes: Group, place: Place) -> Group:
        """Return the SAEs with units sorted by gain, on as many rows as the final sort of `osae` uses."""
        orders = self._orders.setdefault(place, {})
        if not orders:
            for seed, sae in saes.items():
                rows = open_source(self.plan.source(place.text, seed)).block(0)
                orders[seed] = passes.order_units(sae, rows.split(passes.ROWS))
        return {seed: sae.reorder(orders[seed]) for seed, sae in saes.items()}

    def train(self, progress: Progress) -> None:
        """Train the SAEs that do not exist yet."""
        total, count = sum(map(len, self._jobs.values())), 0
        for place, jobs in self._jobs.items():
            for done in train_all(jobs, self.root(place), place=self.plan.where):
                count += 1
                name, seed = done.job.recipe.name, done.job.seed
                progress(count, total, f"trained {name}, seed {seed}, {place.text}")
