"""Sparse codes, checked and turned into the arrays that compiled loops read."""

import numpy as np
from torch import Tensor

from osae.arrays import Array, as_tensor


def to_arrays(values: Array, units: Array, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the code as numpy arrays, the values in double precision.

    Raise `ValueError` if a unit is not below `total`: compiled loops do not check bounds.
    """
    values, units = as_tensor(values, "values"), as_tensor(units, "units")
    if values.ndim != 2 or values.shape != units.shape:
        raise ValueError(
            f"values of shape {tuple(values.shape)}, units of shape {tuple(units.shape)}: "
            "give two matrices of the same shape, one row per sample."
        )
    if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < total:
        raise ValueError(
            f"units from {int(units.min())} to {int(units.max())}: there are only {total}, numbered from 0."
        )
    # contiguous, because loops are recompiled for every other layout
    values, units = values.detach().cpu().double(), units.detach().cpu().long()
    return values.contiguous().numpy(), units.contiguous().numpy()


def check_batch(values: Array, x: Tensor, width: int) -> None:
    """Raise `ValueError` if codes, data and a decoder of this width do not fit together."""
    if len(values) != len(x):
        raise ValueError(f"{len(values)} codes for {len(x)} samples: give one code per sample.")
    if x.ndim != 2 or x.shape[1] != width:
        raise ValueError(f"x has shape {tuple(x.shape)}, the decoder width {width}.")
