"""NaN and infinity, found before they reach the weights; and a warning when the loss explodes."""

import math
import warnings
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from osae.objective import Terms

OnNan = Literal["stop", "skip"]
EXPLODED = 100  # times the first loss: no recipe comes near that by itself


class NotFinite(ValueError):
    """Raised before a step that NaN or infinity would spoil; `terms` are those of its batch, if any."""

    def __init__(self, message: str, terms: Terms | None = None):
        super().__init__(message)
        self.terms = terms


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all numbers in these tensors are finite, waiting for the device only once."""
    # the largest magnitude passes NaN on, and unlike a sum it does not overflow by itself
    largest = [torch.linalg.vector_norm(tensor.detach(), math.inf) for tensor in tensors if tensor.numel()]
    return not largest or bool(torch.stack(largest).isfinite().all())


def finite_rows(block: Float[Tensor, "N d"], where: str, on_nan: OnNan) -> Float[Tensor, "n d"]:
    """Return the rows that are finite, which is the block itself if all are.

    Raise `NotFinite` if some are not and `on_nan` is "stop", or if none is left.
    """
    if are_finite([block]):
        return block
    finite = block.isfinite().all(1)
    if on_nan == "stop" or not bool(finite.any()):
        row = int((~finite).int().argmax())
        raise NotFinite(
            f"{where}: row {row} holds NaN or infinity: leave such rows out, or give --on-nan skip."
        )
    return block[finite]


def warn_if_exploded(name: str, step: int, loss: float, first: float) -> bool:
    """Return whether the loss has grown far beyond the first one, and warn if so."""
    exploded = loss > EXPLODED * first
    if exploded:
        warnings.warn(
            f"{name} diverges: its loss is {loss:.3g} at step {step} and was {first:.3g} at first; "
            "a lower learning rate (lr.peak) helps.",
            stacklevel=2,
        )
    return exploded
