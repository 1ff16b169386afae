"""The benchmark of steps while k is warmed up."""

import json

import pytest

from benchmarks.speed import warmup
from benchmarks.speed.pipe import Shape
from osae.schedule import KWarmup, active_units


def test_stages_are_those_of_the_schedule_and_their_mean_is_that_of_all_its_steps():
    stages, steps = warmup.choose_stages(Shape(2048, 576, 512, 24)), 1000
    at = active_units(KWarmup(share=1.0, start=120), 24, 512, steps)
    assert stages == [at(i * steps // 4) for i in range(5)]

    def cost(k):
        return 1.3 + 0.013 * k

    expected = sum(cost(at(step)) for step in range(steps)) / steps
    assert warmup.integrate([cost(k) for k in stages]) == pytest.approx(expected, rel=1e-3)


def test_benchmark_writes_every_stage_and_the_mean(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(warmup, "SHAPES", (Shape(64, 16, 32, 2),))
    assert warmup.main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "warmup.json").read_text())
    (case,) = found["cases"]
    assert [stage["k"] for stage in case["stages"]] == [10, 8, 6, 4, 2]
    assert f"{case['mean']:.2f} products on average" in capsys.readouterr().out
    assert "10" in warmup.format_markdown(found).splitlines()[2]
