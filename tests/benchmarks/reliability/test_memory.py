"""The benchmark of memory counts what exists at the same time, and leaves out an open language model."""

import os
import subprocess
import sys
from itertools import count

import numpy as np
import pytest

from benchmarks.reliability import memory
from benchmarks.reliability.commands import run_apart
from osae import speed
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


def test_speed_is_measured_in_cpu_time_whatever_was_measured_before(monkeypatch):
    def command(words: list[str]) -> int:
        print(speed.measure_rate(), file=sys.stderr)
        return 0

    monkeypatch.setattr(memory, "osae", command)
    monkeypatch.setattr(memory, "_map_libraries", lambda: None)
    speed.time_product.cache_clear()
    with monkeypatch.context() as slow:
        slow.setattr(speed, "CLOCK", count(0, 1000).__next__)
        before = speed.measure_rate()
    said = run_apart(lambda: memory._run(memory.Case("any", [])))
    speed.time_product.cache_clear()
    assert float(said.splitlines()[1]) > 1000 * before


WORKER = "import time; held = b'x' * {}; time.sleep(0.5)"


@pytest.mark.parametrize(("inside", "afterwards", "most"), [(200, 350, 350), (300, 150, 350)])
def test_workers_count_beside_what_their_parent_uses_at_that_time(inside, afterwards, most, monkeypatch):
    """Not beside its own peak, which may come after they have ended."""

    def command(words: list[str]) -> int:
        memory.forecasting.say("needs about 1 bytes, 1 s")
        held = hold(50 * MB)
        subprocess.run([sys.executable, "-c", WORKER.format(inside * MB)], check=True)
        held = hold((afterwards - 50) * MB), held
        return int(held[0][0] == 0)

    monkeypatch.setattr(memory, "osae", command)
    found = memory.measure(memory.Case("any", [], works_apart=True))
    assert found.measured / MB == pytest.approx(most, abs=50)
