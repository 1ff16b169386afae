"""Devices and threads."""

import pytest
import torch

from osae.devices import choose_device, single_thread


def test_a_device_that_cannot_be_used_is_refused_in_one_line():
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="device='toaster' cannot be used here") as refused:
        choose_device("toaster")
    assert "\n" not in str(refused.value)


def test_a_single_thread_is_used_inside_the_block_alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with single_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
