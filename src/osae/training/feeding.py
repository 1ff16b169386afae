"""Blocks of activations on the training device: each is uploaded once, and the next one while one is in use.

On the CPU, a block is used where it was read; sources read the next one ahead. For a GPU, a thread fetches
the next block from its source (with --live, a language model computes it while the SAEs train), checks for
NaN, and copies it through pinned memory in a separate stream. Batches are then selected on the device.
"""

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.source import Source
from osae.training.finite import are_finite

LARGEST = 2**27  # numbers in a block that is uploaded as a whole (0.5 GB); only rows in memory exceed this


class PlacedBlock(NamedTuple):
    """A block on the host, and the tensor that batches are taken from.

    `arrived` is a device event that signals when the block has arrived; None if it already has.
    """

    rows: Float[Tensor, "N d"]
    there: Float[Tensor, "N d"]
    finite: bool
    arrived: Any = None


def place(rows: Float[Tensor, "N d"], device: torch.device) -> PlacedBlock:
    """Copy a block to the device, or start copying; a block that is too large stays on the host."""
    finite = are_finite([rows])
    if device.type == "cpu" or rows.numel() > LARGEST:
        return PlacedBlock(rows, rows, finite)
    if device.type != "cuda":
        return PlacedBlock(rows, rows.to(device), finite)
    pinned = rows.pin_memory()
    there = pinned.to(device, non_blocking=True)
    return PlacedBlock(pinned, there, finite, torch.cuda.current_stream(device).record_event())


def runs_beside(device: torch.device) -> bool:
    """Return whether the device computes while the host prepares the next block."""
    return device.type == "cuda"


@contextmanager
def open_helper(
    devices: Iterable[torch.device], *, together: bool = False
) -> Iterator[ThreadPoolExecutor | None]:
    """Yield the thread that prepares blocks for the devices; None if none is needed.

    There is one thread for all seeds and devices: sources return one block at a time. Several ranks may
    compute a block `together`: then, a block that was started is also finished.
    """
    if not any(runs_beside(device) for device in devices):
        yield None
        return
    helper = ThreadPoolExecutor(1, thread_name_prefix="osae-feeder")
    try:
        yield helper
    finally:
        helper.shutdown(wait=together, cancel_futures=not together)


class Feed:
    """The blocks of a source for one seed, on the device; `last` is the number of the last block needed."""

    def __init__(
        self,
        source: Source,
        seed: int,
        device: torch.device,
        *,
        helper: ThreadPoolExecutor | None = None,
        last: int = 0,
    ):
        self.source, self.seed, self.device = source, seed, device
        self._helper, self._last = helper, last
        self._coming: tuple[int, Future[PlacedBlock]] | None = None
        self._read: tuple[Tensor, PlacedBlock] | None = None  # the last block as the source returned it

    def get(self, index: int) -> PlacedBlock:
        """Return the block with this number, waiting for it if necessary."""
        if self._helper is None:
            self._read = None  # freed before another block is read
            return self._fetch(index)
        if self._coming is None or self._coming[0] != index:
            self._coming = index, self._helper.submit(self._fetch, index)
        placed, self._coming = self._coming[1].result(), None
        if placed.arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(placed.arrived)
            placed.there.record_stream(stream)  # otherwise the memory would be reused too early
        return placed

    def begin(self, index: int) -> None:
        """Start fetching the block that will be needed next."""
        if self._helper is not None and self._coming is None and index <= self._last:
            self._coming = index, self._helper.submit(self._fetch, index)

    def _fetch(self, index: int) -> PlacedBlock:
        with _own_stream(self.device) if self._helper is not None else nullcontext():
            rows = self.source.block(index, self.seed)
            if self._read is None or self._read[0] is not rows:  # a single block is the same in every epoch
                self._read = rows, place(rows, self.device)
            return self._read[1]


def _own_stream(device: torch.device) -> Any:
    """Return a context in which this thread's work on the device runs in its own stream."""
    return torch.cuda.stream(_stream_of(device)) if device.type == "cuda" else nullcontext()


@functools.cache  # memory allocated in one stream is not reused in another
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
