"""Explained variance on held-out rows as a function of training time; needs only torch."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

POINTS = 16  # of a curve, each after 1.4 times as many steps as the one before


class Point(NamedTuple):
    """The state of training: seconds of CPU time, samples seen, explained variance on held-out rows."""

    seconds: float
    samples: int
    explained_variance: float


class Curve:
    """A curve recorded during a training run; the time taken by measurements is not counted."""

    def __init__(
        self,
        held: Tensor,
        reconstruct: Callable[[Tensor], Tensor],
        batch: int,
        steps: int,
        started: float | None = None,
    ):
        """Begin a curve; `started` is the CPU time at which the SAE began to be set up (now)."""
        self._held, self._reconstruct, self._batch = held, reconstruct, batch
        self._spread = float((held - held.mean(0)).square().sum())
        self._due = {max(1, round(steps / 2 ** (i / 2))) for i in range(POINTS)}
        self.points: list[Point] = []
        self._started = time.process_time() if started is None else started

    def after(self, step: int) -> None:
        """Measure if a measurement is due after this many steps."""
        if step not in self._due:
            return
        paused = time.process_time()
        with torch.no_grad():
            error = float((self._held - self._reconstruct(self._held)).square().sum())
        self.points.append(Point(paused - self._started, step * self._batch, 1 - error / self._spread))
        self._started += time.process_time() - paused


def draw_batches(rows: Tensor, batch: int, steps: int) -> "list[Tensor]":
    """Return the row indices of each batch: every row once per epoch, in random order."""
    generator = torch.Generator().manual_seed(0)
    found: list[Tensor] = []
    while len(found) < steps:
        found += [
            part for part in torch.randperm(len(rows), generator=generator).split(batch) if len(part) == batch
        ]
    return found[:steps]
