"""Sources: blocks of activations by number, so that a resumed run can return to any position."""

import hashlib
import json
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, assert_never, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from osae.config import variant
from osae.data.harvest import (
    BATCH_TOKENS,
    Harvest,
    build_contexts,
    count_rows,
    keep_contexts,
    make_block,
    open_model,
)
from osae.data.shards import Shards
from osae.data.text import HubText, Text, check_readable
from osae.data.worlds import ForestWorld, PCAWorld, SparseWorld
from osae.ranks import NO_OTHERS, Ranks
from osae.seeds import generator

BLOCK_NUMBERS = 2**27  # numbers in a block of `ShardRows` (0.5 GB)
MIXED_NUMBERS = 2**26  # numbers in a block of `MixedRows` (0.25 GB, and two blocks for every seed)
RUNS = 2048  # runs of neighbouring rows in a block of `MixedRows`


class Part(NamedTuple):
    """Rows `start` to `stop` of the block with this number, in the order in which a seed uses its rows."""

    block: int
    start: int
    stop: int


@runtime_checkable
class Source(Protocol):
    """Activations in blocks; the same number always gives the same block, even after a run is resumed."""

    @property
    def rows(self) -> int:
        """Return the largest number of rows that a batch may have."""
        ...

    def block(self, index: int, seed: int = 0) -> Float[Tensor, "N d"]:
        """Return the block with this number for this seed; numbers past the last block start over."""
        ...

    def parts(self, step: int, batch: int) -> list[Part]:
        """Return the parts of blocks that make up batch number `step` (from 0), of `batch` rows."""
        ...

    def forget(self) -> None:
        """Free the memory of blocks that can be read again."""
        ...


class _EqualBlocks(ABC):
    """A source whose blocks all have the same length and are the same for every seed.

    A batch comes from a single block; rows that do not fill a batch are left out, different ones each time.
    """

    @property
    @abstractmethod
    def rows(self) -> int:
        """Return the number of rows in every block."""

    def parts(self, step: int, batch: int) -> list[Part]:
        index, turn = divmod(step, self.rows // batch)
        return [Part(index, turn * batch, (turn + 1) * batch)]

    def forget(self) -> None:
        return


class MemoryRows(_EqualBlocks):
    """Rows in memory: a single block, repeated every epoch."""

    def __init__(self, rows: Float[Tensor, "N d"]):
        self._rows = rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def block(self, index: int, seed: int = 0) -> Float[Tensor, "N d"]:
        return self._rows


@variant
@dataclass(frozen=True)
class OnDisk:
    """Activations on disk, identified by the `sha256` of their manifest whatever the path.

    `mixing` is how rows are shuffled: 2 over all the data (`MixedRows`), 1 within blocks of neighbouring rows
    (`ShardRows`), as in release 0.1.0.
    """

    path: str
    sha256: str = ""
    mixing: int = 2

    def __post_init__(self):
        if self.mixing not in (1, 2):
            raise ValueError(f"mixing={self.mixing}: this release supports 1 and 2.")

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Keep the order of rows that a run of release 0.1.0 started with."""
        return {"mixing": 1} | data


class MixedRows:
    """Rows on disk, in a different order for every seed and epoch; all rows are used in each epoch.

    The rows are cut into short runs of neighbours, and these are shuffled. A block is a section of that
    order, read as a whole: about `RUNS` runs from all over the data, whatever the width. The training loop
    then shuffles its rows as well, and a batch may span several blocks. The next block of a seed is read
    while the current one is used.
    """

    def __init__(self, shards: Shards, limit: int | None = None):
        most = limit or max(1, MIXED_NUMBERS // shards.width)
        self.shards, self.count = shards, -(-shards.rows // most)
        self.length = -(-shards.rows // self.count)  # length of a block; the last in an epoch may be shorter
        self.run = max(1, self.length // RUNS)
        self._ready: dict[int, tuple[int, Tensor]] = {}
        self._coming: dict[int, tuple[int, Future]] = {}
        self._orders: dict[int, tuple[int, Tensor]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="osae-reader")

    @property
    def rows(self) -> int:
        return self.shards.rows

    def parts(self, step: int, batch: int) -> list[Part]:
        at, stop, found = step * batch, (step + 1) * batch, []
        while at < stop:
            epoch, place = divmod(at, self.shards.rows)
            number, start = divmod(place, self.length)
            end = min(start + stop - at, self.length, self.shards.rows - number * self.length)
            found.append(Part(epoch * self.count + number, start, end))
            at += end - start
        return found

    def block(self, index: int, seed: int = 0) -> Float[Tensor, "N d"]:
        if self.count == 1:
            index, seed = 0, 0  # all rows, for every seed
        if seed not in self._ready or self._ready[seed][0] != index:
            at, coming = self._coming.pop(seed, (-1, None))
            self._ready.pop(seed, None)  # freed before another is read
            self._ready[seed] = (
                index,
                coming.result() if coming and at == index else self._read(index, seed),
            )
            if self.count > 1:
                self._coming[seed] = (index + 1, self._reader.submit(self._read, index + 1, seed))
        return self._ready[seed][1]

    def forget(self) -> None:
        self._coming.clear()
        if self.count > 1:
            self._ready.clear()

    def _read(self, index: int, seed: int) -> Tensor:
        epoch, number = divmod(index, self.count)
        first, stop = number * self.length, min((number + 1) * self.length, self.shards.rows)
        rows, done = torch.empty(stop - first, self.shards.width), 0
        for part in self.shards.read_ranges(self._ranges(first, stop, epoch, seed)):
            rows[done : done + len(part)] = part
            done += len(part)
        return rows

    def _ranges(self, first: int, stop: int, epoch: int, seed: int) -> list[tuple[int, int]]:
        """Return the ranges on disk of rows `first` to `stop` of an epoch's order, sorted by position."""
        if self.count == 1:
            return [(first, stop)]
        shuffled = self.shards.rows // self.run  # runs of full length; the rest comes last
        order = self._order(shuffled, epoch, seed)
        ranges = []
        for slot in range(first // self.run, -(-stop // self.run)):
            start = int(order[slot]) * self.run if slot < shuffled else slot * self.run
            low, high = max(first - slot * self.run, 0), min(stop - slot * self.run, self.run)
            ranges.append((start + low, min(start + high, self.shards.rows)))
        return sorted(ranges)

    def _order(self, count: int, epoch: int, seed: int) -> Tensor:
        if seed not in self._orders or self._orders[seed][0] != epoch:
            source = generator(seed, "runs", epoch)
            self._orders[seed] = (epoch, torch.randperm(count, generator=source, dtype=torch.int32))
        return self._orders[seed][1]


class ShardRows(_EqualBlocks):
    """Rows on disk in equal blocks, in their order on disk; the next block is read while one is used."""

    def __init__(self, shards: Shards, limit: int | None = None):
        most = limit or max(1, BLOCK_NUMBERS // shards.width)
        self.shards, self.count = shards, -(-shards.rows // most)
        self._ready: tuple[int, Tensor] | None = None
        self._coming: tuple[int, Future] | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="osae-reader")

    @property
    def rows(self) -> int:
        return self.shards.rows // self.count

    def block(self, index: int, seed: int = 0) -> Float[Tensor, "N d"]:
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
    """Activations directly from a language model; `batch_tokens` affects their last bits.

    `text_sha256` is the digest of the text files (see `digest_text`); it is empty if it was not recorded.
    """

    harvest: Harvest
    batch_tokens: int = BATCH_TOKENS
    text_sha256: str = ""


def digest_text(text: Text) -> str:
    """Return a digest of the files of a text.

    It is empty for a dataset on the hub, which is identified by its commit (see `osae.data.harvest.pin`).
    """
    if isinstance(text, HubText):
        return ""
    return hashlib.sha256(json.dumps(text.origin()["files"]).encode()).hexdigest()


class LiveRows(_EqualBlocks):
    """The blocks of a harvest directly from the model, with nothing on disk, repeated after the last one.

    All blocks are as long as the longest: a block with fewer rows, because of outliers or because of where
    its contexts end, is padded with its own first rows. So every row is used, and no block depends on
    another.

    Several `ranks` that ask for the same blocks in the same order share the work of the model. The contexts
    of the text are kept in a `folder`, if one is given.
    """

    def __init__(
        self, spec: Live, device: str = "auto", ranks: Ranks = NO_OTHERS, folder: Path | None = None
    ):
        check_readable(spec.harvest.text)
        self.spec, self.lm, self.ranks = spec, open_model(spec.harvest, device), ranks
        self._contexts = (
            build_contexts(spec.harvest, self.lm)
            if folder is None
            else keep_contexts(folder, spec.harvest, self.lm, ranks)
        )
        self.count = len(self._contexts.blocks) - 1
        self._rows = max(count_rows(spec.harvest, self._contexts, index) for index in range(self.count))
        self._ready = (-1, Tensor())

    @property
    def rows(self) -> int:
        return self._rows

    def block(self, index: int, seed: int = 0) -> Float[Tensor, "N d"]:
        place = index % self.count
        if self._ready[0] != place:
            spec = self.spec
            block = make_block(
                spec.harvest, self.lm, self._contexts, place, spec.batch_tokens, ranks=self.ranks
            )
            self._ready = (place, block.activations[torch.arange(self.rows) % len(block.activations)])
        return self._ready[1]


SourceSpec = SparseWorld | PCAWorld | ForestWorld | OnDisk | Live


def open_source(
    spec: SourceSpec, device: str = "auto", ranks: Ranks = NO_OTHERS, folder: Path | None = None
) -> Source:
    """Open the source that a specification describes; `ranks` share the work of a language model.

    They exchange its activations at any time, so nothing else may be exchanged in their group. What a resumed
    run would have to compute again before it can start is kept in the `folder`.
    """
    match spec:
        case OnDisk(path, sha256, mixing):
            shards = Shards(path)
            if sha256 and shards.provenance()["sha256"] != sha256:
                raise ValueError(
                    f"{path} differs from the activations that this run started with: restore the original."
                )
            return ShardRows(shards) if mixing == 1 else MixedRows(shards)
        case Live(harvest, _, sha256):
            if sha256 and digest_text(harvest.text) != sha256:
                raise ValueError("the text differs from the one this run started with: restore the original.")
            return LiveRows(spec, device, ranks, folder)
        case SparseWorld() | PCAWorld() | ForestWorld():
            return MemoryRows(spec.draw("train").x)
        case _:
            assert_never(spec)


def describe_place(source: Source) -> dict[str, Any]:
    """Return where in which model the rows on disk were harvested, if their manifest says so.

    The result is the field `harvested` of an SAE's provenance. A source that is a model itself needs none.
    """
    manifest = source.shards.manifest if isinstance(source, MixedRows | ShardRows) else {}
    model, spec = manifest.get("model"), manifest.get("harvest")
    if not isinstance(model, dict) or not model.get("name"):
        return {}
    context = spec.get("context") if isinstance(spec, dict) else None
    place = {"model": model["name"], "layer": model.get("layer"), "module": model.get("module")}
    return {"harvested": place | {"context": context}}
