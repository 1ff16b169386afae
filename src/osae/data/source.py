"""Sources: blocks of activations by number, so that any place in the stream can be returned to."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from osae.config import variant
from osae.data.harvest import BATCH_TOKENS, Harvest, build_contexts, count_rows, make_block, open_model
from osae.data.shards import Shards
from osae.data.worlds import PCAWorld, SparseWorld

BLOCK_NUMBERS = 2**27  # numbers in a block from disk (0.5 GB): the more rows, the better they are mixed


@runtime_checkable
class Source(Protocol):
    """Yields the same rows for the same block number, today and after a resume."""

    @property
    def rows(self) -> int:
        """Rows in every block."""
        ...

    def block(self, index: int) -> Float[Tensor, "N d"]: ...


class Rows:
    """Rows in memory: one block that comes round again every epoch."""

    def __init__(self, rows: Float[Tensor, "N d"]):
        self._rows = rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def block(self, index: int) -> Float[Tensor, "N d"]:
        return self._rows


@variant
@dataclass(frozen=True)
class OnDisk:
    """Activations on disk; `sha256` is that of their manifest, to tell them from others at the same path."""

    path: str
    sha256: str = ""


class ShardRows:
    """Rows on disk in equal blocks, in their order there; the next block is read while one is in use."""

    def __init__(self, shards: Shards, limit: int | None = None):
        most = limit or max(1, BLOCK_NUMBERS // shards.width)
        self.shards, self.count = shards, -(-shards.rows // most)
        self._ready: tuple[int, Tensor] | None = None
        self._coming: tuple[int, Future] | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="osae-reader")

    @property
    def rows(self) -> int:
        return self.shards.rows // self.count

    def block(self, index: int) -> Float[Tensor, "N d"]:
        if self._ready is None or self._ready[0] != index:
            coming = self._coming
            rows = coming[1].result() if coming and coming[0] == index else self._read(index)
            self._ready = (index, rows)
            if self.count > 1:
                self._coming = (index + 1, self._reader.submit(self._read, index + 1))
        return self._ready[1]

    def _read(self, index: int) -> Tensor:
        place = index % self.count
        if self._ready is not None and self._ready[0] % self.count == place:
            return self._ready[1]
        return self.shards.read(place * self.rows, (place + 1) * self.rows)


@variant
@dataclass(frozen=True)
class Live:
    """Activations straight from a language model; other `batch_tokens` change their last bits."""

    harvest: Harvest
    batch_tokens: int = BATCH_TOKENS


class LiveRows:
    """The blocks of a harvest straight from the model, nothing on disk; they come round again at the end.

    Blocks have the length of the longest: what a shorter one lacks, where outliers are left out and where
    contexts end, its own first rows fill up. So every row is used, and no block depends on another.
    """

    def __init__(self, spec: Live, device: str = "auto"):
        self.spec, self.lm = spec, open_model(spec.harvest, device)
        self._contexts = build_contexts(spec.harvest, self.lm)
        self.count = len(self._contexts.blocks) - 1
        self._rows = max(count_rows(spec.harvest, self._contexts, index) for index in range(self.count))
        self._ready = (-1, Tensor())

    @property
    def rows(self) -> int:
        return self._rows

    def block(self, index: int) -> Float[Tensor, "N d"]:
        place = index % self.count
        if self._ready[0] != place:
            made = make_block(self.spec.harvest, self.lm, self._contexts, place, self.spec.batch_tokens)
            self._ready = (place, made.activations[torch.arange(self.rows) % len(made.activations)])
        return self._ready[1]


SourceSpec = SparseWorld | PCAWorld | OnDisk | Live


def open_source(spec: SourceSpec, device: str = "auto") -> Source:
    """The source that a specification names."""
    match spec:
        case OnDisk(path, sha256):
            shards = Shards(path)
            if sha256 and shards.provenance()["sha256"] != sha256:
                raise ValueError(f"{path} holds other activations than this run began with: put those back.")
            return ShardRows(shards)
        case Live():
            return LiveRows(spec, device)
        case _:
            return Rows(spec.draw("train").x)
