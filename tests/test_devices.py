"""Devices and threads."""

import threading
from contextlib import nullcontext

import pytest
import torch

from osae.devices import (
    SMALL_WORK,
    choose_device,
    choose_devices,
    map_in_threads,
    single_thread,
    spread_over,
    threads_for,
)


def test_a_device_that_cannot_be_used_is_refused_in_one_line():
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="device='toaster' cannot be used on this machine") as refused:
        choose_device("toaster")
    assert "\n" not in str(refused.value)


def test_several_devices_are_chosen_one_by_one():
    assert choose_devices("cpu") == "cpu"
    assert choose_devices("cpu,meta,cpu") == "cpu,meta,cpu"
    with pytest.raises(ValueError, match="device='toaster'"):
        choose_devices("cpu,toaster")


def test_saes_take_turns_among_devices():
    assert spread_over("cpu", 3) == ["cpu"] * 3
    assert spread_over("cuda:0,cuda:1", 5) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert spread_over("cuda:0,cuda:1,cuda:2", 2) == ["cuda:0", "cuda:1"]


def test_a_single_thread_is_used_inside_the_block_alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with single_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_large_products_use_all_threads_and_small_ones_a_single_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for block in (nullcontext(), single_thread()):
            with block:
                inside = torch.get_num_threads()
                with threads_for(SMALL_WORK):
                    assert torch.get_num_threads() == 3
                with threads_for(SMALL_WORK - 1), single_thread():
                    assert torch.get_num_threads() == 1
                assert torch.get_num_threads() == inside
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_work_in_threads_returns_what_work_in_turn_returns(threads):
    assert map_in_threads(lambda x: x * x, range(20), threads) == [x * x for x in range(20)]
    assert map_in_threads(str, [], threads) == []
    with pytest.raises(ZeroDivisionError, match="by zero"):
        map_in_threads(lambda x: 1 // x, [1, 0, 2], threads)


def test_work_in_threads_is_done_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    assert sorted(map_in_threads(lambda _: both.wait(), range(2), 2)) == [0, 1]


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_an_interruption_of_work_in_threads_is_raised_and_starts_no_more_calls(place):
    here, both, calls = threading.current_thread(), threading.Barrier(2, timeout=30), []

    def work(item: int) -> None:
        calls.append(item)
        if item < 2:
            both.wait()
        if (threading.current_thread() is here) == (place == "here"):
            raise KeyboardInterrupt
        left.wait(30)

    left = threading.Event()
    threading.Timer(0.2, left.set).start()
    with pytest.raises(KeyboardInterrupt):
        map_in_threads(work, range(50), 2)
    left.wait(30)
    assert sorted(calls) == [0, 1]
