"""The benchmark of memory counts what exists at the same time, and leaves out an open language model."""

import os

import numpy as np
import pytest

from benchmarks.reliability import memory
from benchmarks.reliability.commands import run_apart
from osae.data.lm import LanguageModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(
        not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not report peak memory"
    ),
]
MB = 10**6
KEPT = []


def hold(size: int) -> np.ndarray:
    """Memory of this size in bytes that is in use."""
    return np.ones(size, np.uint8)


@pytest.mark.parametrize(("before", "after", "most"), [(300, 150, 300), (150, 300, 300), (0, 150, 150)])
def test_a_peak_before_a_model_is_open_counts_and_the_model_does_not(before, after, most, monkeypatch):
    def command(words: list[str]) -> int:
        held = hold(before * MB)
        del held
        LanguageModel("any")
        held = hold(after * MB)
        return int(held[0] == 0)

    monkeypatch.setattr(memory, "osae", command)
    monkeypatch.setattr(memory, "_map_libraries", lambda: None)
    monkeypatch.setattr(LanguageModel, "__init__", lambda self, name: KEPT.append(hold(200 * MB)))
    numbers = run_apart(lambda: memory._run(memory.Case("any", []))).split()
    assert numbers[0] == "0"
    assert float(numbers[1]) / MB == pytest.approx(most, abs=20)


def test_workers_count_beside_what_their_parent_uses_at_that_time(monkeypatch):
    """Not beside its own peak, which comes after they have ended."""

    def command(words: list[str]) -> int:
        memory.forecasting.say("needs about 1 bytes, 1 s")
        if (worker := os.fork()) == 0:
            held = hold(200 * MB)
            for _ in range(100):
                held += 1
            os._exit(0)
        os.waitpid(worker, 0)
        held = hold(300 * MB)
        return int(held[0] == 0)

    monkeypatch.setattr(memory, "osae", command)
    monkeypatch.setattr(memory, "_map_libraries", lambda: None)
    found = memory.measure(memory.Case("any", [], works_apart=True))
    assert found.measured / MB == pytest.approx(300, abs=40)
