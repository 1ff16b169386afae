"""Arrays of a .safetensors file, read without mapping the file into memory. Does not need torch.

The operating system kills a process that reads past the end of a mapped file, for example after the file was
truncated. An array that is read here is a copy, which later changes to the file do not affect.
"""

import json
import struct
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from osae.files import check_regular

LENGTH = struct.Struct("<Q")  # length of the header
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"}
_TYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class ArrayFile:
    """An open .safetensors file, and the type, shape and offsets of each of its arrays by name."""

    path: Path
    file: BufferedReader
    start: int  # of the data
    entries: Mapping[str, Mapping[str, Any]]

    def size(self, name: str) -> int:
        """Return the bytes of an array."""
        first, last = self.entries[name]["data_offsets"]
        return last - first

    def read_into(self, data: np.ndarray, name: str) -> None:
        """Fill `data` with the first bytes of an array; raise `ValueError` if the file was truncated."""
        self.file.seek(self.start + self.entries[name]["data_offsets"][0])
        if self.file.readinto(data.data) != data.nbytes:
            raise ValueError(
                f"{self.path} was truncated while it was read: restore it, and run the command again."
            )

    def find_type(self, types: Mapping[str, Any], name: str) -> Any:
        """Return the type of an array in another library; raise `ValueError` if there is none."""
        stored = self.entries[name]["dtype"]
        if stored not in types:
            raise ValueError(f"{self.path} contains {stored}, which cannot be read: save it in another type.")
        return types[stored]


def open_header(path: Path) -> Any:
    """Open a file, which is mapped, to read only its header; raise `ValueError` if it could block forever."""
    from safetensors import safe_open

    check_regular(path)
    return safe_open(path, "np")


@contextmanager
def open_arrays(path: Path) -> Iterator[ArrayFile]:
    """Open a file; raise `SafetensorError` if the offsets and shapes in its header do not fill it exactly."""
    with open_header(path):
        pass
    with open(path, "rb") as file:
        start, entries = read_header(file)
        entries.pop("__metadata__", None)
        yield ArrayFile(path, file, start, entries)


def read_header(file: BufferedReader) -> tuple[int, dict[str, Any]]:
    """Return where the data starts, and the header: metadata, and the place of each array by name."""
    (length,) = LENGTH.unpack(file.read(LENGTH.size))
    return LENGTH.size + length, json.loads(file.read(length))


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return all arrays of the file by name, or those named; raise `KeyError` if one is missing."""
    with open_arrays(path) as held:
        wanted = held.entries if names is None else names
        return {
            name: _read(held, name, held.size(name)).reshape(held.entries[name]["shape"]) for name in wanted
        }


def read_first(path: Path, name: str, count: int) -> np.ndarray:
    """Return the first `count` numbers of an array; raise `KeyError` if it is missing."""
    with open_arrays(path) as held:
        size = np.dtype(held.find_type(_TYPES, name)).itemsize
        return _read(held, name, min(held.size(name), count * size))


def _read(held: ArrayFile, name: str, size: int) -> np.ndarray:
    data = np.empty(size, np.uint8)
    held.read_into(data, name)
    return data.view(held.find_type(_TYPES, name))


LONGEST_REASON = 200  # characters of what numpy says, which may quote the whole header


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return an array's shape, whether its numbers are in Fortran's order, and their type.

    Raise `ValueError` if the header is damaged: parsing it as Python code may fail in many ways.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"it has .npy version {version}: only 1.0 and 2.0 are supported.")
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 has written
            shape, by_column, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise ValueError(str(error).splitlines()[0][:LONGEST_REASON]) from error
    except (SyntaxError, TokenError, LookupError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("its header is damaged: copy or create it again.") from error
    if any(type(size) is not int or size < 0 for size in shape):  # exact type, so that True is not a number
        raise ValueError(f"it declares shape {shape}: it is damaged.")
    return shape, by_column, dtype


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of the file, and none of its arrays."""
    with open_header(path) as file:
        return file.metadata() or {}


def list_arrays(path: Path) -> list[str]:
    """Return the names of all arrays of the file."""
    with open_header(path) as file:
        return list(file.keys())
