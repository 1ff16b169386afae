"""The contract as matrix products over all K units, for codes that are hardly sparse (k warm-up).

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code, m units in a block.

With a dense code z (B, K) every prefix length has its own residual r_j = x - sum_{i<=j} z_i d_i and

    L = sum_j p_j |r_j|^2 .

Units are processed in blocks c..e-1. With R = r_{c-1}, s_i = sum_{j=i..e-2} p_j and G = D D^T of a block,

    L_block = s_c |R|^2 - 2 sum_i s_i z_i d_i.R + sum_ij s_max(i,j) z_i z_j G_ij + p_{e-1} |r_{e-1}|^2 .

The Gram form over all units at once would cost K/d times more and lose precision: |x|^2 cancels against the
rest when the loss is small. Here a block only subtracts what its own m units explain, from the residual that
earlier blocks left, and the last residual of each block is squared directly.

In the backward pass, with a_i = sum_{j>=i} p_j r_j, the suffix sums inside a block are
a_i = A + s_i R - sum_j s_max(i,j) z_j d_j with A = a_e + p_{e-1} r_{e-1}, and dz_i = -2 a_i.d_i,
dd_i = -2 sum_b z_i a_i, dx = 2 a_0.
"""

# autograd Functions name their own arguments
# pyright: reportIncompatibleMethodOverride=false

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from osae.kernels.batch import find_largest
from osae.kernels.precision import multiply, without_autocast

BLOCK = 64  # units in a block: 128 was no faster, 32 was slower (cost B m^2 against thin products)


def all_prefix_loss(x: Tensor, values: Tensor, units: Tensor, decoder: Tensor, weights: Tensor) -> Tensor:
    """Return the ordered loss of each sample (B,)."""
    return dense_prefix_loss(x, _spread_out(values, units, len(decoder)), decoder, weights)


def dense_prefix_loss(x: Tensor, code: Tensor, decoder: Tensor, weights: Tensor) -> Tensor:
    """Return the ordered loss of each sample (B,) for a code (B, K); every entry gets a gradient."""
    return _PrefixLoss.apply(x, code, decoder, weights)


def topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of relu(x E^T + bias) in each row, and their units."""
    pre = multiply(x, encoder)
    pre = (pre if bias is None else pre + bias).relu()
    if k == len(encoder):
        return pre, torch.arange(k, device=x.device).expand(len(x), k)
    picked, units = _top(pre.detach(), k)
    return torch.where(picked != 0, pre.gather(-1, units), 0), units


def batch_topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the B*k largest of relu(x E^T + bias) in the batch, and their units."""
    pre = multiply(x, encoder)
    pre = (pre if bias is None else pre + bias).relu()
    picked, units = find_largest([pre.detach()], _top, len(x), k)
    return torch.where(picked != 0, pre.gather(-1, units), 0), units


def decode(values: Tensor, units: Tensor, decoder: Tensor) -> Tensor:
    """Return the sum of each sample's atoms (B, d)."""
    return _spread_out(values, units, len(decoder)) @ decoder


def _spread_out(values: Tensor, units: Tensor, count: int) -> Tensor:
    """Return the code as a matrix (B, K); padding gets no gradient."""
    values = torch.where(values != 0, values, 0)
    return values.new_zeros(len(values), count).scatter_add(-1, units, values)


def _top(pre: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row and their columns: torch.topk, but several times faster on the CPU."""
    if pre.device.type != "cpu" or pre.dtype not in (torch.float32, torch.float64):
        return torch.topk(pre, k)
    from osae.kernels import cpu

    return cpu.top(pre.clone(), pre.new_zeros(pre.shape[1]), k)


class _PrefixLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, code, decoder, weights):
        rest, loss = x, x.new_zeros(len(x))
        parts = _cut(weights, x)
        for block, p, s in parts:
            z, atoms = code[:, block], decoder[block]
            after = torch.addmm(rest, z, atoms, alpha=-1)
            if p is not None:
                cross = (z @ (_overlap(s) * (atoms @ atoms.T))).addmm_(rest, atoms.T * s, alpha=-2)
                loss += s[0] * rest.square().sum(-1) + (z * cross).sum(-1) + p * after.square().sum(-1)
            rest = after
        ctx.save_for_backward(code, decoder, rest)
        ctx.parts = parts
        return loss

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, upstream):
        code, decoder, rest = ctx.saved_tensors
        scale = -2 * upstream.unsqueeze(-1)
        suffix = torch.zeros_like(rest)  # a_i times -2 and the upstream gradient
        dcode, ddecoder = torch.empty_like(code), torch.empty_like(decoder)
        for block, p, s in reversed(ctx.parts):
            z, atoms = code[:, block], decoder[block]
            before = torch.addmm(rest, z, atoms)
            if p is None:
                dcode[:, block], ddecoder[block], rest = suffix @ atoms.T, z.T @ suffix, before
                continue
            suffix.addcmul_(p * scale, rest)
            rest, scaled, overlap = before, scale * z, _overlap(s)
            dcode[:, block] = (
                suffix @ atoms.T + scale * (rest @ (atoms.T * s)) - scaled @ (overlap * (atoms @ atoms.T))
            )
            ddecoder[block] = (
                z.T @ suffix + s[:, None] * (scaled.T @ rest) - (overlap * (scaled.T @ z)) @ atoms
            )
            suffix.addcmul_(s[0] * scale, rest).addmm_(scaled * s, atoms, alpha=-1)
        return -suffix, dcode, ddecoder, None


class _Part(NamedTuple):
    """A block of units, the weight of its last prefix (None if all its weights are zero), and s_i (m,)."""

    units: slice
    last: Tensor | None
    inner: Tensor


def _cut(weights: Tensor, x: Tensor) -> list[_Part]:
    """Return the blocks of units, with sums of weights in the dtype and on the device of x.

    They are summed in double precision on the CPU, because other devices may lack that dtype.
    """
    weights = weights.detach().cpu().double()
    blocks = torch.nn.functional.pad(weights, (0, -len(weights) % BLOCK)).view(-1, BLOCK)
    used = (blocks != 0).any(1).tolist()
    ends = [min(len(weights), (i + 1) * BLOCK) for i in range(len(blocks))]
    last = weights[torch.tensor(ends) - 1].to(x.device, x.dtype)
    inner = blocks.clone()
    inner.view(-1)[torch.tensor(ends) - 1] = 0
    inner = inner.flip(1).cumsum(1).flip(1).to(x.device, x.dtype)
    return [
        _Part(slice(i * BLOCK, end), last[i] if used[i] else None, inner[i, : end - i * BLOCK])
        for i, end in enumerate(ends)
    ]


def _overlap(inner: Tensor) -> Tensor:
    """Return s_max(i,j) (m, m)."""
    place = torch.arange(len(inner), device=inner.device)
    return inner[torch.maximum(place[:, None], place)]
