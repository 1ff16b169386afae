"""Arrays in memory: torch tensors and numpy arrays."""

import hashlib
from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


@runtime_checkable
class HasDecoder(Protocol):
    """An `SAE` or a loaded file: its decoder stands for it where atoms are compared."""

    @property
    def decoder(self) -> Tensor:
        """Return the atoms, one per row."""
        ...


IN_MEMORY = "in memory"  # where a result would name a path


def as_tensor(values: Any, name: str = "the argument") -> Tensor:
    """Return a tensor unchanged, and anything that numpy can convert to numbers as a tensor.

    The tensor shares the memory of a numpy array if torch supports it.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, str | PathLike):
        raise ValueError(
            f"{name} is a path, {values}: give what `osae.load` returns, or paths to `osae.compare`."
        )
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        kind = f"of type {type(values).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
        raise ValueError(f"{name} is {kind}: give a torch tensor or a numpy array of real numbers.")
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    native = np.dtype(np.float64) if wide else array.dtype.newbyteorder("=")
    shareable = array.flags.writeable and array.dtype == native and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shareable else np.array(array, dtype=native))


def as_decoder(values: Any, name: str = "the argument") -> Tensor:
    """Return the decoder of an SAE or of a loaded file, and anything else as a tensor."""
    return as_tensor(getattr(values, "decoder", values), name)


def as_matrix(values: Any, what: str) -> Tensor:
    """Return a matrix of finite floating-point numbers on the CPU; raise `ValueError` for anything else."""
    tensor = as_tensor(values, what).detach().cpu()
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(f"{what} of shape {tuple(tensor.shape)}: give a matrix that is not empty.")
    if not tensor.is_floating_point():
        raise ValueError(
            f"{what} of type {str(tensor.dtype).removeprefix('torch.')}: give floating-point numbers."
        )
    finite = tensor.isfinite().all(1)
    if not bool(finite.all()):
        first = int((~finite).int().argmax())
        raise ValueError(f"{what}: row {first} contains NaN or infinity: remove such rows.")
    return tensor


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of names, shapes, types and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        # as bytes, since numpy has no bfloat16
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
