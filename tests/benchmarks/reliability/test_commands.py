"""Forked processes of the benchmarks say how they ended."""

import os
import signal

import pytest

from benchmarks.reliability.commands import run_apart

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_what_the_action_returns_in_a_process_of_its_own_is_returned():
    process = os.getpid()
    assert run_apart(lambda: f"{os.getpid() != process}") == "True"


def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
        run_apart(lambda: str(1 / 0))


def test_a_process_that_is_killed_says_by_what_and_how_much_memory_was_free():
    def end(number: int) -> str:
        os.kill(os.getpid(), number)
        return "not reached"

    with pytest.raises(RuntimeError, match=r"was ended by SIGKILL, with \d+ bytes of memory free"):
        run_apart(lambda: end(signal.SIGKILL))
    with pytest.raises(RuntimeError, match="was ended by SIGTERM;"):
        run_apart(lambda: end(signal.SIGTERM))
