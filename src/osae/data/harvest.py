"""Harvest: text to tokens to activations, in blocks that are functions of their number.

Documents are cut into contexts, the contexts are shuffled once, and each block takes the next few hundred of
them. So a block can be made at any time and comes out the same: a harvest that was killed goes on with the
first block that is missing, and a training can take its blocks straight from the model.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
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
from osae.data.lm import LanguageModel
from osae.data.shards import DTYPES, TENSOR, DType, Shard, Shards, finish, shard_file
from osae.data.text import Text, check_readable
from osae.files import atomic_write, is_part
from osae.seeds import generator
from osae.versions import versions

DOCUMENTS = 64  # tokenised at a time
MAX_NORM = 10.0
BATCH_TOKENS = 4096  # through the model at once
QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
PLAN = "harvest.json"
CONTEXTS = "contexts.safetensors"
MARGIN = 2**20  # bytes that stay free beside a shard, for the manifest
Progress = Callable[[int, int, str], None]


@variant
@dataclass(frozen=True)
class Harvest:
    """What activations to take: of which model, where in it, on what text."""

    model: str
    text: Text
    tokens: int
    layer: int | None = None
    module: str | None = None
    revision: str | None = None
    context: int = 128
    skip: int = 1  # first positions of a context that are left out
    bos: str = "auto"
    max_norm: float = MAX_NORM  # times the median norm of a block; rows above are left out, 0 keeps all
    block: int = 65_536  # rows made at a time, at most: a shard, or what a training without shards mixes
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
    """Contexts in the order they are used: the ids of all, and where each begins."""

    ids: Int[np.ndarray, "T"]
    starts: Int[np.ndarray, "n+1"]
    documents: Int[np.ndarray, "n"]  # the number of the document it is from
    offsets: Int[np.ndarray, "n"]  # its first token's place in the document
    blocks: Int[np.ndarray, "b+1"]  # the first context of each block
    passed: Int[np.ndarray, "1"] = np.array([0])  # documents without a text


class Block(NamedTuple):
    """Rows of activations, each with its token and where that stood; how many were left out; the norms."""

    activations: Float[Tensor, "N d"]
    tokens: Int[Tensor, "N"]
    documents: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    outliers: int
    norms: Float[Tensor, "N"]
    large: int  # kept rows that by default would have been left out


# --- text to contexts -------------------------------------------------------------------------------


def build_contexts(spec: Harvest, lm: LanguageModel, progress: Progress | None = None) -> Contexts:
    """The text's contexts up to `spec.tokens` rows, shuffled across documents."""
    bos = lm.bos(spec.bos)
    room = spec.context - (bos is not None)
    if room < 1:
        raise ValueError(f"context={spec.context} has no room beside the BOS token: give more.")
    if lm.longest is not None and spec.context > lm.longest:
        raise ValueError(f"context={spec.context}: {lm.name} reads at most {lm.longest} tokens.")
    pieces, documents, offsets, rows, passed = [], [], [], 0, np.array([0])

    def pass_over() -> None:
        passed[0] += 1

    for number, ids in _tokenised(spec.text.documents(pass_over), lm):
        for offset in range(0, len(ids), room):
            piece = ids[offset : offset + room]
            if bos is not None:
                piece = np.concatenate([np.array([bos], dtype=np.int32), piece])
            piece = piece[: spec.tokens - rows + spec.skip]
            if len(piece) <= spec.skip:
                continue  # too short to leave a row
            pieces.append(piece)
            documents.append(number)
            offsets.append(offset - (bos is not None))
            rows += len(piece) - spec.skip
        if progress is not None:
            progress(min(rows, spec.tokens), spec.tokens, "tokens read")
        if rows >= spec.tokens:
            break
    if not pieces:
        nulls = f"; documents without a text: {passed[0]}" if passed[0] else ""
        raise ValueError(
            f"the text (part: {spec.text.part}{nulls}) holds too few tokens for a row: give more of it."
        )
    order = torch.randperm(len(pieces), generator=generator(spec.seed, "contexts")).numpy()
    lengths = np.array([len(pieces[i]) for i in order])
    ids = np.concatenate([pieces[i] for i in order])
    if ids.max() >= lm.vocabulary:
        raise ValueError(
            f"the tokenizer gives the id {ids.max()}, and {lm.name} has {lm.vocabulary} of them."
        )
    starts = np.concatenate([[0], lengths.cumsum()])
    made = (lengths - spec.skip).cumsum()
    count = -(-int(made[-1]) // spec.block)  # equal blocks: none is a small rest
    ends = np.searchsorted(made, made[-1] * np.arange(1, count) // count) + 1
    blocks = np.unique(np.concatenate([[0], ends, [len(pieces)]]))
    return Contexts(ids, starts, np.array(documents)[order], np.array(offsets)[order], blocks, passed)


def _tokenised(documents: Iterator[str], lm: LanguageModel) -> Iterator[tuple[int, np.ndarray]]:
    """Each document's number and ids, without special tokens."""
    numbered = enumerate(documents)
    while some := list(islice(numbered, DOCUMENTS)):
        found = lm.tokenizer([words for _, words in some], add_special_tokens=False, verbose=False).input_ids
        for (number, _), ids in zip(some, found, strict=True):
            yield number, np.array(ids, dtype=np.int32)


# --- contexts to activations ------------------------------------------------------------------------


@torch.no_grad()
def make_block(
    spec: Harvest,
    lm: LanguageModel,
    contexts: Contexts,
    index: int,
    batch_tokens: int,
    tell: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> Block:
    """Block number `index`: its contexts' rows, shuffled."""
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
    rows = torch.cat(parts)
    norms = rows.norm(dim=1)
    if not bool(norms.isfinite().all()):
        raise ValueError(f"the model's activations in block {index} hold NaN or infinity: try another dtype.")
    kept = torch.randperm(len(rows), generator=generator(spec.seed, "rows", index))
    if spec.max_norm > 0:
        kept = kept[norms[kept] <= spec.max_norm * norms.median()]
    large = int((norms[kept] > MAX_NORM * norms.median()).sum())
    about = [
        torch.from_numpy(np.concatenate(each).astype(np.int32))[kept]
        for each in (tokens, documents, positions)
    ]
    return Block(rows[kept], *about, outliers=len(rows) - len(kept), norms=norms[kept], large=large)


def batch_contexts(
    contexts: Contexts, index: int, batch_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The contexts of a block side by side, those of like length together, at most `batch_tokens` in all.

    They are filled up on the right to the longest. Each batch comes with the numbers of its contexts.
    """
    chosen = np.arange(contexts.blocks[index], contexts.blocks[index + 1])
    lengths = contexts.starts[chosen + 1] - contexts.starts[chosen]
    order = np.argsort(lengths, kind="stable")
    chosen, lengths = chosen[order], lengths[order]
    start = 0
    while start < len(chosen):
        stop = start + 1
        while stop < len(chosen) and lengths[stop] * (stop + 1 - start) <= batch_tokens:
            stop += 1
        group = chosen[start:stop]
        ids = np.zeros((len(group), lengths[stop - 1]), dtype=np.int32)
        for row, context in enumerate(group):
            words = contexts.ids[contexts.starts[context] : contexts.starts[context + 1]]
            ids[row, : len(words)] = words
        yield ids, group
        start = stop


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
    """The shards in the folder, begun or gone on with; and the share of the time that the model took.

    The share is None if all was there. Give `lm`, the model of this very harvest, if it is open already.
    """
    plan = {"schema": 1, "harvest": to_json(spec), "dtype": dtype}
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: give one of {', '.join(DTYPES)}.")
    _refuse_others(folder, plan)
    if (whole := _whole(folder)) is not None:
        return whole, None
    if not (folder / CONTEXTS).exists():
        check_readable(spec.text)
    lm = lm or open_model(spec, device)
    if not (folder / CONTEXTS).exists():
        _begin(folder, plan, build_contexts(spec, lm, progress))
    contexts = Contexts(**load_arrays(folder / CONTEXTS))
    files = [folder / shard_file(index) for index in range(len(contexts.blocks) - 1)]
    missing = [index for index, file in enumerate(files) if not file.exists()]
    pace = _Pace(
        count_rows(spec, contexts), sum(count_rows(spec, contexts, index) for index in missing), progress
    )
    try:
        with ThreadPoolExecutor(1) as writer:
            last: Future | None = None
            for index in missing:
                block = make_block(spec, lm, contexts, index, batch_tokens, pace)
                if last is not None:
                    last.result()  # one block is written while the next is made, and no more wait
                last = writer.submit(_write, files[index], block, dtype)
            if last is not None:
                last.result()
    except OSError as error:
        whole = [file for file in files if file.exists()]
        if whole:
            _finish(folder, whole, spec, lm, contexts)
        raise OSError(
            f"{error}. {len(whole)} of {len(files)} shards are written and can be used; "
            "the same command goes on."
        ) from error
    return _finish(folder, files, spec, lm, contexts), pace.share()


def open_model(spec: Harvest, device: str = "auto") -> LanguageModel:
    """The model of a harvest, opened where its activations are taken."""
    return LanguageModel(
        spec.model, layer=spec.layer, module=spec.module, revision=spec.revision, device=device
    )


class _Pace:
    """Told of every batch: the tokens it had and the seconds the model took."""

    def __init__(self, total: int, missing: int, progress: Progress | None):
        self.total, self.done, self.progress = total, total - missing, progress
        self.began, self.before, self.modelled = perf_counter(), self.done, 0.0

    def __call__(self, tokens: int, seconds: float) -> None:
        self.done, self.modelled = self.done + tokens, self.modelled + seconds
        if self.progress is not None:
            rate = (self.done - self.before) / (perf_counter() - self.began)
            self.progress(self.done, self.total, f"tokens, {rate:,.0f} a second")

    def share(self) -> float | None:
        """Of the time since the beginning, the part that the model took, if it was needed."""
        return self.modelled / max(perf_counter() - self.began, 1e-9) if self.modelled else None


def _refuse_others(folder: Path, plan: dict[str, Any]) -> None:
    """Nothing; a `ValueError` if the folder holds another harvest, or anything else."""
    path = folder / PLAN
    if path.exists():
        if path.read_text() != _plain(plan):
            raise ValueError(f"{folder} holds another harvest (see {PLAN}): give a new folder.")
    elif folder.exists() and any(not is_part(file) for file in folder.iterdir()):
        raise ValueError(f"{folder} holds other files: give a new folder.")


def _whole(folder: Path) -> Shards | None:
    """The shards of a harvest that is done; its manifest stays as it is, digests included."""
    with suppress(ValueError):
        shards = Shards(folder)
        lost = shards.covers(CONTEXTS) and not (folder / CONTEXTS).exists()
        return shards if shards.manifest.get("complete") and not lost else None
    return None


def _begin(folder: Path, plan: dict[str, Any], contexts: Contexts) -> None:
    """The folder with the plan and its contexts: from now on it is this harvest's."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / PLAN) as path:
        path.write_text(_plain(plan))
    arrays = {name: np.ascontiguousarray(array) for name, array in contexts._asdict().items()}
    with _disk_errors(folder / CONTEXTS), atomic_write(folder / CONTEXTS) as path:
        save_arrays(arrays, path)


def _plain(plan: dict[str, Any]) -> str:
    return json.dumps(plan, indent=2) + "\n"


@contextmanager
def _disk_errors(file: Path) -> Iterator[None]:
    """Within, safetensors raises `OSError` as everything else that writes does."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error


def count_rows(spec: Harvest, contexts: Contexts, index: int | None = None) -> int:
    """The rows of a block, or of all, before outliers go."""
    first, last = (0, -1) if index is None else (contexts.blocks[index], contexts.blocks[index + 1])
    count = len(contexts.documents) if index is None else last - first
    return int(contexts.starts[last] - contexts.starts[first] - spec.skip * count)


def _write(file: Path, block: Block, dtype: DType) -> None:
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
    size = sum(tensor.nbytes for tensor in tensors.values())
    free = shutil.disk_usage(file.parent).free
    if free < size + MARGIN:
        needed, there = (size + MARGIN) / 1e6, free / 1e6
        raise OSError(
            f"no room for another shard in {file.parent}: {needed:.1f} MB needed, {there:.1f} MB free"
        )
    rows = stored.float()
    about = {
        "rows": len(rows),
        "outliers": block.outliers,
        "mean": rows.double().mean(0).tolist(),
        "square": float(rows.double().square().mean()),
        "norms": torch.quantile(block.norms.double(), torch.tensor(QUANTILES).double()).tolist(),
    }
    if block.large:
        about["large"] = block.large
    with _disk_errors(file), atomic_write(file) as path:
        save_file(tensors, path, {"osae": json.dumps(about)})


def _finish(folder: Path, files: list[Path], spec: Harvest, lm: LanguageModel, contexts: Contexts) -> Shards:
    """The manifest over these shards, with what they say of themselves put together."""
    abouts = [_about(file) for file in files]
    rows = [about["rows"] for about in abouts]
    share = np.array(rows) / sum(rows)
    mean, square = (share @ np.array([about[name] for about in abouts]) for name in ("mean", "square"))
    each = np.array([about["norms"] for about in abouts])
    norms = [each[:, 0].min(), *(share @ each[:, 1:-1]), each[:, -1].max()]  # the quantiles between: nearly
    variance = float(square - np.square(mean).mean())
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
        "scale": max(variance, 1e-24) ** -0.5,
        "norms": {f"{q:g}": norm for q, norm in zip(QUANTILES, norms, strict=True)},
        "mean": mean.tolist(),
        "versions": versions(),
    }
    shards = [Shard(file, n) for file, n in zip(files, rows, strict=True)]
    return finish(folder, shards, about, [folder / CONTEXTS])


def _about(file: Path) -> dict[str, Any]:
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["osae"])
