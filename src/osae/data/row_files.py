"""Rows of a matrix in a .npy or .safetensors file, read without mapping the file into memory.

The operating system kills a process that reads past the end of a mapped file, for example after the file was
truncated. Here, a read returns what the file contained when it was first opened, or raises an error that
names the file.
"""

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from osae.array_files import LENGTH, read_header, read_npy_header
from osae.stores import Store

LARGEST_HEADER = 2**26  # maximum bytes of a header to read from a store
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class ChangedError(ValueError):
    """Raised when a file has changed since it was first opened."""


@dataclass(frozen=True)
class RowFile:
    """The location of the rows of a matrix in a file, and the identity of the file.

    `by_column` says whether the matrix is stored column by column.
    """

    path: Path
    rows: int
    width: int
    offset: int
    dtype: np.dtype | torch.dtype
    identity: tuple[int, ...]
    by_column: bool = False

    def read(self, start: int, stop: int) -> Float[Tensor, "n d"]:
        """Return these rows in single precision; raise `ChangedError` if the file has changed."""
        data = bytearray((stop - start) * self.width * self.dtype.itemsize)
        pieces, first, step = (self.width, start, self.rows) if self.by_column else (1, start * self.width, 0)
        with open(self.path, "rb") as file, memoryview(data) as left:
            self._check(file)
            length = len(data) // pieces
            for n in range(pieces):
                file.seek(self.offset + (first + n * step) * self.dtype.itemsize)
                if file.readinto(left[n * length : (n + 1) * length]) != length:
                    raise ChangedError(
                        f"{self.path} has been truncated: restore it, and run the command again."
                    )
            self._check(file)
        rows = _decode(data, self.dtype)
        return rows.view(self.width, -1).T.contiguous() if self.by_column else rows.view(-1, self.width)

    def _check(self, file: BinaryIO) -> None:
        if _identify(file) != self.identity:
            raise ChangedError(
                f"{self.path} has changed since it was opened: restore it, and run the command again."
            )


@dataclass(frozen=True)
class StoredRows:
    """The location of the rows of a matrix in a .safetensors file on an object store."""

    store: Store
    name: str
    width: int
    offset: int
    dtype: torch.dtype

    def read(self, start: int, stop: int) -> Float[Tensor, "n d"]:
        """Return these rows in single precision."""
        size = self.width * self.dtype.itemsize
        data = self.store.read(self.name, self.offset + start * size, self.offset + stop * size)
        if len(data) != (stop - start) * size:
            raise ValueError(
                f"{self.store.join(self.name)} has been truncated: restore it, and run the command again."
            )
        return _decode(bytearray(data), self.dtype).view(-1, self.width)


def _decode(data: bytearray, dtype: np.dtype | torch.dtype) -> Tensor:
    """Return the numbers in single precision."""
    if isinstance(dtype, torch.dtype):
        return torch.frombuffer(data, dtype=dtype).to(torch.float32)
    with np.errstate(over="ignore"):  # numbers that are too large become infinite, and are detected later
        return torch.from_numpy(np.frombuffer(data, dtype=dtype).astype(np.float32))


def open_npy(path: Path) -> RowFile:
    """Return the location of the rows in a .npy file; raise `ValueError` if it is not a matrix of numbers."""
    with open(path, "rb") as file:
        try:
            shape, by_column, dtype = read_npy_header(file)
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        start, identity = file.tell(), _identify(file)
    if dtype.kind != "f":
        raise ValueError(f"{path} contains {dtype}: activations must be floating-point numbers.")
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{path} has shape {shape}: give a matrix (rows, width).")
    needed, found = shape[0] * shape[1] * dtype.itemsize, path.stat().st_size - start
    if found < needed:
        raise ValueError(
            f"{path} declares shape {shape}, which takes {needed} bytes, but contains {found}: copy or "
            "create it again."
        )
    return RowFile(path, shape[0], shape[1], start, dtype, identity, by_column)


def open_safetensors(path: Path, name: str) -> RowFile:
    """Return the location of the rows of a tensor in a .safetensors file with a valid header."""
    with open(path, "rb") as file:
        data, entries = read_header(file)
        entry = entries[name]
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{path} contains {entry['dtype']}: activations must be floating-point numbers.")
        offset, (rows, width) = data + entry["data_offsets"][0], entry["shape"]
        return RowFile(path, rows, width, offset, _TYPES[entry["dtype"]], _identify(file))


def open_stored(store: Store, file: str, tensor: str, shape: tuple[int, int]) -> StoredRows:
    """Return the location of the rows of a tensor of this shape in a .safetensors file on an object store."""
    url = store.join(file)
    try:
        (length,) = LENGTH.unpack(store.read(file, 0, LENGTH.size))
        if length > LARGEST_HEADER:
            raise ValueError(f"its header has {length} bytes")
        entry = json.loads(store.read(file, LENGTH.size, LENGTH.size + length))[tensor]
        dtype, (first, last) = _TYPES[entry["dtype"]], entry["data_offsets"]
        complete = store.size(file) >= LENGTH.size + length + last
        if (
            tuple(entry["shape"]) != shape
            or last - first != shape[0] * shape[1] * dtype.itemsize
            or not complete
        ):
            raise ValueError(f"it does not contain {shape}")
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{url} cannot be read ({error}): copy or create it again.") from error
    return StoredRows(store, file, shape[1], LENGTH.size + length + first, dtype)


def _identify(file: BinaryIO) -> tuple[int, ...]:
    about = os.fstat(file.fileno())
    return about.st_ino, about.st_size, about.st_mtime_ns
