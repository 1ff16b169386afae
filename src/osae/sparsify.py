"""Which units fire: from the pre-activations of all units to a padded sparse code.

Shapes: B samples, K units, k entries in a code.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.config import variant


class Code(NamedTuple):
    """The active units of each sample and their values; an entry of value zero is padding."""

    values: Float[Tensor, "*batch k"]
    units: Int[Tensor, "*batch k"]

    def dense(self, units: int) -> Float[Tensor, "*batch units"]:
        """Return the same code as vectors with one entry per unit."""
        empty = self.values.new_zeros(*self.values.shape[:-1], units)
        return empty.scatter_add(-1, self.units, self.values)


@variant
@dataclass(frozen=True)
class ReLU:
    """Every unit with a positive pre-activation fires; `l1` weights a penalty on the sum of the values."""

    l1: float = 0.0


@variant
@dataclass(frozen=True)
class TopK:
    """The units with the k largest positive pre-activations of each sample fire."""

    k: int


@variant
@dataclass(frozen=True)
class BatchTopK:
    """The B*k largest of a batch fire in training; at inference, those above a learned threshold."""

    k: int
    threshold_momentum: float = 0.99


@variant
@dataclass(frozen=True)
class JumpReLU:
    """Units above their own learned threshold fire; `l0` is the penalty for each one that does.

    The thresholds, which start at `threshold`, get gradients through a window of width `bandwidth` around the
    jump.
    """

    l0: float = 0.0
    bandwidth: float = 0.1
    threshold: float = 0.1


@variant
@dataclass(frozen=True)
class Linear:
    """All units are active, with any sign: the dense code of a linear autoencoder."""


Sparsifier = ReLU | TopK | BatchTopK | JumpReLU | Linear


def starting_threshold(sparsifier: Sparsifier) -> float:
    """Return where the thresholds of the units start."""
    return sparsifier.threshold if isinstance(sparsifier, JumpReLU) else 0.0


def find_k(sparsifier: Sparsifier) -> int | None:
    """Return the sparsifier's number of active units; None if it has no such setting."""
    return getattr(sparsifier, "k", None)


def dense_code(values: Float[Tensor, "B K"]) -> Code:
    """Return the code that lists all units in order."""
    return Code(values, torch.arange(values.shape[-1], device=values.device).expand(values.shape))


def pad_code(values: Float[Tensor, "B K"]) -> Code:
    """Return the code of dense values, in which inactive units are zero, as narrow as its fullest row."""
    fires = values.detach() != 0
    counts = fires.sum(-1)
    width = int(counts.max()) if len(values) else 0
    if width > values.shape[-1] // 2:
        return dense_code(values)
    rows, columns = fires.nonzero(as_tuple=True)
    slots = torch.arange(len(rows), device=values.device) - (counts.cumsum(0) - counts)[rows]
    units = torch.zeros(len(values), max(width, 1), dtype=torch.int64, device=values.device)
    units[rows, slots] = columns
    filled = torch.arange(units.shape[-1], device=values.device) < counts.unsqueeze(-1)
    return Code(torch.where(filled, values.gather(-1, units), 0), units)


class _Jump(torch.autograd.Function):
    """pre where pre > threshold, else 0; the slope of the jump is that of a ramp of width `bandwidth`."""

    @staticmethod
    def forward(ctx, pre, threshold, bandwidth):
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return pre * (pre > threshold)

    @staticmethod
    def backward(ctx, *grads):
        pre, threshold = ctx.saved_tensors
        near = (pre - threshold).abs() < ctx.bandwidth / 2
        at_threshold = -(threshold / ctx.bandwidth) * (grads[0] * near).sum(0)
        return grads[0] * (pre > threshold), at_threshold, None


class _Active(torch.autograd.Function):
    """1 where pre > threshold, else 0; only the threshold gets a gradient, through the same ramp."""

    @staticmethod
    def forward(ctx, pre, threshold, bandwidth):
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return (pre > threshold).to(pre.dtype)

    @staticmethod
    def backward(ctx, *grads):
        pre, threshold = ctx.saved_tensors
        near = (pre - threshold).abs() < ctx.bandwidth / 2
        return None, -(grads[0] * near).sum(0) / ctx.bandwidth, None


def jump(pre: Float[Tensor, "B K"], threshold: Float[Tensor, "K"], bandwidth: float) -> Float[Tensor, "B K"]:
    """Return the pre-activations above their thresholds, and zero elsewhere."""
    return _Jump.apply(pre, threshold, bandwidth)  # type: ignore[return-value]


def active(
    pre: Float[Tensor, "B K"], threshold: Float[Tensor, "K"], bandwidth: float
) -> Float[Tensor, "B K"]:
    """Return one where a pre-activation is above its threshold, and zero elsewhere."""
    return _Active.apply(pre, threshold, bandwidth)  # type: ignore[return-value]
