"""Activations on disk or on an object store: a folder of shards with a manifest, or a single file of rows.

Shapes: N rows in all, n rows in a block, d width.

    manifest.json       {"schema": 1, "kind": "activations", "width": d, "rows": N, "dtype": "bfloat16",
                         "shards": [{"file": "00000.safetensors", "rows": n, "sha256": "..."}, ...],
                         "files": [{"file": "contexts.safetensors", "sha256": "..."}], ...}
    00000.safetensors   "activations" (n, d), and any other data about each row, such as "tokens"

The manifest is written last, so a folder that has one is complete. Each shard is checked against its digest
when it is first read, and again if it has changed; otherwise only the requested rows are read from disk.

From an object store, each shard is downloaded when it is first read, checked against its digest, and kept.
Shards that do not fit in the cache (see `osae.stores`) stay on the store: their rows are read from there by
their position in the file, and the digest is not checked.
"""

import bisect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.data.row_files import ChangedError, RowFile, StoredRows, open_npy, open_safetensors, open_stored
from osae.defaults import DType
from osae.files import atomic_write, check_regular, file_sha256, read_json, seal
from osae.stores import Place, Store, find_copy, free_cache, is_remote, new_folder
from osae.tensor_files import read_tensors

SCHEMA = 1
KIND = "activations"
MANIFEST = "manifest.json"
TENSOR = "activations"
DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
READERS = 16  # concurrent requests to a store
RowBlock = Array | Mapping[str, Array]


@dataclass(frozen=True)
class Shard:
    """A file of rows; `sha256` is empty if it is not recorded."""

    file: Path
    rows: int
    sha256: str = ""


class Shards:
    """Activations at a path or URL, read lazily. `manifest` is that of the folder, empty for a single file.

    `folder` is the local folder of its files, once they are downloaded.
    """

    def __init__(self, path: Place):
        self.path: Place = path if is_remote(path) else Path(path)
        self._store = Store(str(path)) if is_remote(path) else None
        self.folder = Path(path) if self._store is None else find_copy(self._store.url, "data")
        self.manifest: dict[str, Any] = {}
        with self._naming():
            self._sizes = self._bring_outline()
            if not self.folder.exists():
                raise ValueError(f"{path}: there is no such file or folder of activations.")
            if self.folder.is_dir():
                self.manifest = _read_manifest(self.folder)
                self.shards = _list_shards(self.folder, self.manifest, self._sizes)
                self.width, self.dtype = self.manifest["width"], self.manifest["dtype"]
            else:
                rows, self.width, self.dtype = _outline(self.folder)
                self.shards = (Shard(self.folder, rows),)
        self._ends = list(accumulate(shard.rows for shard in self.shards))
        self._opened: dict[Path, RowFile | StoredRows] = {}

    def _bring_outline(self) -> dict[str, int] | None:
        """Download the manifest or a single file; return the sizes of remote files, None for local ones."""
        if self._store is None:
            return None
        sizes = self._store.list()
        if MANIFEST in sizes:
            before = (self.folder / MANIFEST).read_bytes() if (self.folder / MANIFEST).is_file() else b""
            self._store.get(MANIFEST, self.folder / MANIFEST)
            if before and before != (self.folder / MANIFEST).read_bytes():  # the copies are of different data
                for file in self.folder.iterdir():
                    if file.name != MANIFEST and file.is_file():
                        file.unlink()
        elif self._store.is_file(""):
            self._store.get("", self.folder)
        else:
            raise ValueError(
                f"{self.path} has no {MANIFEST}: it contains no activations, or writing them was interrupted."
            )
        return sizes

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Make errors name a file on a store by its URL rather than by its local copy."""
        try:
            yield
        except ValueError as error:
            if self._store is None or str(self.folder) not in str(error):
                raise
            raise ValueError(str(error).replace(str(self.folder), self._store.url)) from error

    def bring(self, file: Path) -> Path:
        """Return the local path of a file, downloading it first if necessary."""
        if self._store is not None and self._sizes and file.name in self._sizes and not self._has_copy(file):
            self._store.get(file.name, file)
        return file

    def _has_copy(self, file: Path) -> bool:
        return file.is_file() and self._sizes is not None and file.stat().st_size == self._sizes[file.name]

    @property
    def rows(self) -> int:
        """Return the total number of rows."""
        return self._ends[-1]

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Shards({str(self.path)!r}: {self.rows} rows of width {self.width}, {self.dtype})"

    def read(self, start: int, stop: int) -> Float[Tensor, "n d"]:
        """Return rows `start` to `stop` (excluded) in single precision."""
        if not 0 <= start < stop <= self.rows:
            raise ValueError(f"rows {start} to {stop} of {self.path}: give rows from 0 to {self.rows}.")
        parts = []
        place = bisect.bisect_right(self._ends, start)
        while start < stop:
            shard, end = self.shards[place], self._ends[place]
            first = end - shard.rows
            parts.append(self._rows_of(shard, start - first, min(stop, end) - first))
            start, place = end, place + 1
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Float[Tensor, "n d"]]:
        """Yield the rows of these ranges; from a store, several ranges are read at a time."""
        if self._store is None:
            yield from (self.read(start, stop) for start, stop in ranges)
            return
        for shard in self.shards:  # downloaded one at a time
            if shard.file not in self._opened:
                with self._naming():
                    self._opened[shard.file] = self._open(shard)
        with ThreadPoolExecutor(READERS) as readers:
            for start in range(0, len(ranges), 4 * READERS):
                yield from readers.map(lambda part: self.read(*part), ranges[start : start + 4 * READERS])

    def batches(self, size: int = 4096) -> Iterator[Float[Tensor, "n d"]]:
        """Yield all rows in order, `size` at a time; the last batch may be smaller."""
        if size < 1:
            raise ValueError(f"size={size}: give at least 1 row per batch.")
        for start in range(0, self.rows, size):
            yield self.read(start, min(start + size, self.rows))

    def columns(self, shard: Shard, names: Sequence[str]) -> list[Int[Tensor, "n"]]:
        """Return the columns of a shard with these names: data about each row besides the activations."""
        if shard.file.suffix != ".safetensors":
            raise ValueError(f"{shard.file} contains no {names[0]}: give a folder written by `osae harvest`.")
        with self._naming(), _open_file(self.bring(shard.file)) as file:
            held = file.keys()
            if missing := [name for name in names if name not in held]:
                raise ValueError(
                    f"{shard.file} contains no {missing[0]}: give a folder written by `osae harvest`."
                )
            found = list(read_tensors(shard.file, names).values())
        if any(tuple(column.shape) != (shard.rows,) for column in found):
            raise ValueError(f"{shard.file} does not have one entry per row in {', '.join(names)}.")
        return found

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Raise `ValueError` if a file does not match its digest in the manifest."""
        digests = [(shard.file, shard.sha256) for shard in self.shards] + self._beside()
        for done, (file, sha256) in enumerate(digests, 1):
            with self._naming():
                self._check(file, sha256)
            if progress is not None:
                progress(done, len(digests))

    def covers(self, name: str) -> bool:
        """Return whether the manifest has a checksum for the file with this name next to the shards."""
        return any(file.name == name and sha256 for file, sha256 in self._beside())

    def _beside(self) -> list[tuple[Path, str]]:
        """Return the files next to the shards, with digests; manifests of older releases list none."""
        listed = self.manifest.get("files", [])
        entries = listed if isinstance(listed, list) else []
        return [
            (self.folder / Path(entry["file"]).name, str(entry.get("sha256") or ""))
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("file"), str)
        ]

    def provenance(self) -> dict[str, Any]:
        """Return what identifies these activations; the digest is that of the manifest or a single file."""
        digest = file_sha256(self.folder / MANIFEST if self.manifest else self.folder)
        about = {"path": str(self.path), "rows": self.rows, "width": self.width, "dtype": self.dtype}
        return about | {"sha256": digest}

    def _rows_of(self, shard: Shard, start: int, stop: int) -> Tensor:
        with self._naming():
            rows = self._read(shard, start, stop)
            finite = rows.isfinite().all(1)
            if not bool(finite.all()):
                first = start + int((~finite).int().argmax())
                raise ValueError(f"{shard.file}: row {first} contains NaN or infinity: remove such rows.")
        return rows

    def _read(self, shard: Shard, start: int, stop: int) -> Tensor:
        """Return rows of a shard, which is checked when first read and whenever it has changed."""
        if shard.file not in self._opened:
            self._opened[shard.file] = self._open(shard)
        try:
            return self._opened[shard.file].read(start, stop)
        except ChangedError:
            if not shard.sha256:
                raise
            del self._opened[shard.file]  # the file may have been copied again
        self._opened[shard.file] = self._open(shard)
        return self._opened[shard.file].read(start, stop)

    def _check(self, file: Path, sha256: str) -> None:
        """Raise `ValueError` if a file does not match its digest; download it if necessary."""
        stored = self._store is not None and self.bring(file) and sha256
        if stored and file_sha256(file) != sha256:  # the copy may be older than the file on the store
            file.unlink()
            self.bring(file)
        _check_digest(file, sha256)

    def _fits(self, shard: Shard) -> bool:
        """Return whether a shard is stored locally, or fits in the cache."""
        if self._sizes is None or self._has_copy(shard.file):
            return True
        return self._sizes[shard.file.name] <= free_cache()

    def _open(self, shard: Shard) -> RowFile | StoredRows:
        """Return the location of a shard's rows; raise `ValueError` if it does not match the manifest."""
        if self._store is not None and self.manifest and not self._fits(shard):
            return open_stored(self._store, shard.file.name, TENSOR, (shard.rows, self.width))
        self._check(shard.file, shard.sha256)
        if shard.file.suffix == ".npy":
            return open_npy(shard.file)
        with _open_file(shard.file) as file:
            name = _name_in(file, shard.file)
            shape = tuple(file.get_slice(name).get_shape())
        if shape != (shard.rows, self.width):
            raise ValueError(
                f"{shard.file} contains {shape}, but {MANIFEST} says {(shard.rows, self.width)}: create "
                "it again."
            )
        return open_safetensors(shard.file, name)


def check_dtype(dtype: str) -> None:
    """Raise `ValueError` unless activations can be stored as this type."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: give one of {', '.join(DTYPES)}.")


def write_shards(
    folder: Place,
    blocks: Iterable[RowBlock],
    *,
    dtype: DType = "float32",
    rows_per_shard: int = 65_536,
    about: Mapping[str, Any] | None = None,
) -> Shards:
    """Write the rows of all blocks as shards to the folder; `about` adds fields to the manifest.

    A block is a matrix of rows, or a dict of tensors with one entry per row, including "activations". If the
    folder is a URL on an object store, shards are written locally first, and uploaded when all are complete.
    """
    if is_remote(folder):
        with new_folder(folder) as here:
            write_shards(here, blocks, dtype=dtype, rows_per_shard=rows_per_shard, about=about)
        return Shards(folder)
    folder = Path(folder)
    check_dtype(dtype)
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
            digest = file_sha256(path)  # now, while the file is still in memory
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
    """Write the manifest of these finished shards and other files; return the activations.

    Only a shard without a digest, written by an earlier process, is read again.
    """
    _, width, dtype = _outline(shards[0].file)
    write_manifest(folder, shards, width, dtype, about, files)
    return Shards(folder)


def write_manifest(
    folder: Path,
    shards: Sequence[Shard],
    width: int,
    dtype: str,
    about: Mapping[str, Any] | None = None,
    files: Sequence[Path] = (),
) -> None:
    """Write the manifest of these shards, which need not be in the folder if they have digests."""
    listed = [
        {"file": s.file.name, "rows": s.rows, "sha256": s.sha256 or file_sha256(s.file)} for s in shards
    ]
    counts = {"width": width, "rows": sum(shard.rows for shard in shards), "dtype": dtype}
    manifest = {**(about or {}), "schema": SCHEMA, "kind": KIND, **counts, "shards": listed}
    if files:
        manifest["files"] = [{"file": file.name, "sha256": file_sha256(file)} for file in files]
    with atomic_write(folder / MANIFEST) as path:
        path.write_text(json.dumps(seal(manifest), indent=2) + "\n", encoding="utf-8")


def is_shards(path: Place) -> bool:
    """Return whether the path has activations rather than an SAE: a manifest, or a tensor of that name."""
    if is_remote(path):
        return not str(path).startswith("hf:") and Store(str(path)).is_file(MANIFEST)
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
    """Return the block as tensors on the CPU; raise `ValueError` if it does not match earlier blocks."""
    given = block if isinstance(block, Mapping) else {TENSOR: block}
    tensors = {name: as_tensor(each, repr(name)).detach().cpu() for name, each in given.items()}
    if TENSOR not in tensors or tensors[TENSOR].ndim != 2 or not tensors[TENSOR].is_floating_point():
        shape = tuple(tensors[TENSOR].shape) if TENSOR in tensors else "nothing"
        raise ValueError(f"a block contains {shape} as {TENSOR!r}: give a matrix (rows, width) of floats.")
    rows, width = tensors[TENSOR].shape
    if uneven := [name for name, tensor in tensors.items() if len(tensor) != rows]:
        raise ValueError(
            f"{uneven[0]!r} has {len(tensors[uneven[0]])} entries for {rows} rows: give one per row."
        )
    if before and tensors.keys() != before.keys():
        raise ValueError(
            f"a block contains {', '.join(tensors)}, and one before it {', '.join(before)}: give all the "
            "same."
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
            raise ValueError(
                f"{path} has {name} {manifest.get(name)!r}: a positive whole number is required."
            )
    if manifest.get("dtype") not in DTYPES:
        raise ValueError(f"{path} has dtype {manifest.get('dtype')!r}: {', '.join(DTYPES)} are read.")
    return manifest


def _list_shards(
    folder: Path, manifest: dict[str, Any], stored: Mapping[str, int] | None = None
) -> tuple[Shard, ...]:
    """Return the shards listed in the manifest; raise `ValueError` if one is missing."""
    entries = manifest.get("shards")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{folder / MANIFEST} lists no shards: create them again.")
    shards = []
    for entry in entries:
        given = entry if isinstance(entry, dict) else {}
        name, rows = given.get("file"), given.get("rows", 0)
        if not isinstance(name, str) or Path(name).name != name or not _is_count(rows):
            raise ValueError(
                f"{folder / MANIFEST} lists the shard {str(entry)[:80]}: a file name and a number of rows "
                "are required."
            )
        if not (folder / name).is_file() if stored is None else name not in stored:
            raise ValueError(f"{folder / name} is missing, although {MANIFEST} lists it: copy it too.")
        shards.append(Shard(folder / name, rows, str(given.get("sha256") or "")))
    if (total := sum(shard.rows for shard in shards)) != manifest["rows"]:
        raise ValueError(
            f"{folder / MANIFEST} says {manifest['rows']} rows, but its shards contain {total}: create "
            "it again."
        )
    return tuple(shards)


def _check_digest(file: Path, sha256: str) -> None:
    """Raise `ValueError` if the file does not match its recorded digest, if there is one."""
    if sha256 and (not file.is_file() or file_sha256(file) != sha256):
        raise ValueError(f"{file} is not the file that {MANIFEST} was written for: copy or create it again.")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # exact type, so that True is not a number


def _outline(path: Path) -> tuple[int, int, str]:
    """Return rows, width and type of a single file of rows."""
    check_regular(path)
    if path.suffix == ".npy":
        found = open_npy(path)
        return found.rows, found.width, str(found.dtype)
    if path.suffix == ".safetensors":
        with _open_file(path) as file:
            piece = file.get_slice(_name_in(file, path))
            shape = tuple(piece.get_shape())
            dtype = str(piece[:0].dtype).removeprefix("torch.") if shape else "a single number"
        if dtype not in (*DTYPES, "float64"):
            raise ValueError(f"{path} contains {dtype}: activations must be floating-point numbers.")
    else:
        raise ValueError(f"{path}: give a folder with {MANIFEST}, or a .npy or .safetensors file of rows.")
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{path} has shape {tuple(shape)}: give a matrix (rows, width).")
    return *shape, dtype


def _open_file(path: Path) -> Any:
    """Return an open file for its names and shapes only; `read_tensors` reads tensors, without a map."""
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _name_in(file: Any, path: Path) -> str:
    """Return the name of the tensor of activations: the usual name, or that of the only tensor."""
    names = list(file.keys())
    if TENSOR in names:
        return TENSOR
    if len(names) != 1:
        there = ", ".join(sorted(names)[:8]) or "nothing"
        raise ValueError(f"{path} has no tensor {TENSOR!r}: it contains {there}.")
    return names[0]
