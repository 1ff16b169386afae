"""The benchmark of steps while k is warmed up."""

import json
from contextlib import AbstractContextManager

import pytest

from benchmarks.speed import ours, warmup
from benchmarks.speed.pipe import Shape
from benchmarks.speed.worker import CLOCKS, Bench
from osae.schedule import KWarmup, active_units


def test_stages_are_those_of_the_schedule_and_their_mean_is_that_of_all_its_steps():
    stages, steps = warmup.choose_stages(Shape(2048, 576, 512, 24)), 1000
    at = active_units(KWarmup(share=1.0, start=120), 24, 512, steps)
    assert stages == [at(i * steps // 4) for i in range(5)]

    def cost(k):
        return 1.3 + 0.013 * k

    expected = sum(cost(at(step)) for step in range(steps)) / steps
    assert warmup.integrate([cost(k) for k in stages]) == pytest.approx(expected, rel=1e-3)


class Here(AbstractContextManager):
    """A worker without a process of its own: test_run.py tests those."""

    def __init__(self, python: str, module: str, name: str, shape: Shape, threads: int, clock: str):
        assert module == ours.__name__
        self.bench = Bench(ours.ENTRIES[name], shape, CLOCKS[clock])

    def ask(self, what: str) -> dict[str, float]:
        return self.bench.answer(what)

    def __exit__(self, *_: object) -> None:
        pass


def test_benchmark_writes_every_stage_and_the_mean(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(warmup, "SHAPES", (Shape(64, 16, 32, 2),))
    monkeypatch.setattr(warmup, "Worker", Here)
    assert warmup.main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "warmup.json").read_text())
    (case,) = found["cases"]
    assert [stage["k"] for stage in case["stages"]] == [10, 8, 6, 4, 2]
    assert f"{case['mean']:.2f} products on average" in capsys.readouterr().out
    assert "10" in warmup.format_markdown(found).splitlines()[2]
