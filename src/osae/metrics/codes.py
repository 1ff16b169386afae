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


def check_batch(values: Tensor, x: Tensor, width: int) -> None:
    """Nothing; a `ValueError` if codes and data do not belong together, or not to a decoder this wide."""
    if len(values) != len(x):
        raise ValueError(f"{len(values)} codes for {len(x)} samples: give one code per sample.")
    if x.ndim != 2 or x.shape[1] != width:
        raise ValueError(f"x has shape {tuple(x.shape)}, the decoder width {width}.")
