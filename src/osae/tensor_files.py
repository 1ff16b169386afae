"""Tensors of a .safetensors file, read without mapping the file into memory; see `osae.array_files`."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from osae.array_files import ArrayFile, open_arrays

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
    with open_arrays(path) as held:
        return {name: _read(held, name) for name in (held.entries if names is None else names)}


def _read(held: ArrayFile, name: str) -> Tensor:
    dtype, data = held.find_type(_TYPES, name), torch.empty(held.size(name), dtype=torch.uint8)
    held.read_into(data.numpy(), name)
    return data.view(dtype).view(held.entries[name]["shape"])
