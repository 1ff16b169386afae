"""Plans for trials on development worlds: learning rates, recipes, and smaller batches.

Worlds are small, so that a trial takes seconds: 128 atoms in 32 dimensions, 50,000 samples. The plan
`batches` uses the protocol's worlds, with 100,000 samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from osae.data.worlds import ForestWorld
from osae.dictionary import Aligned
from osae.prefix import Boundaries, Mixed, Uniform
from osae.recipes import FromNoise, group_ends
from osae.revival import Split
from osae.schedule import Resort
from osae.sparsify import BatchTopK

SEED = 100  # of the development worlds; the worlds on which recipes are judged have another seed
FLAT = ForestWorld(32, 128, 4.0, samples=50_000, seed=SEED)
TREE = ForestWorld(32, 128, 4.0, samples=50_000, seed=SEED, roots=8)
NAMED_TREE = ForestWorld(samples=100_000, seed=SEED, roots=16)
NAMED_FLAT = ForestWorld(samples=100_000, seed=SEED)
Planned = tuple[ForestWorld, str, dict[str, Any], int, int]  # ..., epochs, batch

SCHEDULES_RATE = 0.016  # of trials that compare schedules and dictionaries
RATES = (0.016, 0.004, 0.032, 0.064, 0.008)
METHODS = (
    "topk",
    "osae",
    "matryoshka-fixed",
    "matryoshka-random",
    "osae-from-noise",
    "batchtopk",
    "osae-paper",
)


def rates() -> Iterator[Planned]:
    """Yield TopK at every rate, on a medium world and with other widths, units and lengths of training."""
    for width, units, epochs in ((32, 128, 5), (64, 128, 5), (16, 128, 5), (32, 256, 5), (32, 128, 15)):
        world = ForestWorld(width, units, 4.0, samples=50_000, seed=SEED)
        for rate in RATES:
            yield world, "topk", {"lr.peak": rate}, epochs, 500


def methods() -> Iterator[Planned]:
    """Yield every method on both worlds, at the same rate."""
    for rate in (0.016, 0.032):
        for name in METHODS:
            for world in (TREE, FLAT):
                yield world, name, {"lr.peak": rate}, 5, 500


def at_once() -> Iterator[Planned]:
    """Yield the final k from the first step, and the peak rate for most of training, from noise."""
    soon = {"lr.peak": SCHEDULES_RATE, "lr.decay": 0.2, "k_warmup.share": 0.0, "start": FromNoise()}
    sorts = {"prefix.full": 0.8, "resort": Resort(8, samples=8000)}
    for world in (TREE, FLAT):
        yield world, "topk", soon, 5, 500
        yield world, "topk-aligned", soon, 5, 500
        yield world, "osae-from-noise", soon | sorts, 5, 500
        yield world, "osae-from-noise", soon | sorts | {"dictionary": Aligned()}, 5, 500


def aligned() -> Iterator[Planned]:
    """Yield aligned atoms with other rates, schedules and mass on the whole dictionary."""
    base = {"lr.peak": SCHEDULES_RATE, "lr.decay": 0.2, "k_warmup.share": 0.0, "start": FromNoise()}
    base |= {"dictionary": Aligned(), "prefix.full": 0.8, "resort": Resort(8, samples=8000)}
    ideas: list[dict[str, Any]] = [
        {"lr.peak": 0.032},
        {"lr.peak": 0.008},
        {"lr.decay": 0.5},
        {"k_warmup.share": 0.35},
        {"prefix.full": 0.95},
    ]
    for world in (TREE, FLAT):
        for idea in ideas:
            yield world, "osae-from-noise", base | idea, 5, 500


def schedules() -> Iterator[Planned]:
    """Yield every method with the final k from the first step and the peak rate for most of training."""
    for name in METHODS:
        for world in (TREE, FLAT):
            yield world, name, {"lr.peak": SCHEDULES_RATE, "lr.decay": 0.2, "k_warmup.share": 0.0}, 5, 500


def recipes() -> Iterator[Planned]:
    """Yield variants of `osae`, one idea each, at the same rate."""
    groups = Boundaries(group_ends(128, 5))
    ideas: list[tuple[str, dict[str, Any]]] = [
        ("osae", {"sweep": None}),
        ("matryoshka-fixed", {"resort": Resort(1)}),
        ("osae", {"sweep": None, "prefix": Mixed(groups, full=0.5)}),
        ("osae", {"sweep": None, "prefix": Mixed(Uniform(), full=0.5)}),
        ("osae", {"sweep": None, "start": FromNoise()}),
        ("topk", {"start": FromNoise()}),
        ("matryoshka-fixed", {"start": FromNoise()}),
    ]
    for name, changes in ideas:
        for world in (TREE, FLAT):
            yield world, name, {"lr.peak": 0.016, **changes}, 5, 500


def steps() -> Iterator[Planned]:
    """Yield methods from noise with four times the steps of the others for the same samples."""
    ideas: list[tuple[str, dict[str, Any]]] = [
        ("topk", {}),
        ("osae-from-noise", {}),
        ("matryoshka-random", {}),
        ("osae-from-noise", {"prefix": Mixed(Uniform(), full=0.9)}),
        ("topk", {"revival": Split(20)}),
        ("batchtopk", {}),
        ("matryoshka-fixed", {}),
        ("topk-aligned", {}),
        ("topk", {"k_warmup.share": 0.7}),
        ("osae-from-noise", {"k_warmup.share": 0.7}),
        ("topk", {"lr.peak": 0.008}),
        ("osae-from-noise", {"lr.peak": 0.008}),
    ]
    for name, changes in ideas:
        for world in (TREE, FLAT):
            yield world, name, {"lr.peak": 0.016, "start": FromNoise(), **changes}, 5, 125


def batches() -> Iterator[Planned]:
    """Yield methods from noise with batches of 2,048 samples and of 512."""
    ideas = [("topk", 2048), ("topk", 512), ("osae-aligned", 512), ("topk-aligned", 512)]
    ideas += [("osae-from-noise", 512), ("matryoshka-random", 512)]
    for name, batch in ideas:
        for world in (NAMED_TREE, NAMED_FLAT):
            yield world, name, {"start": FromNoise()}, 10, batch


CONSTANT: dict[str, Any] = {"k_warmup": None, "lr.decay": 0.2, "resort": Resort(8, samples=8000)}
ALIGNED_SOON = CONSTANT | {"dictionary": Aligned(), "revival.dead_after": 10_000}
BETWEEN: dict[str, dict[str, Any]] = {  # compromises between the recipe for worlds and that for text
    "full 0.9": {"prefix.full": 0.9},
    "full 0.8; decay 0.2; k constant": CONSTANT | {"prefix.full": 0.8},
    "full 0.9; decay 0.2; k constant": CONSTANT | {"prefix.full": 0.9},
    "full 0.9; decay 0.2": {"lr.decay": 0.2, "prefix.full": 0.9},
    "full 0.9; k constant": {"k_warmup": None, "prefix.full": 0.9},
    "full 0.9; decay 0.2; k constant; aligned, dead after 10,000": ALIGNED_SOON | {"prefix.full": 0.9},
    "full 0.8; decay 0.2; k constant; aligned, split": CONSTANT
    | {"prefix.full": 0.8, "dictionary": Aligned(), "revival": Split(20)},
    "full 0.9; BatchTopK": {"prefix.full": 0.9, "sae.sparsifier": BatchTopK(4)},
    "full 0.7; BatchTopK": {"prefix.full": 0.7, "sae.sparsifier": BatchTopK(4)},
    "full 0.8; decay 0.2; k constant; BatchTopK": CONSTANT
    | {"prefix.full": 0.8, "sae.sparsifier": BatchTopK(4)},
}
BEST = ("full 0.9; decay 0.2; k constant; aligned, dead after 10,000", "full 0.9; decay 0.2")
LONG: dict[str, tuple[str, dict[str, Any]]] = {  # the best of these, and TopK, on three times the samples
    "TopK": ("topk", {"start": FromNoise()}),
    **{name: ("osae-from-noise", BETWEEN[name]) for name in BEST},
    "full 0.9; decay 0.2; k over 0.1": (
        "osae-from-noise",
        {"lr.decay": 0.2, "prefix.full": 0.9, "k_warmup.share": 0.1},
    ),
}
LONG_SAMPLES = 300_000


def one_recipe() -> Iterator[Planned]:
    """Yield compromises between the recipe for worlds and that for text."""
    for changes in BETWEEN.values():
        for world in (NAMED_TREE, NAMED_FLAT):
            yield world, "osae-from-noise", changes, 10, 512


def one_recipe_long() -> Iterator[Planned]:
    """Yield the best of these, and TopK, on as many samples as the protocol's worlds have."""
    for name, changes in LONG.values():
        for world in (NAMED_TREE, NAMED_FLAT):
            yield replace(world, samples=LONG_SAMPLES), name, changes, 10, 512


PLANS: dict[str, Callable[[], Iterator[Planned]]] = {
    "rates": rates,
    "schedules": schedules,
    "at-once": at_once,
    "aligned": aligned,
    "methods": methods,
    "recipes": recipes,
    "steps": steps,
    "batches": batches,
    "one-recipe": one_recipe,
    "one-recipe-long": one_recipe_long,
}
