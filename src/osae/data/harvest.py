"""Harvests: text to tokens to activations, in blocks that depend on their number alone.

Documents are cut into contexts, the contexts are shuffled once, and each block takes the next few hundred of
them. So a block can be made at any time and comes out the same: an interrupted harvest is resumed with the
first block that is missing, and a training run can take its blocks straight from the model.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from osae.config import to_json, variant
from osae.data.contexts import group_contexts, pad_contexts
from osae.data.lm import LanguageModel
from osae.data.shards import DTYPES, TENSOR, DType, Shard, Shards, finish, shard_file
from osae.data.text import Text, check_readable, describe_part
from osae.defaults import CONTEXT, SKIP
from osae.files import atomic_write, check_regular, file_sha256, is_part
from osae.forecast import Forecast, check, forecast_harvest, free_disk
from osae.locks import LOCK, clear_lock, lock
from osae.progress import Progress
from osae.seeds import generator
from osae.versions import versions

DOCUMENTS = 64  # tokenized at a time
MAX_NORM = 10.0
BATCH_TOKENS = 4096  # passed through the model at once
QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
PLAN = "harvest.json"
CONTEXTS = "contexts.safetensors"
MARGIN = 2**20  # bytes to leave free besides a shard, for the manifest


@variant
@dataclass(frozen=True)
class Harvest:
    """Which activations to take: of which model, at which place, on which text."""

    model: str
    text: Text
    tokens: int
    layer: int | None = None
    module: str | None = None
    revision: str | None = None
    context: int = CONTEXT
    skip: int = SKIP
    bos: str = "auto"
    max_norm: float = MAX_NORM  # times the median norm of a block; rows above are left out, 0 keeps all
    block: int = 65_536  # rows made at a time, at most: a shard, or what a training run without shards mixes
    seed: int = 0

    def __post_init__(self):
        if self.tokens < 1 or self.block < 1:
            raise ValueError(f"tokens={self.tokens}, block={self.block}: both must be at least 1.")
        if not 0 <= self.skip < self.context:
            raise ValueError(f"skip={self.skip} positions of {self.context}: leave at least one.")
        if not (self.max_norm == 0 or self.max_norm >= 1):
            raise ValueError(f"max_norm={self.max_norm}: give at least 1, or 0 to keep all rows.")
        if self.bos not in ("auto", "yes", "no"):
            raise ValueError(f"bos={self.bos!r}: give auto, yes or no.")


class Contexts(NamedTuple):
    """Contexts in the order they are used: the ids of all of them, and where each starts."""

    ids: Int[np.ndarray, "T"]
    starts: Int[np.ndarray, "n+1"]
    documents: Int[np.ndarray, "n"]  # the number of the document it is from
    offsets: Int[np.ndarray, "n"]  # the position of its first token in the document
    blocks: Int[np.ndarray, "b+1"]  # the first context of each block
    passed: Int[np.ndarray, "1"] = np.array([0])  # documents without a text


class HarvestBlock(NamedTuple):
    """Rows of activations, each with its token and where it stood; how many were left out; the norms."""

    activations: Float[Tensor, "N d"]
    tokens: Int[Tensor, "N"]
    documents: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    outliers: int
    norms: Float[Tensor, "N"]
    large: int  # rows kept that would be left out by default


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
        raise ValueError(f"the text ({part}) has too few tokens for a row: give more of it.")
    contexts = _shuffle_pieces(spec, pieces)._replace(passed=passed)
    if (highest := contexts.ids.max()) >= lm.vocabulary:
        raise ValueError(
            f"the tokenizer gives the id {highest}, and {lm.name} has {lm.vocabulary} of them: "
            "give a model whose tokenizer belongs to it."
        )
    return contexts


def _check_length(spec: Harvest, lm: LanguageModel, bos: int | None) -> None:
    """Raise `ValueError` if contexts of this length have no text, or are too long for the model."""
    if spec.context - (bos is not None) < 1:
        raise ValueError(
            f"context={spec.context} leaves no room next to the BOS token: give a longer context."
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
    """Return the contexts of as many documents as make `spec.tokens` rows."""
    begin = np.array([] if bos is None else [bos], dtype=np.int32)
    room, pieces, rows = spec.context - len(begin), [], 0
    for number, ids in documents:
        for offset in range(0, len(ids), room):
            piece = np.concatenate([begin, ids[offset : offset + room]])[: spec.tokens - rows + spec.skip]
            if len(piece) > spec.skip:  # else it is too short to leave a row
                pieces.append(_Piece(piece, number, offset - len(begin)))
                rows += len(piece) - spec.skip
        if progress is not None:
            progress(min(rows, spec.tokens), spec.tokens, "tokens read")
        if rows >= spec.tokens:
            break
    return pieces


def _shuffle_pieces(spec: Harvest, pieces: Sequence[_Piece]) -> Contexts:
    """Return the contexts in random order, in blocks of nearly equal numbers of rows."""
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
) -> HarvestBlock:
    """Return block number `index`: the rows of its contexts, shuffled.

    `tell(rows, seconds)` is called after each batch with the time that the model took.
    """
    parts, tokens, documents, positions = [], [], [], []
    for ids, group in batch_contexts(contexts, index, batch_tokens):
        started = perf_counter()
        hidden = lm.activations(torch.from_numpy(ids).long())
        seconds = perf_counter() - started
        for row, context in enumerate(group):
            start, stop = contexts.starts[context : context + 2].tolist()
            parts.append(hidden[row, spec.skip : stop - start])
            tokens.append(contexts.ids[start + spec.skip : stop])
            documents.append(np.full(stop - start - spec.skip, contexts.documents[context]))
            positions.append(contexts.offsets[context] + np.arange(spec.skip, stop - start))
        tell(sum(len(part) for part in parts[-len(group) :]), seconds)
    about = [
        torch.from_numpy(np.concatenate(each).astype(np.int32)) for each in (tokens, documents, positions)
    ]
    return _select_rows(spec, index, torch.cat(parts), about)


def _select_rows(spec: Harvest, index: int, rows: Tensor, about: Sequence[Tensor]) -> HarvestBlock:
    """Return the rows and what is known about each, shuffled, without outliers."""
    norms = rows.norm(dim=1)
    if not bool(norms.isfinite().all()):
        raise ValueError(
            f"the model's activations in block {index} contain NaN or infinity: try another dtype."
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

    Each batch comes with the numbers of its contexts.
    """
    first, last = contexts.blocks[index : index + 2].tolist()
    starts = contexts.starts[first : last + 1].tolist()
    pieces = [contexts.ids[start:stop] for start, stop in pairwise(starts)]
    for group in group_contexts(pieces, batch_tokens):
        yield pad_contexts([pieces[i] for i in group]), first + np.array(group)


# --- activations to disk ----------------------------------------------------------------------------


def harvest(
    spec: Harvest,
    folder: Path,
    *,
    dtype: DType = "float16",
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
    lm: LanguageModel | None = None,
) -> tuple[Shards, float | None]:
    """Harvest into the folder, or resume there; return the shards and the share of time the model took.

    The share is None if the harvest was finished already. Give `lm`, the model of this very harvest, if you
    have it open.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: give one of {', '.join(DTYPES)}.")
    plan = {"schema": 1, "harvest": to_json(spec), "dtype": dtype}
    _check_folder(folder, plan)
    if (finished := _open_finished(folder)) is not None:
        clear_lock(folder)
        return finished, None
    with lock(folder):
        _check_folder(folder, plan)  # another process may have been at work until now
        return _harvest(spec, folder, plan, dtype, device, batch_tokens, progress, lm)


def _harvest(
    spec: Harvest,
    folder: Path,
    plan: dict[str, Any],
    dtype: DType,
    device: str,
    batch_tokens: int,
    progress: Progress | None,
    lm: LanguageModel | None,
) -> tuple[Shards, float | None]:
    started = (folder / CONTEXTS).exists()
    if not started:
        check_readable(spec.text)
    lm = lm or open_model(spec, device)
    if not started:
        _start(folder, plan, build_contexts(spec, lm, progress))
    contexts = read_contexts(folder / CONTEXTS)
    return _write_missing(spec, folder, lm, contexts, dtype, batch_tokens, progress)


def open_model(spec: Harvest, device: str = "auto") -> LanguageModel:
    """Open the model of a harvest at the place where its activations are taken."""
    return LanguageModel(
        spec.model, layer=spec.layer, module=spec.module, revision=spec.revision, device=device
    )


class _Pace:
    """Progress in tokens, and the time that the model takes; called after every batch."""

    def __init__(self, total: int, missing: int, progress: Progress | None):
        self.total, self.done, self.progress = total, total - missing, progress
        self.began, self.before, self.modelled = perf_counter(), self.done, 0.0

    def __call__(self, tokens: int, seconds: float) -> None:
        self.done, self.modelled = self.done + tokens, self.modelled + seconds
        if self.progress is not None:
            rate = (self.done - self.before) / (perf_counter() - self.began)
            self.progress(self.done, self.total, f"tokens, {rate:,.0f} a second")

    def share(self) -> float | None:
        """Return the share of the time so far that the model took, None if it was not needed."""
        return self.modelled / max(perf_counter() - self.began, 1e-9) if self.modelled else None


def _check_folder(folder: Path, plan: dict[str, Any]) -> None:
    """Raise `ValueError` if the folder contains another harvest, or anything else."""
    path = folder / PLAN
    if path.exists():
        check_regular(path)
        if path.read_bytes() != _format_plan(plan).encode():
            raise ValueError(f"{folder} holds another harvest (see {PLAN}): give a new folder.")
    elif folder.exists() and any(not is_part(file) and file.name != LOCK for file in folder.iterdir()):
        raise ValueError(f"{folder} holds other files: give a new folder.")


def _open_finished(folder: Path) -> Shards | None:
    """Return the shards of a finished harvest, whose manifest stays as it is; None if it is not finished."""
    with suppress(ValueError):
        shards = Shards(folder)
        lost = shards.covers(CONTEXTS) and not (folder / CONTEXTS).exists()
        return shards if shards.manifest.get("complete") and not lost else None
    return None


def _start(folder: Path, plan: dict[str, Any], contexts: Contexts) -> None:
    """Write the plan and the contexts into the folder, which from now on belongs to this harvest."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / PLAN) as path:
        path.write_text(_format_plan(plan))
    arrays = {name: np.ascontiguousarray(array) for name, array in contexts._asdict().items()}
    with atomic_write(folder / CONTEXTS) as path:
        save_arrays(arrays, path)


def _format_plan(plan: dict[str, Any]) -> str:
    return json.dumps(plan, indent=2) + "\n"


def read_contexts(path: Path) -> Contexts:
    """Return the contexts that a harvest wrote beside its shards."""
    try:
        return Contexts(**load_arrays(path))
    except (SafetensorError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run the same command again.") from error


def count_rows(spec: Harvest, contexts: Contexts, index: int | None = None) -> int:
    """Return the number of rows of a block, or of all blocks, before outliers are left out."""
    first, last = (0, -1) if index is None else (contexts.blocks[index], contexts.blocks[index + 1])
    count = len(contexts.documents) if index is None else last - first
    return int(contexts.starts[last] - contexts.starts[first] - spec.skip * count)


def _write_missing(
    spec: Harvest,
    folder: Path,
    lm: LanguageModel,
    contexts: Contexts,
    dtype: DType,
    batch_tokens: int,
    progress: Progress | None,
) -> tuple[Shards, float | None]:
    """Write the shards that are not there yet, and the manifest; if the disk is full, of those that are."""
    files = [folder / shard_file(index) for index in range(len(contexts.blocks) - 1)]
    missing = [index for index, file in enumerate(files) if not file.exists()]
    rows = sum(count_rows(spec, contexts, index) for index in missing)
    total = count_rows(spec, contexts)
    if missing:
        needs = _check_needs(spec, folder, total, rows, lm, dtype)
        if progress is not None:
            progress(total - rows, total, f"tokens; {needs}")
    pace = _Pace(total, rows, progress)
    blocks = ((files[i], make_block(spec, lm, contexts, i, batch_tokens, pace)) for i in missing)
    digests: dict[Path, str] = {}
    try:
        _write_blocks(blocks, dtype, digests)
    except OSError as error:
        written = [file for file in files if file.exists()]
        if written:
            _finish(folder, written, spec, lm, contexts, digests)
        raise OSError(
            f"{error}. {len(written)} of {len(files)} shards are written and can be used; "
            "run the same command again to resume."
        ) from error
    return _finish(folder, files, spec, lm, contexts, digests), pace.share()


def _check_needs(
    spec: Harvest, folder: Path, total: int, missing: int, lm: LanguageModel, dtype: DType
) -> Forecast:
    """Return what the missing rows need; raise `ValueError` if there is not as much, and say how many fit."""
    width, item = lm.activations(torch.zeros(1, 1).long()).shape[-1], DTYPES[dtype].itemsize
    needs = forecast_harvest(missing, width, block=spec.block, item=item)
    fits = total - missing + max(0, free_disk(folder) - MARGIN) * missing // max(1, needs.disk)
    remedy = f"harvest --tokens {fits}, or into a folder on another disk, or give a smaller --mix-rows."
    check(needs, remedy, folder)
    return needs


def _write_blocks(
    blocks: Iterable[tuple[Path, HarvestBlock]], dtype: DType, digests: dict[Path, str]
) -> None:
    """Write each block to its file, while the next one is made; note the digest of each file."""
    with ThreadPoolExecutor(1) as writer:
        last: Future | None = None
        for file, block in blocks:
            if last is not None:
                last.result()  # so that no more than one block waits
            last = writer.submit(_write_block, file, block, dtype, digests)
        if last is not None:
            last.result()


def _write_block(file: Path, block: HarvestBlock, dtype: DType, digests: dict[Path, str]) -> None:
    stored = block.activations.to(DTYPES[dtype])
    if not bool(stored.isfinite().all()):
        raise ValueError(
            f"activations exceed what {dtype} can hold: harvest with --dtype bfloat16 or float32."
        )
    tensors = {
        TENSOR: stored,
        "tokens": block.tokens,
        "documents": block.documents,
        "positions": block.positions,
    }
    _check_room(file, sum(tensor.nbytes for tensor in tensors.values()))
    with atomic_write(file) as path:
        save_file(tensors, path, {"osae": json.dumps(_describe(block, stored))})
        digest = file_sha256(path)  # now, while it is still in memory
    digests[file] = digest


def _check_room(file: Path, size: int) -> None:
    """Raise `OSError` if the disk has no room for that many bytes."""
    free = shutil.disk_usage(file.parent).free
    if free < size + MARGIN:
        needed, there = (size + MARGIN) / 1e6, free / 1e6
        raise OSError(
            f"no room for another shard in {file.parent}: {needed:.1f} MB needed, {there:.1f} MB free"
        )


def _describe(block: HarvestBlock, stored: Tensor) -> dict[str, Any]:
    """Return a block's counts and moments, which its shard carries along."""
    rows = stored.float()
    about = {
        "rows": len(rows),
        "outliers": block.outliers,
        "mean": rows.double().mean(0).tolist(),
        "square": float(rows.double().square().mean()),
        "norms": torch.quantile(block.norms.double(), torch.tensor(QUANTILES).double()).tolist(),
    }
    return about | ({"large": block.large} if block.large else {})


def _finish(
    folder: Path,
    files: list[Path],
    spec: Harvest,
    lm: LanguageModel,
    contexts: Contexts,
    digests: Mapping[Path, str],
) -> Shards:
    """Write the manifest of these shards, which combines what each of them says about itself."""
    abouts = [_read_about(file) for file in files]
    count = len(contexts.documents)
    text = {"contexts": count, "documents": len(np.unique(contexts.documents))}
    text["passed"] = int(contexts.passed[0])
    about = {
        "complete": len(files) == len(contexts.blocks) - 1,
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
        Shard(file, about["rows"], digests.get(file, "")) for file, about in zip(files, abouts, strict=True)
    ]
    return finish(folder, shards, about, [folder / CONTEXTS])


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
    """Return what a shard says about itself."""
    try:
        with safe_open(file, "pt") as shard:
            return json.loads(shard.metadata()["osae"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}): delete it and run the same command again.") from error
