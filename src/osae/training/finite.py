"""Detect NaN and infinity before they reach the weights, and warn when the loss explodes."""

import math
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from osae.objective import Terms
from osae.ranks import NO_OTHERS, Ranks

OnNan = Literal["stop", "skip"]
NOTHING = 1e-30  # below this, a loss is only rounding error, of data that are almost zero
EXPLODED = 100  # times the loss of an SAE that reconstructs nothing; no recipe normally comes near this


class NotFinite(ValueError):
    """Raised before NaN or infinity reaches the state of a run.

    `terms` are the terms of the batch, if it may be skipped; `step` is its step, from 0.
    """

    def __init__(self, message: str, terms: Terms | None = None, step: int | None = None):
        super().__init__(message)
        self.terms, self.step = terms, step


def waits(device: torch.device) -> bool:
    """Return whether to wait for the result of a check instead of queueing further work."""
    return device.type != "cuda"


def find_largest_magnitude(tensors: Iterable[Tensor]) -> Float[Tensor, ""] | None:
    """Return the largest magnitude in these tensors, NaN if there is one, without waiting for the device."""
    # extremes propagate NaN, do not overflow like a sum, and take 1/25 of the time of a norm
    found = [tensor.detach().aminmax() for tensor in tensors if tensor.numel()]
    return torch.stack([torch.maximum(-low, high) for low, high in found]).max() if found else None


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all numbers in these tensors are finite, waiting for the device only once."""
    largest = find_largest_magnitude(tensors)
    return largest is None or bool(largest.isfinite())


class _Check(NamedTuple):
    """The loss of a step and the largest magnitude of its gradients, on their way to the host."""

    step: int
    numbers: Float[Tensor, "2"]
    arrived: Any  # a device event; None if nothing is pending


class Watch:
    """Watches the losses and gradients of one SAE, so that only finite ones reach the state of a run.

    On the CPU, the result is known immediately, before the optimizer step. A GPU would be idle while the host
    waits: there, a batch that is not finite turns its own step and all later ones into no-ops (`spoiled`
    tells the optimizer), and the host learns of it some steps later, but always before units are sorted or
    replaced and before anything is written.
    """

    def __init__(self, name: str, device: torch.device, empty: float = 0.0):
        """Watch the SAE with this name; `empty` is roughly the loss of an SAE that reconstructs nothing."""
        self.name, self.device, self.spoiled = name, device, torch.zeros((), device=device)
        self._empty = empty if math.isfinite(empty) else 0.0
        self._first, self._warned = -1.0, False
        self._under_way: deque[_Check] = deque()

    def check(
        self, terms: Terms, gradients: Sequence[Tensor], step: int, *, wait: bool, ranks: Ranks = NO_OTHERS
    ) -> None:
        """Check a batch before its step; raise `NotFinite` if it is known not to be finite.

        With `wait`, this is known immediately, and the batch may be skipped; otherwise, only for an earlier
        batch.
        """
        largest = find_largest_magnitude(gradients)
        loss = terms.total.detach()
        numbers = torch.stack([loss, loss * 0 if largest is None else largest.to(loss)])
        ranks.mean_(numbers)  # NaN and infinity on one rank reach all ranks
        if wait:
            loss, magnitude = numbers.tolist()
            self._judge(step, loss, magnitude, terms.detach())
            return
        self.spoiled.logical_or_(~numbers.isfinite().all())
        self._under_way.append(_Check(step, *_send(numbers)))
        while self._under_way and _has_arrived(self._under_way[0]):
            self._judge_next()

    def settle(self) -> None:
        """Wait for all pending checks; raise `NotFinite` if a batch was not finite."""
        while self._under_way:
            if self._under_way[0].arrived is not None:
                self._under_way[0].arrived.synchronize()
            self._judge_next()

    def _judge_next(self) -> None:
        check = self._under_way.popleft()
        self._judge(check.step, *check.numbers.tolist())

    def _judge(self, step: int, loss: float, largest: float, terms: Terms | None = None) -> None:
        if not (math.isfinite(loss) and math.isfinite(largest)):
            part = "a gradient" if math.isfinite(loss) else "the loss"
            raise NotFinite(f"{self.name}: {part} is NaN or infinite at step {step + 1}", terms, step)
        self._first = loss if self._first < 0 else self._first
        if not self._warned:
            self._warned = warn_if_exploded(self.name, step + 1, loss, self._first, self._empty)


def _send(numbers: Tensor) -> tuple[Tensor, Any]:
    """Start copying numbers to the host; return where they arrive, and an event that signals when."""
    if numbers.device.type != "cuda":
        return numbers, None
    there = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    there.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(numbers.device))
    return there, event


def _has_arrived(check: _Check) -> bool:
    return check.arrived is not None and check.arrived.query()


def finite_rows(block: Float[Tensor, "N d"], where: str, on_nan: OnNan) -> Float[Tensor, "n d"]:
    """Return the finite rows, which is the block itself if all rows are finite.

    Raise `NotFinite` if some are not finite and `on_nan` is "stop", or if no row is left.
    """
    if are_finite([block]):
        return block
    finite = block.isfinite().all(1)
    if on_nan == "stop" or not bool(finite.any()):
        row = int((~finite).int().argmax())
        raise NotFinite(
            f"{where}: row {row} contains NaN or infinity: remove such rows, or give --on-nan skip."
        )
    return block[finite]


def warn_if_exploded(name: str, step: int, loss: float, first: float, empty: float) -> bool:
    """Return whether the loss has grown far beyond the first loss and that of no reconstruction; warn if so.

    The first loss alone is not a reliable reference: while k is large, an SAE may reconstruct its first batch
    exactly.
    """
    exploded = loss > EXPLODED * max(first, empty, NOTHING)
    if exploded:
        warnings.warn(
            f"{name} diverges: its loss is {loss:.3g} at step {step}, up from {first:.3g} at the start; try "
            "a lower learning rate (lr.peak).",
            stacklevel=2,
        )
    return exploded
