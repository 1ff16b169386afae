"""Numbers in memory, as people have them: torch tensors and numpy arrays."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


def as_tensor(values: Any, name: str = "the argument") -> Tensor:
    """Return a tensor as it is, and anything that numpy can make numbers of as a tensor.

    The memory of a numpy array is shared where torch is able to.
    """
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        kind = f"of type {type(values).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
        raise ValueError(f"{name} is {kind}: give a torch tensor or a numpy array of real numbers.")
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    native = np.dtype(np.float64) if wide else array.dtype.newbyteorder("=")
    shareable = array.flags.writeable and array.dtype == native and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shareable else np.array(array, dtype=native))
