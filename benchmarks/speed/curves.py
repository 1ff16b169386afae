"""Explained variance on held-out rows as a function of training time; needs only torch."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.speed.pipe import Shape

POINTS = 16  # of a curve, each after 1.4 times as many steps as the one before


class Point(NamedTuple):
    """The state of training: seconds of CPU time, samples seen, explained variance on held-out rows."""

    seconds: float
    samples: int
    explained_variance: float


class Curve:
    """A curve recorded during a training run; the time taken by measurements is not counted.

    `products` are the milliseconds that the encoder's product takes at every point: on a busy machine, they
    tell how much of the processor the run had.
    """

    def __init__(
        self,
        held: Tensor,
        reconstruct: Callable[[Tensor], Tensor],
        shape: Shape,
        steps: int,
        started: float | None = None,
    ):
        """Begin a curve; `started` is the CPU time at which the SAE began to be set up (now)."""
        self._held, self._reconstruct, self._batch = held, reconstruct, shape.B
        self._factors = torch.ones(shape.B, shape.d), torch.ones(shape.d, shape.K)
        self.products: list[float] = []
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
        self.products.append(median(self._time_product() for _ in range(3)))
        self._started += time.process_time() - paused

    def _time_product(self) -> float:
        started = time.process_time()
        torch.mm(*self._factors)
        return 1000 * (time.process_time() - started)

    def report(self, version: str) -> dict[str, Any]:
        """Return the curve as it is stored."""
        return {"version": version, "product_ms": median(self.products), "points": self.points}


def load_rows(path: str, count: int) -> tuple[Tensor, Tensor]:
    """Return the first `count` rows to train on (or all, if there are fewer), and the held-out rows."""
    given = torch.load(path, weights_only=True, mmap=True)
    return given["rows"][:count].clone(), given["held"].clone()


def draw_batches(rows: Tensor, batch: int, steps: int) -> "list[Tensor]":
    """Return the row indices of each batch: every row once per epoch, in random order."""
    generator = torch.Generator().manual_seed(0)
    found: list[Tensor] = []
    while len(found) < steps:
        found += [
            part for part in torch.randperm(len(rows), generator=generator).split(batch) if len(part) == batch
        ]
    return found[:steps]
