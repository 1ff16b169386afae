"""Ways to train the two SAEs of a trial other than one run of the recipe each, as data.

A way uses only the documents and the seed of its own run, except for `Fork` and `Shared`, which let the two
runs share something on purpose: they measure what keeps two runs from agreeing.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never, cast

import torch

from osae import passes
from osae.config import later, to_json, variant
from osae.data.shards import Shards
from osae.data.source import MixedRows
from osae.model import SAE
from osae.objective import Terms
from osae.recipes import FromConsensus, FromSAE, Recipe
from osae.results.ordering import By
from osae.training import start as agreement
from osae.training.consensus import find_consensus, make_short, sort_consensus
from osae.training.loop import train
from osae.training.member import Member

EVERY = 8  # steps between two weights that are averaged
SEEDS = 1000  # the seeds of the short runs of a consensus begin at a multiple of this number
SORTED_ROWS = 50_000  # rows by which units are sorted


@variant
@dataclass(frozen=True)
class Average:
    """The mean of the weights over the last fraction `share` of steps.

    With `until`, training counts as ended after that fraction of its steps.
    """

    share: float
    until: float = later(1.0)


@variant
@dataclass(frozen=True)
class Fork:
    """Both runs continue one SAE, trained on `tokens` rows of the first half, at this peak rate."""

    tokens: int
    rate: float


@variant
@dataclass(frozen=True)
class Shared:
    """Both runs share their `seed` (start and order of rows), their `documents`, or both."""

    seed: bool = False
    documents: bool = False


@variant
@dataclass(frozen=True)
class Consensus:
    """The run starts from the units that `runs` short runs have in common, and continues at a peak `rate`.

    Each short run sees `tokens` rows at a peak rate of `short_rate`, under the plain loss, and has `wider`
    times as many units. Atoms with a cosine above `same` count as one unit. With `free`, it is what a recipe
    with `FromConsensus` does, but short runs are kept, so that trials can share them; otherwise, short runs
    have the dictionary of the recipe. With `scored`, units are sorted by "gain" times score, in the start and
    in training, as such a recipe does, or by "energy" times score; otherwise by gain alone.
    """

    runs: int
    tokens: int
    rate: float
    short_rate: float
    same: float = 0.6
    wider: float = later(1.0)
    free: bool = later(False)
    scored: str | None = later(None)

    def __post_init__(self):
        if self.scored is not None:
            passes.check_order(self.scored)

    def order(self) -> By:
        """Return what units are sorted by, times score if there are any."""
        return cast(By, self.scored or "gain")


KEPT = (
    None,
    Average(0.1),
    Average(0.25),
    Average(0.5),
    Average(0.25, 0.5),
    Average(0.25, 0.75),
)  # of every run
Way = Average | Fork | Shared | Consensus | None


def describe(way: Way) -> str:
    """Return the way in a few words, for tables."""
    match way:
        case None:
            return "one run"
        case Average(share):
            return (
                f"weights averaged over the last {share:g}{f' until {way.until:g}' if way.until < 1 else ''}"
            )
        case Fork(tokens, rate):
            return f"an SAE of {tokens:,} tokens, which both continue at a peak rate of {rate:g}"
        case Shared():
            return "the " + " and the ".join(name for name in ("seed", "documents") if getattr(way, name))
        case Consensus(runs, tokens, rate, short_rate):
            wider = f", {way.wider:g} times as wide" if way.wider > 1 else ""
            scored = f", sorted by {way.scored} times score" if way.scored else ""
            return (
                f"from the consensus of {runs} runs of {tokens:,} tokens at {short_rate:g}{wider}, "
                f"continued at {rate:g}{scored}"
            )
        case _:
            assert_never(way)


class Trainer:
    """Trains SAEs, adds up the CPU time, and keeps every SAE in a folder, so that none is trained twice."""

    def __init__(self, keep: Path):
        self.keep, self.seconds = keep, 0.0

    def fit(
        self,
        recipe: Recipe,
        rows: Shards,
        seed: int,
        *,
        start: SAE | agreement.Consensus | None = None,
        by: By = "gain",
        average: Average | None = None,
        kept: Iterable[Average | None] = KEPT,
    ) -> SAE:
        """Return the SAE of a recipe, with its last weights or with an average of its weights.

        The run is kept with each of the averages in `kept`.
        """
        recipe = recipe if start is None else replace(recipe, start=FromSAE("", _digest(start)))
        about = [to_json(recipe), rows.provenance()["sha256"], seed]
        if not self._find(about, average).exists():
            started = time.process_time()
            found = _train(recipe, rows, seed, start, by, {None, average, *kept})
            seconds = time.process_time() - started
            for each, sae in found.items():
                spent = seconds * (each.until if each else 1.0)
                sae.save(self._find(about, each), provenance={"about": about, "seconds": spent})
        sae = SAE.load(self._find(about, average))
        self.seconds += sae.provenance["seconds"]
        return sae

    def _find(self, about: list[Any], average: Average | None) -> Path:
        what = [*about, to_json(average) if average else 0.0]
        return self.keep / hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _train(
    recipe: Recipe,
    rows: Shards,
    seed: int,
    start: SAE | agreement.Consensus | None,
    by: By,
    averages: Iterable[Average | None],
) -> dict[Average | None, SAE]:
    """Return the SAE with its last weights, and with each of the averages of its weights."""
    source = MixedRows(rows)
    member = Member(recipe, seed, source.block(0), start=start)
    member.sorted_by = by
    parameters, steps = member.weights.named(), recipe.steps
    means = {each: [p.detach().clone() for p in parameters.values()] for each in averages if each}

    @torch.no_grad()
    def add(done: int, terms: list[Terms]) -> None:
        for each, mean in means.items():
            count, rest = divmod(done - round((1 - each.share) * each.until * steps), EVERY)
            if count > 0 and rest == 0 and done <= each.until * steps:
                for tensor, parameter in zip(mean, parameters.values(), strict=True):
                    tensor.lerp_(parameter, 1 / count)

    train([member], source, after=[add])
    found: dict[Average | None, SAE] = {None: member.finish()}
    for each, mean in means.items():
        member.weights.restore(dict(zip(parameters, mean, strict=True)) | member.weights.constants)
        member.weights.constrain()
        found[each] = member.finish()
    return found


def train_one(
    way: Way, trainer: Trainer, recipe: Recipe, halves: Sequence[Shards], run: int, seed: int
) -> SAE:
    """Return the SAE of run 0 or 1, trained with this seed; `halves` are the rows of both runs."""
    rows, further = halves[run], replace(recipe, k_warmup=None)
    match way:
        case None:
            return trainer.fit(recipe, rows, seed)
        case Average():
            return trainer.fit(recipe, rows, seed, average=way)
        case Fork(tokens, rate):
            trunk = trainer.fit(replace(recipe, samples=tokens), halves[0], 0)
            return trainer.fit(_at_rate(further, rate), rows, seed + 2, start=trunk)
        case Shared():
            return trainer.fit(recipe, halves[0] if way.documents else rows, 0 if way.seed else seed)
        case Consensus():
            found = start_from_consensus(way, trainer, recipe, rows, seed)
            return trainer.fit(_at_rate(further, way.rate), rows, seed, start=found, by=way.order())
        case _:
            assert_never(way)


def _at_rate(recipe: Recipe, rate: float) -> Recipe:
    return replace(recipe, lr=replace(recipe.lr, peak=rate))


def _digest(start: SAE | agreement.Consensus) -> str:
    """Return a digest of the weights and scores; that of an SAE without scores is that of its encoder."""
    sae, scores = start if isinstance(start, agreement.Consensus) else (start, torch.empty(0))
    parts = (sae.encoder.detach(), scores)
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def sort_units(sae: SAE, rows: Shards) -> SAE:
    """Return the SAE with its units sorted by gain on its own rows."""
    return sae.reorder(passes.order_units(sae, rows.read(0, min(SORTED_ROWS, rows.rows)).split(passes.ROWS)))


def start_from_consensus(
    way: Consensus, trainer: Trainer, recipe: Recipe, rows: Shards, seed: int
) -> SAE | agreement.Consensus:
    """Return what short runs on these rows have in common, with its units sorted, and scores if asked for."""
    saes = train_short(way, trainer, recipe, rows, seed)
    started = time.process_time()
    found = find_consensus(saes, way.same, recipe.sae.units)
    found = sort_scored(found, rows, way.order()) if way.scored else sort_units(found.sae, rows)
    trainer.seconds += time.process_time() - started
    return found


def sort_scored(found: agreement.Consensus, rows: Shards, by: By) -> agreement.Consensus:
    """Return the consensus with its units sorted by gain or energy, times score, on its own rows."""
    return sort_consensus(found, rows.read(0, min(SORTED_ROWS, rows.rows)), by)


def train_short(way: Consensus, trainer: Trainer, recipe: Recipe, rows: Shards, seed: int) -> list[SAE]:
    """Return the SAEs of the short runs."""
    start = FromConsensus(way.runs, way.tokens, way.short_rate / recipe.lr.peak, way.same, way.wider)
    short = make_short(recipe, start)
    short = short if way.free else replace(short, dictionary=recipe.dictionary)
    seeds = range(SEEDS * (seed + 1), SEEDS * (seed + 1) + way.runs)
    return [trainer.fit(short, rows, one, kept=()).requires_grad_(False) for one in seeds]
