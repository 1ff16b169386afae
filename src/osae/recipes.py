"""Recipes: every method of the paper as a point among independent choices, by name.

A recipe is a function of the task (how wide the data, how many units, how many active, how many samples
to see) that returns a `Recipe`, plain data. `osae recipes` lists them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from osae.config import variant
from osae.model import AuxK, SAEConfig, Split
from osae.prefix import (
    Boundaries,
    Full,
    Mixed,
    Piecewise,
    PrefixWeights,
    RandomBoundaries,
    Sampled,
    Uniform,
)
from osae.schedule import KWarmup, LearningRate, Resort, Sweep
from osae.sparsify import BatchTopK, ReLU, TopK


@variant
@dataclass(frozen=True)
class FromNoise:
    """Random unit atoms."""


@variant
@dataclass(frozen=True)
class FromData:
    """Units 2i and 2i+1 begin as plus and minus the i-th principal direction of `samples` rows."""

    samples: int = 60_000


Start = FromNoise | FromData


@variant
@dataclass(frozen=True)
class Recipe:
    """All that decides a training, but for the data and the seed."""

    name: str
    sae: SAEConfig
    samples: int
    batch: int
    lr: LearningRate
    start: Start = FromNoise()
    k_warmup: KWarmup | None = None
    sweep: Sweep | None = None
    resort: Resort | None = None
    rescale: bool = False

    def __post_init__(self):
        if self.batch < 1 or self.samples < self.batch:
            raise ValueError(
                f"samples={self.samples}, batch={self.batch}: see at least one batch of samples."
            )

    @property
    def steps(self) -> int:
        return self.samples // self.batch


@dataclass(frozen=True)
class Task:
    """What a recipe is asked to fit: the data's width, the dictionary's size, and how long."""

    width: int
    units: int
    active: int
    samples: int
    batch: int = 500
    bias: bool = False
    groups: int = 5
    language: bool = False  # activations of a language model, not of a synthetic world


def vanilla(task: Task) -> Recipe:
    """ReLU with an L1 price on the code; the plain objective."""
    return replace(_plain(task, "vanilla", ReLU(l1=0.1)), k_warmup=None)


def topk(task: Task) -> Recipe:
    """TopK; the plain objective."""
    return _plain(task, "topk", TopK(task.active))


def batchtopk(task: Task) -> Recipe:
    """BatchTopK, with a threshold learned for inference; the plain objective."""
    return _plain(task, "batchtopk", BatchTopK(task.active))


def matryoshka_fixed(task: Task) -> Recipe:
    """TopK; the prefixes that end at fixed group boundaries."""
    return _with_prefix(
        topk(task), "matryoshka-fixed", Boundaries(group_ends(task.units, min(task.groups, task.units)))
    )


def matryoshka_random(task: Task) -> Recipe:
    """TopK; every step a few prefixes drawn at random, the whole dictionary always among them."""
    return _with_prefix(
        topk(task), "matryoshka-random", RandomBoundaries(Uniform(), min(task.groups, task.units))
    )


def nested_dropout(task: Task) -> Recipe:
    """TopK; every step one prefix drawn at random."""
    return _with_prefix(topk(task), "nested-dropout", Sampled(Uniform()))


def osae_paper(task: Task) -> Recipe:
    """As the paper trains it: every prefix, k warmed up from all units, unit sweeping, no re-sorting.

    On language models the paper sweeps no units and spreads the weights over Matryoshka's groups.
    """
    spread = Piecewise(group_ends(task.units, task.groups)) if task.language else Uniform()
    ordered = _with_prefix(topk(task), "osae-paper", spread)
    if task.language:
        return ordered
    sae = replace(ordered.sae, revival=None)
    return replace(ordered, sae=sae, k_warmup=KWarmup(0.5), sweep=Sweep(0.5, 1.0))


def osae(task: Task) -> Recipe:
    """Our best: every prefix, most mass on the whole dictionary, units moved to their place by their gain.

    On language models the first atoms stay what they begin as, the leading principal directions, while the
    others form around them: that much of a dictionary the data fix without a doubt. Late in training they
    are let go, in their places; the rest is put in order at the end.
    """
    made = replace(_with_prefix(topk(task), "osae", Mixed(Uniform(), full=0.9)), resort=Resort(30))
    if not task.language:
        return made
    anchors = Sweep(burn_in=0.0, until=0.0, part=1 / 16, atoms_only=True, release=0.85)
    made = _with_prefix(made, "osae", Mixed(Uniform(), full=0.95))
    return replace(made, sweep=anchors, resort=Resort(1))


RECIPES: dict[str, Callable[[Task], Recipe]] = {
    "vanilla": vanilla,
    "topk": topk,
    "batchtopk": batchtopk,
    "matryoshka-fixed": matryoshka_fixed,
    "matryoshka-random": matryoshka_random,
    "nested-dropout": nested_dropout,
    "osae-paper": osae_paper,
    "osae": osae,
}


STARTS = {"data": FromData(), "noise": FromNoise()}


def recipe(name: str, task: Task, *, start: str | None = None) -> Recipe:
    """The named recipe for this task; `start`, "data" or "noise", where it is not to be the recipe's own."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}: there are {', '.join(RECIPES)}.")
    made = RECIPES[name](task)
    if start is None:
        return made
    if start not in STARTS:
        raise ValueError(f"no start {start!r}: there are {', '.join(STARTS)}.")
    made = replace(made, start=STARTS[start])
    return made if start == "data" else _holding_nothing(made, task)


def _holding_nothing(made: Recipe, task: Task) -> Recipe:
    """The recipe from noise, where no leading atoms are worth holding.

    Instead its units are sorted as they learn, under a loss that asks for more order.
    """
    if made.sweep is None or not made.sweep.atoms_only:
        return made
    groups = Piecewise(group_ends(task.units, task.groups))
    return replace(_with_prefix(made, made.name, Mixed(groups, full=0.7)), sweep=None, resort=Resort(30))


def group_ends(units: int, groups: int) -> tuple[int, ...]:
    """Boundaries of groups that double in size, the last taking the rest: 1/32, 1/16, 1/8, 1/4, ... for 5."""
    if not 1 <= groups <= units:
        raise ValueError(f"{groups} groups of {units} units: ask for 1 to {units} groups.")
    ends: list[int] = []
    for group in range(1, groups):
        share = (2**group - 1) / 2**groups
        # each group has at least one unit, and leaves at least one for every group after it
        ends.append(min(max(round(units * share), group, *ends[-1:]), units - groups + group))
        if group > 1 and ends[-1] <= ends[-2]:
            ends[-1] = ends[-2] + 1
    return (*ends, units)


def _plain(task: Task, name: str, sparsifier: ReLU | TopK | BatchTopK) -> Recipe:
    """What all recipes begin with: Adam at a constant rate that falls at the end, k warmed up, splits."""
    sae = SAEConfig(
        task.width, task.units, sparsifier, Full(), Split(20), decoder_bias=task.bias or task.language
    )
    warmup = KWarmup(share=0.35, start=min(task.units, 5 * task.active))
    made = Recipe(name, sae, task.samples, task.batch, LearningRate(1e-2, decay=0.5), k_warmup=warmup)
    if not task.language:
        return made
    # splitting looks at one unit after the other, too slow for thousands; none is dead for long
    sae = replace(sae, revival=AuxK(2 * task.active, dead_after=100_000))
    rate = LearningRate(4e-3, warmup=0.02, decay=0.5)
    return replace(made, sae=sae, lr=rate, start=FromData(), rescale=True)


def _with_prefix(base: Recipe, name: str, prefix: PrefixWeights) -> Recipe:
    return replace(base, name=name, sae=replace(base.sae, prefix=prefix))
