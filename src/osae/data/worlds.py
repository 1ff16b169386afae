"""Worlds: synthetic data with a known dictionary, in a known order.

Shapes: N samples, d width, K atoms, m active in each sample. A world is a pure function of its fields: the
dictionary depends on `seed`, the samples depend on `seed` and the split, and neither depends on the seed of a
training run.
"""

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.config import variant
from osae.data.trees import Trees, grow_trees
from osae.seeds import generator
from osae.sparsify import Code

SPLITS = ("train", "validation", "test")


class Samples(NamedTuple):
    """Data with their true codes."""

    x: Float[Tensor, "N d"]
    code: Code


@variant
@dataclass(frozen=True)
class SparseWorld:
    """Gaussian atoms of length one; m are active at a time, drawn without replacement with pi_j ~ j^-zipf.

    Values are |N(0,1)| if `positive`, else N(0,1). `strengths` multiplies each atom's values (None: by one),
    so that frequency and strength can be chosen separately.
    """

    width: int = 80
    units: int = 100
    active: int = 5
    zipf: float = 1.2
    samples: int = 100_000
    seed: int = 0
    positive: bool = True
    strengths: tuple[float, ...] | None = None

    def __post_init__(self):
        if not 1 <= self.active <= self.units:
            raise ValueError(f"active={self.active} of {self.units} atoms: ask for 1 to {self.units}.")
        _check_sizes(self.width, self.samples)
        if not (isfinite(self.zipf) and self.zipf >= 0):
            raise ValueError(f"zipf={self.zipf}: give a finite number of at least 0.")
        if self.strengths is not None and not all(map(isfinite, self.strengths)):
            raise ValueError("strengths contain NaN or infinity: give finite numbers.")
        if self.strengths is not None and len(self.strengths) != self.units:
            raise ValueError(f"{len(self.strengths)} strengths for {self.units} atoms: give one per atom.")

    def dictionary(self) -> Float[Tensor, "K d"]:
        """Return the true atoms, the most frequent first."""
        atoms = torch.randn(self.units, self.width, generator=generator(self.seed, "dictionary"))
        return torch.nn.functional.normalize(atoms, dim=-1)

    def draw(self, split: str = "train", samples: int | None = None) -> Samples:
        """Return samples of a split (train, validation or test); codes list units in ascending order."""
        count = _check_draw(split, self.samples if samples is None else samples)
        source = generator(self.seed, "samples", split)
        units = _draw_supports(self.units, self.active, self.zipf, count, source)
        values = torch.randn(count, self.active, generator=source)
        if self.positive:
            values = values.abs()
        if self.strengths is not None:
            values = values * torch.tensor(self.strengths)[units]
        code = Code(values, units)
        return Samples(code.dense(self.units) @ self.dictionary(), code)


@variant
@dataclass(frozen=True)
class PCAWorld:
    """Gaussian data whose principal directions are orthonormal atoms; the variances decrease as ratio^j."""

    width: int = 20
    units: int = 8
    ratio: float = 0.7
    samples: int = 20_000
    seed: int = 0

    def __post_init__(self):
        if not 1 <= self.units <= self.width:
            raise ValueError(f"units={self.units} principal directions in width {self.width}: ask for fewer.")
        _check_sizes(self.width, self.samples)
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio={self.ratio}: give a number above 0, at most 1.")

    def dictionary(self) -> Float[Tensor, "K d"]:
        """Return the leading principal directions, in order of decreasing variance."""
        noise = torch.randn(self.width, self.width, generator=generator(self.seed, "dictionary"))
        return torch.linalg.qr(noise).Q.T[: self.units].contiguous()

    def draw(self, split: str = "train", samples: int | None = None) -> Samples:
        """Return samples of a split (train, validation or test); codes are the leading coordinates."""
        count = _check_draw(split, self.samples if samples is None else samples)
        noise = torch.randn(self.width, self.width, generator=generator(self.seed, "dictionary"))
        directions = torch.linalg.qr(noise).Q.T
        spread = self.ratio ** (torch.arange(self.width) / 2)
        coordinates = (
            torch.randn(count, self.width, generator=generator(self.seed, "samples", split)) * spread
        )
        units = torch.arange(self.units).expand(count, -1)
        return Samples(coordinates @ directions, Code(coordinates[:, : self.units], units))


@variant
@dataclass(frozen=True)
class ForestWorld:
    """Atoms that fire on their own or as nodes of trees, at rates that follow Zipf's law; a hard world.

    Atom j fires in a sample with its own probability, roughly proportional to j^-zipf; on average, `active`
    atoms fire. With `roots`, atoms form trees of `depth` levels below the roots, with `branching` children
    each, until no atoms are left: a child fires only if its parent does, and the children of a share
    `exclusive` of the parents never fire together.

    The values of active atoms are |N(1, spread)|. Atoms belong to `topics`; whether two atoms of the same
    topic, at the same depth of their trees, fire is decided by Gaussian numbers with this `correlation`: they
    fire together more often than by chance, but each fires as often as before. `bias` is the length of a
    vector that is added to every sample, and `noise` the standard deviation of Gaussian noise in every
    coordinate.

    The samples of two parts (`part`) are independent draws, so that two training runs can share nothing but
    the dictionary.
    """

    width: int = 64
    units: int = 256
    active: float = 4.0
    zipf: float = 0.7
    samples: int = 300_000
    seed: int = 0
    roots: int = 0
    branching: int = 4
    depth: int = 2
    exclusive: float = 0.5
    spread: float = 0.5
    correlation: float = 0.0
    topics: int = 8
    bias: float = 0.0
    noise: float = 0.0
    part: int = 0

    def __post_init__(self):
        _check_sizes(self.width, self.samples)
        if not (self.units >= 1 and 0 < self.active <= self.units):
            raise ValueError(f"active={self.active} of {self.units} atoms: ask for more than 0, at most all.")
        for name in ("zipf", "spread", "bias", "noise"):
            if not (isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"{name}={value}: give a finite number of at least 0.")
        for name, least in (("roots", 0), ("branching", 1), ("depth", 0), ("topics", 1), ("part", 0)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value}: give at least {least}.")
        if not 0 <= self.exclusive <= 1:
            raise ValueError(f"exclusive={self.exclusive}: give a share from 0 to 1.")
        if not 0 <= self.correlation < 1:
            raise ValueError(f"correlation={self.correlation}: give a number from 0 to below 1.")
        self.trees()

    def trees(self) -> Trees:
        """Return the parents, the intervals and the rates of the atoms."""
        return grow_trees(
            self.units,
            self.active,
            self.zipf,
            roots=self.roots,
            branching=self.branching,
            depth=self.depth,
            exclusive=self.exclusive,
            seed=self.seed,
        )

    def dictionary(self) -> Float[Tensor, "K d"]:
        """Return the true atoms, the most frequent first."""
        atoms = torch.randn(self.units, self.width, generator=generator(self.seed, "dictionary"))
        return torch.nn.functional.normalize(atoms, dim=-1)

    def offset(self) -> Float[Tensor, "d"]:
        """Return the vector that is added to every sample."""
        direction = torch.randn(self.width, generator=generator(self.seed, "bias"))
        return self.bias * direction / direction.norm()

    def assign_topics(self) -> Int[Tensor, "K"]:
        """Return the topic of every atom; atoms at different depths never share a topic."""
        drawn = torch.randint(self.topics, (self.units,), generator=generator(self.seed, "topics"))
        return drawn + self.topics * torch.from_numpy(self.trees().depths)

    def draw(self, split: str = "train", samples: int | None = None) -> Samples:
        """Return samples of a split (train, validation or test); codes list units in ascending order."""
        count = _check_draw(split, self.samples if samples is None else samples)
        source = generator(self.seed, "samples", split, self.part)
        starts = range(0, count, CHUNK)
        firing = [self._draw_firing(min(CHUNK, count - start), source) for start in starts]
        code = self._draw_values(_pad(firing, count), source)
        x = _reconstruct(code, self.dictionary()) + self.offset()
        if self.noise:
            x += self.noise * torch.randn(x.shape, generator=source)
        return Samples(x, code)

    def _draw_firing(self, rows: int, source: torch.Generator) -> Int[Tensor, "n 2"]:
        """Return the samples and the atoms that are active in them, in ascending order."""
        trees, (low, high) = self.trees(), self._limits()
        numbers = self._draw_numbers(rows, source)
        if trees.exclusive.any():
            numbers = numbers[torch.from_numpy(trees.leads)]
        fires = numbers < high[:, None]
        if trees.exclusive.any():
            fires &= numbers >= low[:, None]
        for depth in range(1, int(trees.depths.max()) + 1):
            level = torch.from_numpy(np.flatnonzero(trees.depths == depth))
            fires[level] &= fires[torch.from_numpy(trees.parents)[level]]
        units, samples = fires.nonzero().unbind(1)
        order = samples.argsort(stable=True)
        return torch.stack([samples[order], units[order]], 1)

    def _limits(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the atoms' intervals, for uniform or, with correlation, Gaussian numbers."""
        low, high = (torch.from_numpy(end) for end in (self.trees().low, self.trees().high))
        if self.correlation:
            low, high = torch.special.ndtri(low), torch.special.ndtri(high)
        return low.float(), high.float()

    def _draw_numbers(self, rows: int, source: torch.Generator) -> Float[Tensor, "K n"]:
        """Return the numbers that decide which atoms fire in which samples."""
        if not self.correlation:
            return torch.rand(self.units, rows, generator=source)
        topics = self.assign_topics()
        shared = torch.randn(int(topics.max()) + 1, rows, generator=source)[topics]
        own = torch.randn(self.units, rows, generator=source)
        return self.correlation**0.5 * shared + (1 - self.correlation) ** 0.5 * own

    def _draw_values(self, units: Int[Tensor, "N k"], source: torch.Generator) -> Code:
        """Return the codes: values for active atoms, zero for the padding, which is -1 in `units`."""
        values = (1 + self.spread * torch.randn(units.shape, generator=source)).abs()
        return Code(values * (units >= 0), units.clamp(min=0))


World = SparseWorld | PCAWorld | ForestWorld
CHUNK = 10_000  # rows drawn at a time


def _pad(firing: list[Tensor], count: int) -> Int[Tensor, "N k"]:
    """Return the active atoms of every sample from those of each chunk, padded with -1 at the end."""
    rows = torch.cat([pairs[:, 0] + number * CHUNK for number, pairs in enumerate(firing)])
    active = torch.bincount(rows, minlength=count)
    places = torch.arange(len(rows)) - (active.cumsum(0) - active)[rows]
    units = torch.full((count, max(1, int(active.max()))), -1)
    units[rows, places] = torch.cat([pairs[:, 1] for pairs in firing])
    return units


def _reconstruct(code: Code, atoms: Float[Tensor, "K d"]) -> Float[Tensor, "N d"]:
    """Return the codes times the atoms, without making the codes dense."""
    return torch.nn.functional.embedding_bag(code.units, atoms, per_sample_weights=code.values, mode="sum")


def _check_sizes(width: int, samples: int) -> None:
    if width < 1 or samples < 1:
        raise ValueError(f"width={width}, samples={samples}: both must be at least 1.")


def _check_draw(split: str, samples: int) -> int:
    """Return the number of samples; raise `ValueError` if it is not positive or the split is unknown."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: give one of {', '.join(SPLITS)}.")
    if samples < 1:
        raise ValueError(f"samples={samples}: give at least 1.")
    return samples


def _draw_supports(
    units: int, active: int, zipf: float, count: int, source: torch.Generator
) -> Int[Tensor, "N m"]:
    """Draw m atoms without replacement for each sample, with probabilities ~ j^-zipf, and sort them.

    The m smallest of independent exponential times with rates pi_j are exactly such a draw.
    """
    rates = torch.arange(1, units + 1, dtype=torch.float64) ** -zipf
    supports = []
    for start in range(0, count, 10_000):
        rows = min(10_000, count - start)
        uniform = torch.rand(rows, units, dtype=torch.float64, generator=source)
        times = -torch.log1p(-uniform) / rates
        supports.append(times.topk(active, largest=False).indices.sort(-1).values)
    return torch.cat(supports)
