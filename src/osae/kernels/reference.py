"""The contract in plain torch: short and slow, the reference that other backends are tested against.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.
"""

import torch
from torch import Tensor

from osae.kernels.batch import find_largest
from osae.kernels.precision import multiply
from osae.prefix import all_prefix_loss_reference


def all_prefix_loss(x: Tensor, values: Tensor, units: Tensor, decoder: Tensor, weights: Tensor) -> Tensor:
    """Return the ordered loss of each sample (B,)."""
    return all_prefix_loss_reference(x, _no_gradient_to_padding(values), units, decoder, weights)


def topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of relu(x E^T + bias) in each row, and their units."""
    pre = multiply(x, encoder)
    top = torch.topk((pre if bias is None else pre + bias).relu(), k, dim=-1)
    return top.values, top.indices


def batch_topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the B*k largest of relu(x E^T + bias) in the batch, and their units."""
    pre = multiply(x, encoder)
    pre = (pre if bias is None else pre + bias).relu()
    picked, units = find_largest([pre.detach()], torch.topk, len(x), k)
    return torch.where(picked != 0, pre.gather(-1, units), 0), units


def decode(values: Tensor, units: Tensor, decoder: Tensor) -> Tensor:
    """Return the sum of each sample's atoms (B, d)."""
    return (_no_gradient_to_padding(values).unsqueeze(-1) * decoder[units]).sum(-2)


def _no_gradient_to_padding(values: Tensor) -> Tensor:
    return torch.where(values != 0, values, 0)
