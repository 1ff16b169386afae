"""Whatever numpy can hold numbers in arrives as the same numbers in torch."""

import numpy as np
import pytest
import torch

from osae.arrays import as_tensor

GRID = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "given",
    [
        GRID,
        GRID.astype(np.float32),
        GRID.astype(np.float16),
        GRID.astype(np.longdouble),
        GRID.astype(np.int8),
        GRID.astype(">f4"),
        np.asfortranarray(GRID),
        GRID[::-1][::-1],
        GRID[::-1].copy()[::-1],
        GRID.tolist(),
        torch.from_numpy(GRID).float(),
    ],
    ids=lambda given: f"{type(given).__name__}-{getattr(given, 'dtype', '')}",
)
def test_the_same_numbers_come_out(given):
    assert as_tensor(given).double().tolist() == GRID.tolist()


def test_memory_is_shared_where_it_can_be_and_read_only_memory_is_copied():
    own, fixed = GRID.copy(), GRID.copy()
    fixed.flags.writeable = False
    tensors = as_tensor(own), as_tensor(fixed)
    for tensor in tensors:
        tensor[0, 0] = 7
    assert (own[0, 0], fixed[0, 0]) == (7, 0)
    same = torch.zeros(2)
    assert as_tensor(same) is same


@pytest.mark.parametrize("given", [None, torch.nn.Linear(1, 1), np.ones(2, dtype=complex)])
def test_what_holds_no_real_numbers_is_refused(given):
    with pytest.raises(ValueError, match=r"b is .*: give a torch tensor or a numpy array"):
        as_tensor(given, "b")


def test_a_path_is_told_from_an_array():
    with pytest.raises(ValueError, match=r"b is a path, runs/mine: give what `osae\.load` returns"):
        as_tensor("runs/mine", "b")
