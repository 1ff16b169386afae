"""Recipes: every method as a point among independent choices, by name.

A recipe is a function of the task (the width of the data, the number of units and of active units, the number
of samples to see) that returns a `Recipe`, which is plain data. Methods are trained differently on
activations of language models and on small synthetic worlds: use `recipe` for the former and `world_recipe`
for the latter. `osae recipes` lists both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from math import isfinite
from typing import Any

from osae.config import later, variant
from osae.defaults import GROUPS
from osae.dictionary import Aligned, Archetypal, Dictionary, FreeAtoms, Separated
from osae.messages import list_choices
from osae.model import SAEConfig
from osae.prefix import (
    Boundaries,
    Full,
    Geometric,
    Mixed,
    Piecewise,
    PrefixWeights,
    RandomBoundaries,
    Sampled,
    Uniform,
)
from osae.revival import AuxK, Revival, Split
from osae.schedule import KWarmup, LearningRate, Resort, Sweep
from osae.sparsify import BatchTopK, ReLU, TopK


@variant
@dataclass(frozen=True)
class FromNoise:
    """Random unit atoms."""


@variant
@dataclass(frozen=True)
class FromData:
    """Plus and minus the i-th principal direction of `samples` rows, for units 2i and 2i+1."""

    samples: int = 60_000


@variant
@dataclass(frozen=True)
class FromKMeans:
    """The directions of the clusters of `samples` rows around their mean, found in `rounds` of k-means."""

    samples: int = 20_000
    rounds: int = 10

    def __post_init__(self):
        if self.samples < 1 or self.rounds < 1:
            raise ValueError(f"samples={self.samples}, rounds={self.rounds}: both must be at least 1.")


@variant
@dataclass(frozen=True)
class FromModes:
    """Modes of `samples` rows: directions along which a few rows have large values and all others small ones.

    They are searched for each of the `shares` that count as a few (see `osae.training.modes`).
    """

    samples: int = 30_000
    shares: tuple[float, ...] = (0.16, 0.04, 0.01)

    def __post_init__(self):
        if self.samples < 2:
            raise ValueError(f"samples={self.samples}: modes need at least 2 rows.")
        if not self.shares or not all(0 < share < 1 for share in self.shares):
            raise ValueError(f"shares={self.shares}: give at least one share between 0 and 1.")


@variant
@dataclass(frozen=True)
class FromConsensus:
    """The units that most of several short runs on the same data find (see `osae.training.consensus`).

    Each of the `runs` sees `samples` rows, under the plain loss, at `rate` times the peak rate of the recipe,
    which should be low enough to stay near the consensus. It has `wider` times as many units, of which those
    that most runs find are kept. Atoms with a cosine above `same` count as one unit.

    The score of a unit, from 0 to 1, says how many of the runs find it, and how closely. Wherever training
    sorts units, it sorts them by gain times score.
    """

    runs: int = 24
    samples: int = 190_000
    rate: float = 8.0
    same: float = 0.6
    wider: float = 1.5

    def __post_init__(self):
        if self.runs < 1 or self.samples < 1:
            raise ValueError(f"runs={self.runs}, samples={self.samples}: both must be at least 1.")
        if not (isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"rate={self.rate}: give a positive number.")
        if not 0 < self.same < 1:
            raise ValueError(f"same={self.same}: give a cosine between 0 and 1.")
        if not (isfinite(self.wider) and self.wider >= 1):
            raise ValueError(f"wider={self.wider}: give a number of at least 1.")


@variant
@dataclass(frozen=True)
class FromSAE:
    """The weights of an SAE from any library, at a path or a hub address; `sha256` is their digest."""

    path: str
    sha256: str = ""


Start = FromNoise | FromData | FromKMeans | FromModes | FromConsensus | FromSAE


@variant
@dataclass(frozen=True)
class Adam:
    """The settings of Adam; `clip` is the maximum norm of all gradients together, None for no limit.

    Half of `weight_penalty` times the squared weights is added to the loss. Since atoms have unit norm, the
    penalty acts on encoders and biases.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float | None = None
    weight_penalty: float = later(0.0)

    def __post_init__(self):
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1={self.beta1}, beta2={self.beta2}: give numbers from 0 to below 1.")
        if not self.eps > 0:
            raise ValueError(f"eps={self.eps}: give a positive number.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: give a positive norm, or null for no limit.")
        if not (isfinite(self.weight_penalty) and self.weight_penalty >= 0):
            raise ValueError(f"weight_penalty={self.weight_penalty}: give a finite number of at least 0.")


@variant
@dataclass(frozen=True)
class Recipe:
    """Everything that determines a training run except the data and the seed."""

    name: str
    sae: SAEConfig
    samples: int
    batch: int
    lr: LearningRate
    prefix: PrefixWeights = Full()
    revival: Revival = None
    dictionary: Dictionary = FreeAtoms()
    start: Start = FromNoise()
    k_warmup: KWarmup | None = None
    sweep: Sweep | None = None
    resort: Resort | None = None
    rescale: bool = False
    adam: Adam = later(Adam())
    extensions: tuple[int, ...] = later(())  # number of samples added by each extension

    def __post_init__(self):
        for samples in (self.samples, *self.extensions):
            if self.batch < 1 or samples < self.batch:
                raise ValueError(f"samples={samples}, batch={self.batch}: train on at least one batch.")
        if self.sae.scaling is not None:
            raise ValueError(
                f"{self.sae.scaling} cannot be used in training: use rescale, which applies one scale to all "
                "inputs."
            )

    @property
    def steps(self) -> int:
        """Return the number of optimizer steps."""
        return sum(self.segments)

    @property
    def segments(self) -> tuple[int, ...]:
        """Return the number of steps originally planned, and of each extension."""
        return tuple(samples // self.batch for samples in (self.samples, *self.extensions))

    @property
    def all_samples(self) -> int:
        """Return the number of samples originally planned, plus all extensions."""
        return sum((self.samples, *self.extensions))

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Move the training choices that release 0.1.0 stored in the SAE's config to their current fields."""
        inner = data.get("sae")
        if not isinstance(inner, dict):
            return data
        moved = {key: inner[key] for key in ("prefix", "revival") if key in inner}
        if inner.get("tied") is True:
            moved["dictionary"] = {"kind": "Tied"}
        return moved | data


@dataclass(frozen=True)
class Task:
    """The task of a recipe: the width of the data, the size of the dictionary, and the length of training."""

    width: int
    units: int
    k: int
    samples: int
    batch: int = 500
    groups: int = GROUPS  # of Matryoshka's prefixes


KNOWN_RATE, KNOWN_WIDTH = 4e-3, 576  # a good learning rate on SmolLM2-135M
LARGEST_RATE = 0.032
BURN_IN = 0.1  # of unit sweeping, which the paper calls short

Base = Callable[[Task, str, ReLU | TopK | BatchTopK], Recipe]
Maker = Callable[[Task], Recipe]


def world_base(task: Task, name: str, sparsifier: ReLU | TopK | BatchTopK) -> Recipe:
    """Return what all recipes for synthetic worlds share: learning-rate decay, warm-up of k, splitting."""
    return Recipe(
        name,
        SAEConfig(task.width, task.units, sparsifier, decoder_bias=False),
        task.samples,
        task.batch,
        LearningRate(1e-2, decay=0.5),
        revival=Split(20),
        k_warmup=_warmup(task),
    )


def activations_base(task: Task, name: str, sparsifier: ReLU | TopK | BatchTopK) -> Recipe:
    """Return what all recipes for activations share: scaled inputs, a start from the data, AuxK.

    The more units there are, the less often each of them fires, and the longer it takes to declare one dead.
    Splitting examines units one by one, which is too slow for thousands of units.
    """
    return Recipe(
        name,
        SAEConfig(task.width, task.units, sparsifier),
        task.samples,
        task.batch,
        LearningRate(default_rate(task), warmup=0.02, decay=0.5),
        revival=AuxK(2 * task.k, dead_after=max(100_000, 24 * task.units)),
        start=FromData(),
        k_warmup=_warmup(task),
        rescale=True,
    )


def default_rate(task: Task) -> float:
    """Return the peak learning rate for activations: 4e-3 at width 576, and higher at smaller widths.

    Adam moves every coordinate by up to the learning rate per step, so a unit-norm atom can turn by up to the
    rate times the square root of the width: narrow data allow a higher rate. The rate decreases with the
    width to the power of 2/3, and is at most 0.032.
    """
    return min(LARGEST_RATE, KNOWN_RATE * (KNOWN_WIDTH / task.width) ** (2 / 3))


def _warmup(task: Task) -> KWarmup:
    return KWarmup(share=0.35, start=min(task.units, 5 * task.k))


# --- methods that are the same on worlds and on activations ------------------------------------------


def vanilla(task: Task, base: Base) -> Recipe:
    """Train a ReLU SAE with an L1 penalty on the code and the plain objective."""
    return replace(base(task, "vanilla", ReLU(l1=0.1)), k_warmup=None)


def topk(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE with the plain objective."""
    return base(task, "topk", TopK(task.k))


def batchtopk(task: Task, base: Base) -> Recipe:
    """Train a BatchTopK SAE, which learns a threshold for inference, with the plain objective."""
    return base(task, "batchtopk", BatchTopK(task.k))


def matryoshka_fixed(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE on the prefixes that end at fixed group boundaries."""
    ends = group_ends(task.units, min(task.groups, task.units))
    return replace(topk(task, base), name="matryoshka-fixed", prefix=Boundaries(ends))


def matryoshka_random(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE on a few random prefixes at every step, always including the whole dictionary."""
    drawn = RandomBoundaries(Uniform(), min(task.groups, task.units))
    return replace(topk(task, base), name="matryoshka-random", prefix=drawn)


def matryoshka_piecewise(task: Task, base: Base) -> Recipe:
    """Train like `matryoshka-random`, but draw prefixes from the weights of `osae-paper` on activations."""
    groups = min(task.groups, task.units)
    drawn = RandomBoundaries(Piecewise(group_ends(task.units, groups)), groups)
    return replace(topk(task, base), name="matryoshka-piecewise", prefix=drawn)


def nested_dropout(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE on one random prefix at every step."""
    return replace(topk(task, base), name="nested-dropout", prefix=Sampled(Uniform()))


# --- other approaches to consistency, as baselines --------------------------------------------------


def topk_resorted(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE with the plain objective, sorting its units by gain thirty times."""
    return replace(topk(task, base), name="topk-resorted", resort=Resort(30))


def topk_archetypal(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE whose atoms are convex combinations of data points, drawn separately in every run."""
    return replace(topk(task, base), name="topk-archetypal", dictionary=Archetypal())


def topk_aligned(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE whose encoder and decoder are aligned."""
    return replace(topk(task, base), name="topk-aligned", dictionary=Aligned())


def topk_kmeans(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE that starts from cluster directions, found by k-means in every run."""
    return replace(topk(task, base), name="topk-kmeans", start=FromKMeans())


def topk_penalised(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE from noise, with equal encoder and decoder at the start and a weight penalty."""
    return replace(topk(task, base), name="topk-penalised", start=FromNoise(), adam=Adam(weight_penalty=1e-4))


def topk_separated(task: Task, base: Base) -> Recipe:
    """Train a TopK SAE with a penalty on the cosine of each atom with its nearest neighbour, as in OrtSAE."""
    return replace(topk(task, base), name="topk-separated", dictionary=Separated())


# --- the ordered methods ----------------------------------------------------------------------------


def osae_paper_on_worlds(task: Task) -> Recipe:
    """Train as in the paper: every prefix, warm-up of k from all units, unit sweeping, no re-sorting."""
    return replace(
        topk(task, world_base),
        name="osae-paper",
        prefix=Uniform(),
        revival=None,
        k_warmup=KWarmup(0.5),
        sweep=Sweep(0.5, 1.0),
    )


def osae_paper_on_activations(task: Task) -> Recipe:
    """Train as in the paper on language models: weights spread over Matryoshka's groups, no unit sweeping."""
    spread = Piecewise(group_ends(task.units, min(task.groups, task.units)))
    return replace(topk(task, activations_base), name="osae-paper", prefix=spread)


def osae_geometric(task: Task) -> Recipe:
    """Train like `osae-paper`, with exponentially decreasing prefix weights, as described in the paper."""
    return replace(osae_paper_on_worlds(task), name="osae-geometric", prefix=_falling(task))


def osae_swept(task: Task) -> Recipe:
    """Train with unit sweeping as in the paper's text: exponential weights, short burn-in, constant rate."""
    return replace(
        osae_geometric(task),
        name="osae-swept",
        lr=LearningRate(1e-2),
        sweep=Sweep(burn_in=BURN_IN, until=1.0),
    )


def osae_swept_restarting(task: Task) -> Recipe:
    """Train like `osae-swept`, with prefixes that start after the frozen units, as in nested dropout."""
    sweep = Sweep(burn_in=BURN_IN, until=1.0, restart=True)
    return replace(osae_swept(task), name="osae-swept-restarting", sweep=sweep)


def _falling(task: Task) -> Geometric:
    """Return weights that decrease to one twentieth over the dictionary."""
    return Geometric(0.05 ** (1 / task.units))


def osae_on_worlds(task: Task) -> Recipe:
    """Train our best method: every prefix, most weight on the whole dictionary, units sorted by gain."""
    return replace(topk(task, world_base), name="osae", prefix=Mixed(Uniform(), full=0.9), resort=Resort(30))


def osae_on_activations(task: Task) -> Recipe:
    """Train our best method from the data: leading principal directions stay frozen until late in training.

    The first atoms start as the leading principal directions, which the data determine, and stay frozen while
    the other atoms form around them. Late in training they are released and keep their positions; the other
    units are sorted by gain at the end.
    """
    anchors = Sweep(burn_in=0.0, until=0.0, part=1 / 16, atoms_only=True, release=0.85)
    return replace(
        topk(task, activations_base),
        name="osae",
        prefix=Mixed(Uniform(), full=0.95),
        sweep=anchors,
        resort=Resort(1),
    )


def osae_from_noise(task: Task) -> Recipe:
    """Train our best method from noise: more weight on short prefixes, and units sorted by gain."""
    spread = Mixed(Piecewise(group_ends(task.units, min(task.groups, task.units))), full=0.7)
    return replace(
        topk(task, activations_base),
        name="osae-from-noise",
        prefix=spread,
        start=FromNoise(),
        resort=Resort(30),
    )


def osae_aligned(task: Task) -> Recipe:
    """Train the ordered loss from noise with aligned encoders, constant k, and mostly at the peak rate."""
    noise = osae_from_noise(task)
    return replace(
        noise,
        name="osae-aligned",
        lr=replace(noise.lr, decay=0.2),
        prefix=replace(noise.prefix, full=0.8),
        dictionary=Aligned(),
        k_warmup=None,
        resort=Resort(8, samples=8000),
    )


def osae_from_modes(task: Task) -> Recipe:
    """Train like `osae-from-noise`, but from modes of the data and with constant k.

    The modes hardly depend on which rows are used, so that two runs start almost the same.
    """
    return replace(osae_from_noise(task), name="osae-from-modes", start=FromModes(), k_warmup=None)


def _on(base: Base, *methods: Callable[[Task, Base], Recipe]) -> dict[str, Maker]:
    """Return the methods by name, with their base filled in."""

    def filled(method: Callable[[Task, Base], Recipe]) -> Maker:
        @wraps(method)
        def maker(task: Task) -> Recipe:
            return method(task, base)

        return maker

    return {method.__name__.replace("_", "-"): filled(method) for method in methods}


_COMMON = (
    vanilla,
    topk,
    batchtopk,
    matryoshka_fixed,
    matryoshka_random,
    matryoshka_piecewise,
    nested_dropout,
)
_OTHER_ROADS = (
    topk_resorted,
    topk_archetypal,
    topk_aligned,
    topk_kmeans,
    topk_penalised,
    topk_separated,
)
WORLD_RECIPES: dict[str, Maker] = {
    **_on(world_base, *_COMMON),
    "osae-paper": osae_paper_on_worlds,
    "osae-geometric": osae_geometric,
    "osae-swept": osae_swept,
    "osae-swept-restarting": osae_swept_restarting,
    "osae": osae_on_worlds,
}
RECIPES: dict[str, Maker] = {
    **_on(activations_base, *_COMMON),
    "osae-paper": osae_paper_on_activations,
    "osae": osae_on_activations,
    "osae-from-noise": osae_from_noise,
    "osae-aligned": osae_aligned,
    "osae-from-modes": osae_from_modes,
    **_on(activations_base, *_OTHER_ROADS),
}
STARTS: dict[str, Start] = {
    "data": FromData(),
    "noise": FromNoise(),
    "kmeans": FromKMeans(),
    "modes": FromModes(),
    "consensus": FromConsensus(),
}


def recipe(name: str, task: Task, *, start: str | None = None) -> Recipe:
    """Return the named recipe for activations; `start`, one of `STARTS`, replaces its start.

    From a consensus, the rate is a quarter of the recipe's, and k is not warmed up.
    """
    return _with_start(_find(name, RECIPES)(task), start)


def world_recipe(name: str, task: Task, *, start: str | None = None) -> Recipe:
    """Return the named recipe for synthetic worlds; `start` is that of `recipe`."""
    return _with_start(_find(name, WORLD_RECIPES)(task), start)


def stay_near(base: Recipe) -> Recipe:
    """Return the recipe at a quarter of its rate, and without warm-up of k: a consensus is nearly an SAE."""
    return replace(base, lr=replace(base.lr, peak=base.lr.peak / 4), k_warmup=None)


def continue_from(base: Recipe, start: FromSAE) -> Recipe:
    """Return the recipe starting from an SAE, without warm-up of k: its codes are already sparse."""
    return replace(base, start=start, k_warmup=None)


def _find(name: str, registry: dict[str, Maker]) -> Maker:
    if name not in registry:
        raise ValueError(f"no recipe {name!r}: {list_choices(name, registry)}")
    return registry[name]


def _with_start(base: Recipe, start: str | None) -> Recipe:
    if start is None:
        return base
    if start not in STARTS:
        raise ValueError(f"no start {start!r}: {list_choices(start, STARTS)}")
    made = replace(base, start=STARTS[start])
    return stay_near(made) if start == "consensus" else made


def group_ends(units: int, groups: int) -> tuple[int, ...]:
    """Return the ends of groups that double in size, 1/32, 1/16, 1/8, ... for 5; the last takes the rest."""
    if not 1 <= groups <= units:
        raise ValueError(f"{groups} groups of {units} units: give 1 to {units} groups.")
    ends: list[int] = []
    for group in range(1, groups):
        share = (2**group - 1) / 2**groups
        # each group has at least one unit, and leaves at least one for every group after it
        ends.append(min(max(round(units * share), group, *ends[-1:]), units - groups + group))
        if group > 1 and ends[-1] <= ends[-2]:
            ends[-1] = ends[-2] + 1
    return (*ends, units)
