"""How well units detect true atoms: F1, as SAELens defines it.

Shapes: N samples, K units, A true atoms, d width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.matching import cosine


def detection_f1(
    decoder: Float[Array, "K d"],
    fires: Bool[Array, "N K"],
    atoms: Float[Array, "A d"],
    present: Bool[Array, "N A"],
) -> float:
    """Return the mean F1 of units, each as a detector of the true atom whose |cosine| with it is largest.

    A unit that never fires, or whose atom never does, scores 0.
    """
    decoder, fires, atoms, present = map(as_tensor, (decoder, fires, atoms, present))
    nearest = cosine(decoder, atoms).abs().argmax(1)
    wanted = present[:, nearest]
    hits = (fires & wanted).sum(0).double()
    found, there = fires.sum(0).double(), wanted.sum(0).double()
    return float(_divide(2 * hits, found + there).mean())


def _divide(a: Float[Tensor, "K"], b: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """Return a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / b.clamp(min=1), torch.zeros_like(a))
