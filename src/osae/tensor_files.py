"""Tensors of a .safetensors file, read without mapping the file into memory.

The operating system kills a process that reads past the end of a mapped file, for example after the file was
truncated. A tensor that is read here is a copy, which later changes to the file do not affect.
"""

import json
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

LENGTH = struct.Struct("<Q")  # length of the header
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_tensors(path: Path, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return all tensors of the file by name, or those named; raise `KeyError` if one is missing."""
    with safe_open(path, "pt"):  # rejects a header whose offsets and shapes do not fill the file exactly
        pass
    with open(path, "rb") as file:
        start, entries = read_header(file)
        wanted = entries if names is None else names
        return {name: _read(file, path, start, entries[name]) for name in wanted}


def read_header(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Return where the data starts, and the type, shape and offsets of each tensor by name."""
    (length,) = LENGTH.unpack(file.read(LENGTH.size))
    entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return LENGTH.size + length, entries


def _read(file: BinaryIO, path: Path, start: int, entry: dict[str, Any]) -> Tensor:
    if entry["dtype"] not in _TYPES:
        raise ValueError(f"{path} contains {entry['dtype']}, which cannot be read: save it in another type.")
    first, last = entry["data_offsets"]
    data = torch.empty(last - first, dtype=torch.uint8)
    file.seek(start + first)
    if file.readinto(data.numpy()) != last - first:
        raise ValueError(f"{path} was truncated while it was read: restore it, and run the command again.")
    return data.view(_TYPES[entry["dtype"]]).view(entry["shape"])
