"""Sources: blocks of activations by number, so that a resumed run can return to any place in the stream."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, assert_never, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from osae.config import variant
from osae.data.harvest import BATCH_TOKENS, Harvest, build_contexts, count_rows, make_block, open_model
from osae.data.shards import Shards
from osae.data.text import check_readable
from osae.data.worlds import PCAWorld, SparseWorld

BLOCK_NUMBERS = 2**27  # numbers in a block from disk (0.5 GB): more rows are mixed better


@runtime_checkable
class Source(Protocol):
    """Activations in blocks; the same number gives the same block, also after a run is resumed."""

    @property
    def rows(self) -> int:
        """Return the number of rows in every block."""
        ...

    def block(self, index: int) -> Float[Tensor, "N d"]:
        """Return the block of this number; numbers past the last block start over."""
        ...


class MemoryRows:
    """Rows in memory: a single block, repeated every epoch."""

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
    """Activations on disk; `sha256` is that of their manifest, which identifies them whatever the path."""

    path: str
    sha256: str = ""


class ShardRows:
    """Rows on disk in equal blocks, in their order there; the next block is read while one is used."""

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
    """Activations straight from a language model; `batch_tokens` affects their last bits."""

    harvest: Harvest
    batch_tokens: int = BATCH_TOKENS


class LiveRows:
    """The blocks of a harvest straight from the model, with nothing on disk, repeated after the last one.

    All blocks are as long as the longest: a block with fewer rows, because of outliers or of where its
    contexts end, is filled up with its own first rows. So every row is used, and no block depends on another.
    """

    def __init__(self, spec: Live, device: str = "auto"):
        check_readable(spec.harvest.text)
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
            block = make_block(self.spec.harvest, self.lm, self._contexts, place, self.spec.batch_tokens)
            self._ready = (place, block.activations[torch.arange(self.rows) % len(block.activations)])
        return self._ready[1]


SourceSpec = SparseWorld | PCAWorld | OnDisk | Live


def open_source(spec: SourceSpec, device: str = "auto") -> Source:
    """Open the source that a specification describes."""
    match spec:
        case OnDisk(path, sha256):
            shards = Shards(path)
            if sha256 and shards.provenance()["sha256"] != sha256:
                raise ValueError(
                    f"{path} differs from the activations this run started with: restore the original."
                )
            return ShardRows(shards)
        case Live():
            return LiveRows(spec, device)
        case SparseWorld() | PCAWorld():
            return MemoryRows(spec.draw("train").x)
        case _:
            assert_never(spec)
