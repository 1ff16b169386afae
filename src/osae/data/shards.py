"""Activations on disk: a folder of shards with a manifest, or a single file of rows.

Shapes: N rows in all, n rows in a block, d width.

    manifest.json       {"schema": 1, "kind": "activations", "width": d, "rows": N, "dtype": "bfloat16",
                         "shards": [{"file": "00000.safetensors", "rows": n, "sha256": "..."}, ...],
                         "files": [{"file": "contexts.safetensors", "sha256": "..."}], ...}
    00000.safetensors   "activations" (n, d), and whatever else is known about each row, such as "tokens"

The manifest is written last, so a folder that has one is complete. Each shard is compared with its digest
when it is first read; after that, only the rows that are asked for are read from disk.
"""

import bisect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.files import atomic_write, check_regular, file_sha256, read_json, seal

SCHEMA = 1
KIND = "activations"
MANIFEST = "manifest.json"
TENSOR = "activations"
DType = Literal["float32", "float16", "bfloat16"]
DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
RowBlock = Array | Mapping[str, Array]


@dataclass(frozen=True)
class Shard:
    """A file of rows; `sha256` is empty if it is not recorded."""

    file: Path
    rows: int
    sha256: str = ""


class Shards:
    """Activations at a path, read lazily. `manifest` is that of the folder, empty for a single file."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not self.path.exists():
            raise ValueError(f"{path}: there is no such file or folder of activations.")
        self.manifest: dict[str, Any] = {}
        if self.path.is_dir():
            self.manifest = _read_manifest(self.path)
            self.shards = _list_shards(self.path, self.manifest)
            self.width, self.dtype = self.manifest["width"], self.manifest["dtype"]
        else:
            rows, self.width, self.dtype = _outline(self.path)
            self.shards = (Shard(self.path, rows),)
        self._ends = list(accumulate(shard.rows for shard in self.shards))
        self._checked: set[Path] = set()

    @property
    def rows(self) -> int:
        """Return the number of rows in all."""
        return self._ends[-1]

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Shards({str(self.path)!r}: {self.rows} rows of width {self.width}, {self.dtype})"

    def read(self, start: int, stop: int) -> Float[Tensor, "n d"]:
        """Return rows `start` to `stop` (excluded) in single precision."""
        if not 0 <= start < stop <= self.rows:
            raise ValueError(f"rows {start} to {stop} of {self.path}: there are {self.rows}, from 0.")
        parts = []
        place = bisect.bisect_right(self._ends, start)
        while start < stop:
            shard, end = self.shards[place], self._ends[place]
            first = end - shard.rows
            parts.append(self._rows_of(shard, start - first, min(stop, end) - first))
            start, place = end, place + 1
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def batches(self, size: int = 4096) -> Iterator[Float[Tensor, "n d"]]:
        """Yield all rows in order, `size` at a time; the last batch may be smaller."""
        if size < 1:
            raise ValueError(f"size={size}: give at least 1 row per batch.")
        for start in range(0, self.rows, size):
            yield self.read(start, min(start + size, self.rows))

    def columns(self, shard: Shard, names: Sequence[str]) -> list[Int[Tensor, "n"]]:
        """Return what a shard holds about each of its rows besides the activations, by name."""
        if shard.file.suffix != ".safetensors":
            raise ValueError(f"{shard.file} holds no {names[0]}: give a folder that `osae harvest` wrote.")
        with _open_file(shard.file) as file:
            held = file.keys()
            if missing := [name for name in names if name not in held]:
                raise ValueError(
                    f"{shard.file} holds no {missing[0]}: give a folder that `osae harvest` wrote."
                )
            found = [file.get_tensor(name) for name in names]
        if any(tuple(column.shape) != (shard.rows,) for column in found):
            raise ValueError(f"{shard.file} does not have one entry per row in {', '.join(names)}.")
        return found

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Raise `ValueError` if a file is not the one that the manifest was written for."""
        digests = [(shard.file, shard.sha256) for shard in self.shards] + self._beside()
        for done, (file, sha256) in enumerate(digests, 1):
            _check_digest(file, sha256)
            if progress is not None:
                progress(done, len(digests))

    def covers(self, name: str) -> bool:
        """Return whether the manifest has a checksum for the file of this name beside the shards."""
        return any(file.name == name and sha256 for file, sha256 in self._beside())

    def _beside(self) -> list[tuple[Path, str]]:
        """Return the files beside the shards, with digests; manifests of older releases list none."""
        listed = self.manifest.get("files", [])
        entries = listed if isinstance(listed, list) else []
        return [
            (self.path / Path(entry["file"]).name, str(entry.get("sha256") or ""))
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("file"), str)
        ]

    def provenance(self) -> dict[str, Any]:
        """Return which activations these are; the digest is that of the manifest, or of a single file."""
        digest = file_sha256(self.path / MANIFEST if self.manifest else self.path)
        about = {"path": str(self.path), "rows": self.rows, "width": self.width, "dtype": self.dtype}
        return about | {"sha256": digest}

    def _rows_of(self, shard: Shard, start: int, stop: int) -> Tensor:
        if shard.file not in self._checked:
            _check_digest(shard.file, shard.sha256)
            self._checked.add(shard.file)
        if shard.file.suffix == ".npy":
            # a copy of these rows alone: the file is mapped, and must not be written to
            rows = torch.from_numpy(np.array(_map_array(shard.file)[start:stop], dtype=np.float32))
        else:
            with _open_file(shard.file) as file:
                piece = file.get_slice(_name_in(file, shard.file))
                if tuple(piece.get_shape()) != (shard.rows, self.width):
                    raise ValueError(
                        f"{shard.file} holds {tuple(piece.get_shape())}, but {MANIFEST} says "
                        f"{(shard.rows, self.width)}: make it again."
                    )
                rows = piece[start:stop].to(torch.float32)
        finite = rows.isfinite().all(1)
        if not bool(finite.all()):
            first = start + int((~finite).int().argmax())
            raise ValueError(f"{shard.file}: row {first} contains NaN or infinity: remove such rows.")
        return rows


def write_shards(
    folder: Path | str,
    blocks: Iterable[RowBlock],
    *,
    dtype: DType = "float32",
    rows_per_shard: int = 65_536,
    about: Mapping[str, Any] | None = None,
) -> Shards:
    """Write the rows of all blocks as shards into the folder; `about` adds fields to the manifest.

    A block is a matrix of rows, or a dict of tensors with one entry per row, including "activations".
    """
    folder = Path(folder)
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: give one of {', '.join(DTYPES)}.")
    if rows_per_shard < 1:
        raise ValueError(f"rows_per_shard={rows_per_shard}: give at least 1.")
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder} already contains activations: give a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, tensors in enumerate(_regroup(blocks, rows_per_shard)):
        tensors[TENSOR] = tensors[TENSOR].to(DTYPES[dtype])
        file = folder / shard_file(number)
        with atomic_write(file) as path:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            digest = file_sha256(path)  # now, while it is still in memory
        shards.append(Shard(file, len(tensors[TENSOR]), digest))
    if not shards:
        raise ValueError(f"no rows for {folder}: give at least one.")
    return finish(folder, shards, about)


def shard_file(number: int) -> str:
    """Return the file name of shard `number`."""
    return f"{number:05d}.safetensors"


def finish(
    folder: Path,
    shards: Sequence[Shard],
    about: Mapping[str, Any] | None = None,
    files: Sequence[Path] = (),
) -> Shards:
    """Write the manifest of these shards and of files beside them, all written; return the activations.

    Only a shard without a digest, which an earlier process wrote, is read again.
    """
    _, width, dtype = _outline(shards[0].file)
    listed = [
        {"file": s.file.name, "rows": s.rows, "sha256": s.sha256 or file_sha256(s.file)} for s in shards
    ]
    counts = {"width": width, "rows": sum(shard.rows for shard in shards), "dtype": dtype}
    manifest = {**(about or {}), "schema": SCHEMA, "kind": KIND, **counts, "shards": listed}
    if files:
        manifest["files"] = [{"file": file.name, "sha256": file_sha256(file)} for file in files]
    with atomic_write(folder / MANIFEST) as path:
        path.write_text(json.dumps(seal(manifest), indent=2) + "\n", encoding="utf-8")
    return Shards(folder)


def is_shards(path: Path | str) -> bool:
    """Return whether the path has activations rather than an SAE: a manifest, or a tensor of that name."""
    path = Path(path)
    if path.is_dir():
        return (path / MANIFEST).is_file()
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    with _open_file(path) as file:
        return TENSOR in file.keys()  # noqa: SIM118


def _regroup(blocks: Iterable[RowBlock], rows: int) -> Iterator[dict[str, Tensor]]:
    """Yield the same rows in groups of `rows`; the last group may be smaller."""
    waiting: dict[str, Tensor] = {}
    for block in blocks:
        tensors = _check_block(block, waiting)
        waiting = {
            name: torch.cat([waiting[name], tensor]) if waiting else tensor
            for name, tensor in tensors.items()
        }
        while len(waiting[TENSOR]) >= rows:
            # a copy, so that the rest does not keep the memory of the whole
            yield {name: tensor[:rows].clone() for name, tensor in waiting.items()}
            waiting = {name: tensor[rows:] for name, tensor in waiting.items()}
    if waiting and len(waiting[TENSOR]):
        yield {name: tensor.clone() for name, tensor in waiting.items()}


def _check_block(block: RowBlock, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the block as tensors on the CPU; raise `ValueError` if it does not fit the blocks before it."""
    given = block if isinstance(block, Mapping) else {TENSOR: block}
    tensors = {name: as_tensor(each, repr(name)).detach().cpu() for name, each in given.items()}
    if TENSOR not in tensors or tensors[TENSOR].ndim != 2 or not tensors[TENSOR].is_floating_point():
        shape = tuple(tensors[TENSOR].shape) if TENSOR in tensors else "nothing"
        raise ValueError(f"a block holds {shape} as {TENSOR!r}: give a matrix (rows, width) of floats.")
    rows, width = tensors[TENSOR].shape
    if uneven := [name for name, tensor in tensors.items() if len(tensor) != rows]:
        raise ValueError(
            f"{uneven[0]!r} has {len(tensors[uneven[0]])} entries for {rows} rows: give one each."
        )
    if before and tensors.keys() != before.keys():
        raise ValueError(
            f"a block holds {', '.join(tensors)}, and one before it {', '.join(before)}: give all the same."
        )
    if before and width != before[TENSOR].shape[1]:
        raise ValueError(
            f"a block has width {width}, and one before it {before[TENSOR].shape[1]}: give all the same."
        )
    return tensors


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder of shards, each field checked."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {MANIFEST}: it contains no activations, or writing them was interrupted."
        )
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise ValueError(f"{path} is not a manifest of activations: its kind is not {KIND!r}.")
    if manifest.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {manifest.get('schema')!r}: this release reads {SCHEMA}.")
    for name in ("width", "rows"):
        if not _is_count(manifest.get(name)):
            raise ValueError(f"{path} has {name} {manifest.get(name)!r}: a whole number from 1 is needed.")
    if manifest.get("dtype") not in DTYPES:
        raise ValueError(f"{path} has dtype {manifest.get('dtype')!r}: {', '.join(DTYPES)} are read.")
    return manifest


def _list_shards(folder: Path, manifest: dict[str, Any]) -> tuple[Shard, ...]:
    """Return the shards that the manifest lists; raise `ValueError` if one is missing."""
    entries = manifest.get("shards")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{folder / MANIFEST} lists no shards: make them again.")
    shards = []
    for entry in entries:
        given = entry if isinstance(entry, dict) else {}
        name, rows = given.get("file"), given.get("rows", 0)
        if not isinstance(name, str) or Path(name).name != name or not _is_count(rows):
            raise ValueError(
                f"{folder / MANIFEST} lists the shard {str(entry)[:80]}: file name and rows are needed."
            )
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing, although {MANIFEST} lists it: copy it too.")
        shards.append(Shard(folder / name, rows, str(given.get("sha256") or "")))
    if (total := sum(shard.rows for shard in shards)) != manifest["rows"]:
        raise ValueError(
            f"{folder / MANIFEST} says {manifest['rows']} rows, but its shards hold {total}: make it again."
        )
    return tuple(shards)


def _check_digest(file: Path, sha256: str) -> None:
    """Raise `ValueError` if the file has another digest than the one recorded, if there is one."""
    if sha256 and (not file.is_file() or file_sha256(file) != sha256):
        raise ValueError(f"{file} is not the file that {MANIFEST} was written for: copy or make it again.")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # exactly: True is not a number here


def _outline(path: Path) -> tuple[int, int, str]:
    """Return rows, width and type of a single file of rows."""
    check_regular(path)
    if path.suffix == ".npy":
        array = _map_array(path)
        shape, dtype = array.shape, str(array.dtype)
        if array.dtype.kind != "f":
            raise ValueError(f"{path} holds {dtype}: activations are floating-point numbers.")
    elif path.suffix == ".safetensors":
        with _open_file(path) as file:
            piece = file.get_slice(_name_in(file, path))
            shape = tuple(piece.get_shape())
            dtype = str(piece[:0].dtype).removeprefix("torch.") if shape else "a single number"
        if dtype not in (*DTYPES, "float64"):
            raise ValueError(f"{path} holds {dtype}: activations are floating-point numbers.")
    else:
        raise ValueError(f"{path}: give a folder with {MANIFEST}, or a .npy or .safetensors file of rows.")
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{path} has the shape {tuple(shape)}: give a matrix (rows, width).")
    return *shape, dtype


def _map_array(path: Path) -> np.ndarray:
    """Return a .npy file as an array that is read from disk when it is used."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _name_in(file: Any, path: Path) -> str:
    """Return the name of the tensor of activations: the usual one, or the only one there is."""
    names = list(file.keys())
    if TENSOR in names:
        return TENSOR
    if len(names) != 1:
        there = ", ".join(sorted(names)[:8]) or "nothing"
        raise ValueError(f"{path} has no tensor {TENSOR!r}: it holds {there}.")
    return names[0]
