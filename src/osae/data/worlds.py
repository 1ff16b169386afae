"""Worlds: synthetic data with a known dictionary, in a known order.

Shapes: N samples, d width, K atoms, m active in each sample. A world is a pure function of its fields: the
dictionary depends on `seed`, the samples on `seed` and the split, and neither on the seed of a training run.
"""

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.config import variant
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
    """Unit Gaussian atoms; m of them at a time, drawn without replacement with pi_j ~ j^-zipf.

    Values are |N(0,1)| if `positive`, else N(0,1). `strengths` multiplies each atom's values (None: by one),
    so that an atom's frequency and its strength can be chosen separately.
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
        """Return the leading principal directions, the one of largest variance first."""
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


World = SparseWorld | PCAWorld


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
