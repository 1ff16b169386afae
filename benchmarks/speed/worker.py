"""The worker's end of the pipe: one entry of the benchmark, in its own process.

It reads requests from stdin and writes measurements to stdout, as lines of JSON. With a process for each
entry, its memory is separate and the peers can have their own environment: this module needs only torch.
"""

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.speed.pipe import Shape

TINY = Shape(
    B=8, d=16, K=32, k=4
)  # to load and compile everything that a step needs before anything is measured
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Entry(Protocol):
    """One way to train an SAE on one batch."""

    def forward(self) -> Tensor:
        """Return the loss of the batch, ready for `backward`."""
        ...

    def step(self) -> None:
        """Take a whole training step, as the library's own loop does."""
        ...

    def parameters(self) -> Iterable[Tensor]:
        """Return the trained parameters."""
        ...

    def state(self) -> Iterable[Tensor]:
        """Return the tensors kept between steps: the parameters and the optimizer's state."""
        ...


Entries = Mapping[str, Callable[[Shape, Tensor], Entry]]


def serve(entries: Entries, versions: Mapping[str, str]) -> None:
    """Answer the requests on stdin, for the entry, shape, number of threads and clock on the command line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # some libraries print when imported
    _, name, shape, threads, clock = sys.argv
    torch.set_num_threads(int(threads))
    bench = Bench(entries[name], Shape(*json.loads(shape)), CLOCKS[clock])
    for line in sys.stdin:
        word = line.strip()
        answer = versions.get(name) if word == "version" else bench.answer(word)
        print(json.dumps(answer), file=answers, flush=True)


class Bench:
    """An entry at a shape; times are in milliseconds, memory in megabytes."""

    def __init__(
        self,
        make: Callable[[Shape, Tensor], Entry],
        shape: Shape,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._clock = clock
        make(TINY, make_batch(TINY)).step()
        self._without = read_resident("VmRSS")
        self._x = make_batch(shape)
        self._entry = make(shape, self._x)
        self._entry.step()

    def answer(self, word: str) -> dict[str, float]:
        """Return the time of a part of a step or, for "memory", the memory that a step needs."""
        work = {
            "forward": self._entry.forward,
            "forward_backward": lambda: self._entry.forward().backward(),
            "step": self._entry.step,
        }
        return self.memory() if word == "memory" else {"ms": self._time(work[word])}

    def _time(self, work: Callable[[], object]) -> float:
        for parameter in self._entry.parameters():
            parameter.grad = None
        started = self._clock()
        work()
        return 1e3 * (self._clock() - started)

    def memory(self) -> dict[str, float]:
        """Return the peak memory of two steps, less what is kept; and the size of the gradients."""
        gradients = _count_bytes(self._entry.parameters())
        kept = gradients + _count_bytes([*self._entry.state(), self._x])
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._entry.step()
        self._entry.step()
        peak = read_resident("VmHWM") - self._without - kept
        return {"peak_mb": peak / 1e6, "gradients_mb": gradients / 1e6}


def make_batch(shape: Shape) -> Tensor:
    """Return the same Gaussian samples for every entry (B, d)."""
    return torch.randn(shape.B, shape.d, generator=torch.Generator().manual_seed(0))


def read_resident(which: str) -> int:
    """Return the resident bytes of this process, current (VmRSS) or peak (VmHWM), without freed memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())
