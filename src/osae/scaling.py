"""Scaling of each input separately before encoding, undone on the reconstruction.

Shapes: d width.

    x' = (x - shift) / divisor        x_hat = factor * x'_hat + shift

Scales that are the same for all inputs are folded into the weights instead.
"""

from dataclasses import dataclass
from typing import NamedTuple, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from osae.config import variant


@variant
@dataclass(frozen=True)
class LayerNorm:
    """Each input is shifted to mean zero and divided by its standard deviation plus `epsilon`."""

    epsilon: float = 1e-5


@variant
@dataclass(frozen=True)
class ConstantNorm:
    """Each input is scaled to the norm sqrt(d); a zero input stays as it is."""


InputScaling = LayerNorm | ConstantNorm | None


class Scale(NamedTuple):
    """What is subtracted from each input, what it is then divided by, and what undoes the division."""

    shift: Float[Tensor, "*batch 1"]
    divisor: Float[Tensor, "*batch 1"]
    factor: Float[Tensor, "*batch 1"]


def measure_scale(scaling: LayerNorm | ConstantNorm, x: Float[Tensor, "*batch d"]) -> Scale:
    """Return the scale of each input."""
    match scaling:
        case LayerNorm(epsilon):
            deviation = x.std(dim=-1, keepdim=True)
            return Scale(x.mean(dim=-1, keepdim=True), deviation + epsilon, deviation)
        case ConstantNorm():
            norm = x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
            divisor = torch.where(norm > 0, norm, 1.0)
            return Scale(torch.zeros_like(norm), divisor, divisor)
        case _:
            assert_never(scaling)
