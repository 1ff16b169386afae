"""Sparse codes on their way into compiled loops."""

import numpy as np
from torch import Tensor


def code_arrays(values: Tensor, units: Tensor, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The code as arrays in double precision, after the check of bounds that compiled loops do not make."""
    if values.ndim != 2 or values.shape != units.shape:
        raise ValueError(
            f"values of shape {tuple(values.shape)}, units of shape {tuple(units.shape)}: "
            "give two matrices of the same shape, one row per sample."
        )
    if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < total:
        raise ValueError(f"units from {int(units.min())} to {int(units.max())}: there are {total}, from 0.")
    return values.detach().cpu().double().numpy(), units.detach().cpu().long().numpy()
