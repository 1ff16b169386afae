"""Harvests: text to tokens to activations, in blocks that depend only on their number.

Documents are cut into contexts, the contexts are shuffled once, and each block takes the next few hundred of
them. A block can therefore be computed at any time with the same result: an interrupted harvest resumes at
the first missing block, and a training run can take its blocks directly from the model.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from osae import speed
from osae.array_files import read_arrays, read_metadata
from osae.config import to_json, variant
from osae.data.contexts import group_contexts, pad_contexts
from osae.data.lm import LanguageModel
from osae.data.places import find_revision, split_gguf
from osae.data.shards import DTYPES, TENSOR, Shard, Shards, check_dtype, shard_file, write_manifest
from osae.data.text import HubText, Text, check_readable, describe_part
from osae.defaults import CONTEXT, SKIP, DType
from osae.devices import single_thread
from osae.files import atomic_write, check_regular, file_sha256, is_part
from osae.forecast import Forecast, check, forecast_harvest, free_disk, halve
from osae.launching import local_rank
from osae.locks import LOCK, clear_lock, lock
from osae.progress import Progress
from osae.ranks import NO_OTHERS, Ranks
from osae.seeds import generator
from osae.stores import Mirror, Place, Workplace, open_place
from osae.versions import versions

DOCUMENTS = 64  # documents tokenized at a time
MAX_NORM = 10.0
BATCH_TOKENS = 4096  # tokens passed through the model at once
CHECKED_ROWS = 4096  # whose numbers are checked at once: the check needs as much memory as the rows
QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
PLAN = "harvest.json"
CONTEXTS = "contexts.safetensors"
KEPT, DIGITS = "contexts-*.safetensors", 16  # contexts of a run, by the first digits of their digest
MARGIN = 2**20  # bytes to leave free besides a shard, for the manifest


@variant
@dataclass(frozen=True)
class Harvest:
    """Which activations to take: the model, the layer or module, and the text."""

    model: str
    text: Text
    tokens: int
    layer: int | None = None
    module: str | None = None
    revision: str | None = None
    context: int = CONTEXT
    skip: int = SKIP
    bos: str = "auto"
    max_norm: float = MAX_NORM  # times the median norm of a block; rows above this are left out, 0 keeps all
    block: int = 65_536  # maximum rows computed at a time: a shard, or the rows mixed without shards
    seed: int = 0

    def __post_init__(self):
        if self.tokens < 1 or self.block < 1:
            raise ValueError(f"tokens={self.tokens}, block={self.block}: both must be at least 1.")
        if not 0 <= self.skip < self.context:
            raise ValueError(f"skip={self.skip} of the {self.context} positions of a context: skip fewer.")
        if not (self.max_norm == 0 or self.max_norm >= 1):
            raise ValueError(f"max_norm={self.max_norm}: give at least 1, or 0 to keep all rows.")
        if self.bos not in ("auto", "yes", "no"):
            raise ValueError(f"bos={self.bos!r}: give auto, yes or no.")


class Contexts(NamedTuple):
    """Contexts in the order they are used: the ids of all of them, and where each starts."""

    ids: Int[np.ndarray, "T"]
    starts: Int[np.ndarray, "n+1"]
    documents: Int[np.ndarray, "n"]  # document number
    offsets: Int[np.ndarray, "n"]  # position of the first token in the document
    blocks: Int[np.ndarray, "b+1"]  # the first context of each block
    passed: Int[np.ndarray, "1"] = np.array([0])  # documents without a text


class HarvestBlock(NamedTuple):
    """Rows of activations, each with its token and position; the number of rows left out; the norms."""

    activations: Float[Tensor, "N d"]
    tokens: Int[Tensor, "N"]
    documents: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    outliers: int
    norms: Float[Tensor, "N"]
    large: int  # rows that were kept but would be left out by default


# --- text to contexts -------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A context, cut from a document."""

    ids: Int[np.ndarray, "t"]
    document: int
    offset: int


def build_contexts(spec: Harvest, lm: LanguageModel, progress: Progress | None = None) -> Contexts:
    """Return the text's contexts up to `spec.tokens` rows, shuffled across documents."""
    bos = lm.bos(spec.bos)
    _check_length(spec, lm, bos)
    passed = np.array([0])

    def pass_over() -> None:
        passed[0] += 1

    documents = _tokenize(spec.text.documents(pass_over), lm)
    pieces = _cut_documents(spec, bos, documents, progress)
    if not pieces:
        part = describe_part(spec.text, int(passed[0]))
        raise ValueError(f"the text ({part}) has too few tokens for a single row: give more text.")
    contexts = _shuffle_pieces(spec, pieces)._replace(passed=passed)
    if (highest := contexts.ids.max()) >= lm.vocabulary:
        raise ValueError(
            f"the tokenizer returns the id {highest}, but {lm.name} has only {lm.vocabulary} ids: "
            "give a model with a matching tokenizer."
        )
    return contexts


def _check_length(spec: Harvest, lm: LanguageModel, bos: int | None) -> None:
    """Raise `ValueError` if contexts of this length have no room for text, or are too long for the model."""
    if spec.context - (bos is not None) < 1:
        raise ValueError(
            f"context={spec.context} leaves no room for text after the BOS token: give a longer context."
        )
    if lm.longest is not None and spec.context > lm.longest:
        raise ValueError(f"context={spec.context} is too long: {lm.name} takes at most {lm.longest} tokens.")


def _tokenize(documents: Iterator[str], lm: LanguageModel) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each document's number and ids, without special tokens."""
    numbered = enumerate(documents)
    while some := list(islice(numbered, DOCUMENTS)):
        found = lm.tokenizer([words for _, words in some], add_special_tokens=False, verbose=False).input_ids
        for (number, _), ids in zip(some, found, strict=True):
            yield number, np.array(ids, dtype=np.int32)


def _cut_documents(
    spec: Harvest, bos: int | None, documents: Iterator[tuple[int, np.ndarray]], progress: Progress | None
) -> list[_Piece]:
    """Return the contexts of enough documents to make `spec.tokens` rows."""
    begin = np.array([] if bos is None else [bos], dtype=np.int32)
    room, pieces, rows = spec.context - len(begin), [], 0
    for number, ids in documents:
        for offset in range(0, len(ids), room):
            piece = np.concatenate([begin, ids[offset : offset + room]])[: spec.tokens - rows + spec.skip]
            if len(piece) > spec.skip:  # otherwise it is too short to yield a row
                pieces.append(_Piece(piece, number, offset - len(begin)))
                rows += len(piece) - spec.skip
        if progress is not None:
            progress(min(rows, spec.tokens), spec.tokens, "tokens read")
        if rows >= spec.tokens:
            break
    return pieces


def _shuffle_pieces(spec: Harvest, pieces: Sequence[_Piece]) -> Contexts:
    """Return the contexts in random order, in blocks with nearly the same number of rows."""
    order = torch.randperm(len(pieces), generator=generator(spec.seed, "contexts")).tolist()
    shuffled = [pieces[i] for i in order]
    lengths = np.array([len(piece.ids) for piece in shuffled])
    rows = (lengths - spec.skip).cumsum()
    count = -(-int(rows[-1]) // spec.block)
    ends = np.searchsorted(rows, rows[-1] * np.arange(1, count) // count) + 1
    return Contexts(
        ids=np.concatenate([piece.ids for piece in shuffled]),
        starts=np.concatenate([[0], lengths.cumsum()]),
        documents=np.array([piece.document for piece in shuffled]),
        offsets=np.array([piece.offset for piece in shuffled]),
        blocks=np.unique(np.concatenate([[0], ends, [len(pieces)]])),
    )


# --- contexts to activations ------------------------------------------------------------------------


@torch.no_grad()
def make_block(
    spec: Harvest,
    lm: LanguageModel,
    contexts: Contexts,
    index: int,
    batch_tokens: int,
    tell: Callable[[int, float], None] = lambda tokens, seconds: None,
    ranks: Ranks = NO_OTHERS,
) -> HarvestBlock:
    """Return block number `index`: the rows of its contexts, shuffled.

    `tell(rows, seconds)` is called after each batch, with the time taken by the model. Several ranks that
    call this together share the batches; all of them return the whole block.
    """
    passes, telling = lm.count_passes(), threading.Lock()

    def compute(batch: tuple[np.ndarray, np.ndarray]) -> Tensor:
        ids, group = batch
        started = perf_counter()
        hidden = lm.activations(torch.from_numpy(ids).long())
        seconds = perf_counter() - started
        lengths = contexts.starts[group + 1] - contexts.starts[group]
        rows = torch.cat([hidden[row, spec.skip : stop] for row, stop in enumerate(lengths.tolist())])
        with telling:
            tell(len(rows), seconds / passes)
        return rows

    batches = list(batch_contexts(contexts, index, lm.limit_tokens(batch_tokens)))
    own = lm.map_batches(compute, batches[ranks.rank :: ranks.size])
    groups = [group for _, group in batches]
    about = [_describe_rows(spec, contexts, group) for group in groups]
    rows = _exchange_rows(own, [len(each) for each, _, _ in about], ranks)
    joined = [torch.from_numpy(np.concatenate(each).astype(np.int32)) for each in zip(*about, strict=True)]
    return _select_rows(spec, index, rows, joined)


def _describe_rows(
    spec: Harvest, contexts: Contexts, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the token, document and position of every row of some contexts."""
    tokens, documents, positions = [], [], []
    for context in group:
        start, stop = contexts.starts[context : context + 2].tolist()
        tokens.append(contexts.ids[start + spec.skip : stop])
        documents.append(np.full(stop - start - spec.skip, contexts.documents[context]))
        positions.append(contexts.offsets[context] + np.arange(spec.skip, stop - start))
    return np.concatenate(tokens), np.concatenate(documents), np.concatenate(positions)


def _exchange_rows(own: Sequence[Tensor], counts: Sequence[int], ranks: Ranks) -> Tensor:
    """Return the rows of all batches in order; rank r has those of batches r, r + size, r + 2 size, ...

    `counts` are the numbers of rows of all batches.
    """
    if ranks.size == 1:
        return torch.cat(list(own))
    width = int(ranks.max_(torch.tensor(own[0].shape[1] if own else 0)))  # a rank may have no batch
    order = [batch for rank in range(ranks.size) for batch in range(rank, len(counts), ranks.size)]
    joined = ranks.join(torch.cat(list(own)) if own else torch.empty(0, width))
    by_batch = dict(zip(order, joined.split([counts[batch] for batch in order]), strict=True))
    return torch.cat([by_batch[batch] for batch in range(len(counts))])


def _select_rows(spec: Harvest, index: int, rows: Tensor, about: Sequence[Tensor]) -> HarvestBlock:
    """Return the rows and what is known about each, shuffled, without outliers."""
    norms = rows.norm(dim=1)
    if not bool(norms.isfinite().all()):
        raise ValueError(
            f"the model's activations in block {index} contain NaN or infinity: load the model in another "
            "precision."
        )
    kept = torch.randperm(len(rows), generator=generator(spec.seed, "rows", index))
    if spec.max_norm > 0:
        kept = kept[norms[kept] <= spec.max_norm * norms.median()]
    large = int((norms[kept] > MAX_NORM * norms.median()).sum())
    about = [each[kept] for each in about]
    return HarvestBlock(rows[kept], *about, outliers=len(rows) - len(kept), norms=norms[kept], large=large)


def batch_contexts(
    contexts: Contexts, index: int, batch_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the contexts of a block in padded batches of at most `batch_tokens` tokens.

    Each batch comes with the indices of its contexts.
    """
    first, last = contexts.blocks[index : index + 2].tolist()
    starts = contexts.starts[first : last + 1].tolist()
    pieces = [contexts.ids[start:stop] for start, stop in pairwise(starts)]
    for group in group_contexts(pieces, batch_tokens):
        yield pad_contexts([pieces[i] for i in group]), first + np.array(group)


# --- activations to disk ----------------------------------------------------------------------------


def harvest(
    spec: Harvest,
    folder: Place,
    *,
    dtype: DType = "float16",
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
    lm: LanguageModel | None = None,
    ranks: Ranks = NO_OTHERS,
    announce: Callable[[Forecast], None] = lambda needs: None,
) -> tuple[Shards, float | None]:
    """Harvest into the folder, or resume there; return the shards and the share of time spent in the model.

    The share is None if the harvest was already finished. Pass `lm` if the model of this harvest is already
    open. If the folder is a URL on an object store, each shard is uploaded as soon as it is complete. All
    `ranks` call this function, and each computes its own blocks; the resulting folder is the same as from a
    single process. `announce` is called with the resources that the missing rows need, before the model runs.
    """
    check_dtype(dtype)
    plan = {"schema": 1, "harvest": to_json(spec), "dtype": dtype}
    work, first, finished = open_place(folder), ranks.rank == 0, None
    if first:
        work.pull(_is_plan)
        _check_folder(work, plan)
        finished = _open_finished(work)
    if ranks.gather_objects(finished is not None)[0]:
        if first:
            clear_lock(work.folder)
        return finished or Shards(work.place), None
    with lock(work.folder) if first else nullcontext():
        if first:
            _check_folder(work, plan)  # another process may have written to it until now
        found = _open_contexts(spec, work, plan, ranks, lambda: lm or open_model(spec, device), progress)
        made = _write_missing(_Job(spec, work, *found, dtype, batch_tokens, ranks), progress, announce)
    if first:
        work.close()
    return made


def _is_plan(name: str) -> bool:
    return name in (PLAN, CONTEXTS)


class _Job(NamedTuple):
    """A harvest under way: what to compute, with which model, and where to."""

    spec: Harvest
    work: Workplace
    lm: LanguageModel
    contexts: Contexts
    dtype: DType
    batch_tokens: int
    ranks: Ranks


def _open_contexts(
    spec: Harvest,
    work: Workplace,
    plan: dict[str, Any],
    ranks: Ranks,
    open_lm: Callable[[], LanguageModel],
    progress: Progress | None,
) -> tuple[LanguageModel, Contexts]:
    """Return the model and the contexts, which the first rank cuts if the folder does not have them."""
    starts = ranks.rank == 0 and not (work.folder / CONTEXTS).exists()
    if starts:
        check_readable(spec.text)
    if progress is not None:
        progress(0, 1, f"loading {spec.model}")
    lm = open_lm()
    if starts:
        _start(work, plan, build_contexts(spec, lm, progress))
    ranks.wait()
    if ranks.rank > 0 and local_rank() == 0:  # on another machine
        work.pull(_is_plan)
    ranks.wait()
    return lm, read_contexts(work.folder / CONTEXTS)


def pin(spec: Harvest) -> Harvest:
    """Return the same harvest with the present commits of a model and a dataset on the hub."""
    text = spec.text
    if isinstance(text, HubText):
        name = text.dataset.partition(":")[0]
        text = replace(text, revision=find_revision(name, text.revision, "dataset"))
    commit = find_revision(split_gguf(spec.model)[0], spec.revision, "model")
    return replace(spec, text=text, revision=commit)


def open_model(spec: Harvest, device: str = "auto") -> LanguageModel:
    """Open the model of a harvest at the place where activations are collected."""
    return LanguageModel(
        spec.model, layer=spec.layer, module=spec.module, revision=spec.revision, device=device
    )


class _Pace:
    """Progress in tokens, and the time taken by the model; called after every batch."""

    def __init__(self, total: int, missing: int, progress: Progress | None):
        self.total, self.done, self.progress = total, total - missing, progress
        self.began, self.before, self.modelled = perf_counter(), self.done, 0.0

    def __call__(self, tokens: int, seconds: float) -> None:
        self.done, self.modelled = self.done + tokens, self.modelled + seconds
        if self.progress is not None:
            rate = (self.done - self.before) / (perf_counter() - self.began)
            self.progress(self.done, self.total, f"tokens, {rate:,.0f} a second")

    def share(self) -> float | None:
        """Return the share of the elapsed time taken by the model; None if it was not needed."""
        return self.modelled / max(perf_counter() - self.began, 1e-9) if self.modelled else None


def _check_folder(work: Workplace, plan: dict[str, Any]) -> None:
    """Raise `ValueError` if the folder contains another harvest, or anything else."""
    path = work.folder / PLAN
    if path.exists():
        check_regular(path)
        if path.read_bytes() != _format_plan(plan).encode():
            raise ValueError(f"{work.place} contains another harvest (see {PLAN}): give a new folder.")
    elif any(not is_part(Path(name)) and name != LOCK for name in work.names()):
        raise ValueError(f"{work.place} contains other files: give a new folder.")


def _open_finished(work: Workplace) -> Shards | None:
    """Return the shards of a finished harvest, leaving its manifest unchanged; None if it is not finished."""
    with suppress(ValueError):
        shards = Shards(work.place)
        lost = shards.covers(CONTEXTS) and CONTEXTS not in work.names()
        return shards if shards.manifest.get("complete") and not lost else None
    return None


def _start(work: Workplace, plan: dict[str, Any], contexts: Contexts) -> None:
    """Write the plan and the contexts to the folder, which belongs to this harvest from now on."""
    work.folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(work.folder / PLAN) as path:
        path.write_text(_format_plan(plan))
    work.push()
    _write_contexts(work.folder / CONTEXTS, contexts)
    work.push()


def _write_contexts(path: Path, contexts: Contexts) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in contexts._asdict().items()}
    with atomic_write(path) as beside:
        save_arrays(arrays, beside)


def _format_plan(plan: dict[str, Any]) -> str:
    return json.dumps(plan, indent=2) + "\n"


def read_contexts(path: Path) -> Contexts:
    """Return the contexts that a harvest wrote next to its shards."""
    try:
        return Contexts(**read_arrays(path))
    except (SafetensorError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run the same command again.") from error


def keep_contexts(folder: Path, spec: Harvest, lm: LanguageModel, ranks: Ranks = NO_OTHERS) -> Contexts:
    """Return the contexts that are kept in a folder; if there are none, cut the text into contexts first.

    The name of their file has its digest; a damaged one is replaced. The first of the ranks writes. Ranks
    that do not see its folder cut the text on their own.
    """
    if ranks.rank == 0 and _find_kept(folder) is None:
        forget_contexts(folder)
        path = folder / CONTEXTS
        _write_contexts(path, build_contexts(spec, lm))
        path.rename(folder / f"{path.stem}-{file_sha256(path)[:DIGITS]}{path.suffix}")
    ranks.wait()
    kept = _find_kept(folder)
    return build_contexts(spec, lm) if kept is None else read_contexts(kept)


def forget_contexts(folder: Path) -> None:
    """Delete the contexts that are kept in a folder."""
    for path in (folder / CONTEXTS, *folder.glob(KEPT)):
        path.unlink(missing_ok=True)


def _find_kept(folder: Path) -> Path | None:
    """Return the file of contexts that are kept in a folder, if it is whole."""
    whole = (path for path in folder.glob(KEPT) if path.stem.endswith(file_sha256(path)[:DIGITS]))
    return next(whole, None)


def count_rows(spec: Harvest, contexts: Contexts, index: int | None = None) -> int:
    """Return the number of rows of a block, or of all blocks, before outliers are left out."""
    first, last = (0, -1) if index is None else (contexts.blocks[index], contexts.blocks[index + 1])
    count = len(contexts.documents) if index is None else last - first
    return int(contexts.starts[last] - contexts.starts[first] - spec.skip * count)


class _Made(NamedTuple):
    """The metadata of a shard, and its digest."""

    about: dict[str, Any]
    sha256: str


def _write_missing(
    job: _Job, progress: Progress | None, announce: Callable[[Forecast], None]
) -> tuple[Shards, float | None]:
    """Write the missing shards and the manifest; if the disk is full, a manifest of those written so far."""
    spec, work, contexts, ranks = job.spec, job.work, job.contexts, job.ranks
    names, there = [shard_file(index) for index in range(len(contexts.blocks) - 1)], work.names()
    missing = [index for index, name in enumerate(names) if name not in there]
    rows = sum(count_rows(spec, contexts, index) for index in missing)
    total = count_rows(spec, contexts)
    ranks.wait()  # until all ranks know what is missing
    if missing:
        needs = _check_needs(job, total, rows)
        if ranks.rank == 0:
            announce(needs)
    mine = missing[ranks.rank :: ranks.size]
    own = sum(count_rows(spec, contexts, index) for index in mine)
    pace = _Pace(total - rows + own, own, progress)
    blocks = ((names[i], make_block(spec, job.lm, contexts, i, job.batch_tokens, pace)) for i in mine)
    made: dict[str, _Made] = {}
    try:
        with single_thread() if job.lm.device.type == "cpu" else nullcontext():  # also the one that writes
            _write_blocks(blocks, work, job.dtype, made)
    except OSError as error:
        if ranks.size > 1 or isinstance(work, Mirror):
            raise OSError(f"{error}. Run the same command again to resume.") from error
        raise _finish_part(job, error, names, made) from error
    for others in ranks.gather_objects(made):
        made |= others
    if ranks.rank == 0:
        _finish(job, names, made)
    ranks.wait()
    return Shards(work.place), pace.share()


def _finish_part(job: _Job, error: OSError, names: Sequence[str], made: Mapping[str, _Made]) -> OSError:
    """Write the manifest of the existing shards, since the disk is full; return the error to raise."""
    there = job.work.names()
    written = [name for name in names if name in there]
    if written:
        _finish(job, written, made)
    return OSError(
        f"{error}. {len(written)} of {len(names)} shards are written and usable; run the same command again "
        "to resume."
    )


def _check_needs(job: _Job, total: int, missing: int) -> Forecast:
    """Return what the missing rows need; raise `ValueError` with the number that fits if that is too much."""
    width, item = job.lm.activations(torch.zeros(1, 1).long()).shape[-1], DTYPES[job.dtype].itemsize
    model = job.lm.forecast_bytes(min(job.batch_tokens, missing), job.spec.context)
    seconds = _time_model(job, missing) / job.ranks.size

    def forecast(*, rows: int = missing, block: int = job.spec.block) -> Forecast:
        needs = forecast_harvest(rows, width, block=block, item=item, model=model, seconds=seconds)
        if isinstance(job.work, Mirror):  # shards are uploaded one by one
            return replace(needs, disk=min(needs.disk, 2 * block * width * item))
        return needs

    needs, folder = forecast(), job.work.folder
    blocks = (block for block in halve(job.spec.block) if block >= job.spec.context)
    smaller = [(f"--mix-rows {block}", forecast(block=block)) for block in blocks]
    most = max(0, free_disk(folder) - MARGIN) * missing // max(1, needs.disk)
    if 0 < most < missing:
        smaller.append((f"--tokens {total - missing + most}", forecast(rows=most)))
    remedy = "give fewer --tokens or a smaller --mix-rows, or harvest into a folder on another disk."
    check(needs, remedy, folder, smaller)
    return needs


def _time_model(job: _Job, rows: int) -> float:
    """Return the seconds that the model takes for that many rows, from the time that it takes for a few."""
    context, passes = job.spec.context, job.lm.count_passes()
    contexts = passes if job.lm.device.type == "cpu" else max(1, job.batch_tokens // context)
    ids = torch.zeros(contexts // passes, context, dtype=torch.int64)
    started = speed.CLOCK()
    job.lm.map_batches(job.lm.activations, [ids] * passes)
    return (speed.CLOCK() - started) / (contexts * context) * rows


def _write_blocks(
    blocks: Iterable[tuple[str, HarvestBlock]], work: Workplace, dtype: DType, made: dict[str, _Made]
) -> None:
    """Write each block to its file while the next one is computed; record what was written."""
    with ThreadPoolExecutor(1) as writer:
        last: Future | None = None
        for name, block in blocks:
            if last is not None:
                last.result()  # so that at most one block waits
            last = writer.submit(_write_block, name, block, work, dtype, made)
        if last is not None:
            last.result()


def _write_block(
    name: str, block: HarvestBlock, work: Workplace, dtype: DType, made: dict[str, _Made]
) -> None:
    stored = block.activations.to(DTYPES[dtype])
    if not all(bool(part.isfinite().all()) for part in stored.split(CHECKED_ROWS)):
        raise ValueError(
            f"activations exceed the range of {dtype}: harvest with --dtype bfloat16 or float32."
        )
    tensors = {
        TENSOR: stored,
        "tokens": block.tokens,
        "documents": block.documents,
        "positions": block.positions,
    }
    _check_room(work.folder / name, sum(tensor.nbytes for tensor in tensors.values()))
    about = _describe(block, stored)
    with atomic_write(work.folder / name) as path:
        save_file(tensors, path, {"osae": json.dumps(about)})
        digest = file_sha256(path)  # now, while the file is still in memory
    work.hand_over(name)
    made[name] = _Made(about, digest)


def _check_room(file: Path, size: int) -> None:
    """Raise `OSError` if the disk has no room for that many bytes."""
    free = shutil.disk_usage(file.parent).free
    if free < size + MARGIN:
        needed, there = (size + MARGIN) / 1e6, free / 1e6
        raise OSError(
            f"not enough space for another shard in {file.parent}: {needed:.1f} MB needed, {there:.1f} MB "
            "free"
        )


def _describe(block: HarvestBlock, stored: Tensor) -> dict[str, Any]:
    """Return a block's counts and moments, to be stored in its shard."""
    rows = stored.double()
    about = {
        "rows": len(rows),
        "outliers": block.outliers,
        "mean": rows.mean(0).tolist(),
        "square": float(rows.square_().mean()),
        "norms": torch.quantile(block.norms.double(), torch.tensor(QUANTILES).double()).tolist(),
    }
    return about | ({"large": block.large} if block.large else {})


def _finish(job: _Job, names: Sequence[str], made: Mapping[str, _Made]) -> None:
    """Write the manifest of these shards, which combines their metadata."""
    spec, work, lm, contexts = job.spec, job.work, job.lm, job.contexts
    found = [made[name] if name in made else _read_made(work, name) for name in names]
    abouts = [each.about for each in found]
    count = len(contexts.documents)
    text = {"contexts": count, "documents": len(np.unique(contexts.documents))}
    text["passed"] = int(contexts.passed[0])
    about = {
        "complete": len(names) == len(contexts.blocks) - 1,
        "model": {"name": spec.model, "revision": lm.revision, "layer": spec.layer, "module": spec.module},
        "tokenizer": {
            "name": str(lm.tokenizer.name_or_path),
            "ids": len(lm.tokenizer),
            "bos": lm.bos(spec.bos),
        },
        "text": spec.text.origin() | text,
        "harvest": to_json(spec),
        "outliers": sum(about["outliers"] for about in abouts),
        "large": sum(about.get("large", 0) for about in abouts),
        "skipped": spec.skip * count,
        **_combine_moments(abouts),
        "versions": versions(),
    }
    shards = [
        Shard(work.folder / name, each.about["rows"], each.sha256)
        for name, each in zip(names, found, strict=True)
    ]
    write_manifest(work.folder, shards, len(abouts[0]["mean"]), job.dtype, about, [work.folder / CONTEXTS])
    work.push()


def _read_made(work: Workplace, name: str) -> _Made:
    """Return the metadata and digest of a shard that an earlier process wrote."""
    with work.borrow(name) as file:
        return _Made(_read_about(file), file_sha256(file))


def _combine_moments(abouts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scale, quantiles of norms and mean of all rows; the inner quantiles are approximate."""
    rows = [about["rows"] for about in abouts]
    share = np.array(rows) / sum(rows)
    mean, square = (share @ np.array([about[name] for about in abouts]) for name in ("mean", "square"))
    each = np.array([about["norms"] for about in abouts])
    norms = [each[:, 0].min(), *(share @ each[:, 1:-1]), each[:, -1].max()]
    variance = float(square - np.square(mean).mean())
    return {
        "scale": max(variance, 1e-24) ** -0.5,
        "norms": {f"{q:g}": norm for q, norm in zip(QUANTILES, norms, strict=True)},
        "mean": mean.tolist(),
    }


def _read_about(file: Path) -> dict[str, Any]:
    """Return the metadata of a shard."""
    try:
        return json.loads(read_metadata(file)["osae"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}): delete it and run the same command again.") from error
