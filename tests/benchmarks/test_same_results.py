"""Training does not depend on the kernel: measures agree within their intervals over seeds."""

import json

import pytest

from benchmarks import same_results
from osae import kernels
from osae.data.worlds import SparseWorld
from osae.experiments.measure import Truth, row
from osae.recipes import Task, world_recipe
from osae.training.simple import fit

WORLD = SparseWorld(width=16, units=20, active=3, samples=4000)
TASK = Task(width=16, units=20, k=3, samples=60_000, batch=200)
SEEDS = range(3)


def results(backend, rows, truth):
    with kernels.using(backend):
        trained = {
            name: {seed: fit(world_recipe(name, TASK), rows, seed=seed) for seed in SEEDS}
            for name in ("topk", "osae")
        }
    return {"rows": [{"method": name, **row(saes, truth)} for name, saes in trained.items()]}


def test_training_gives_the_same_with_reference_and_cpu_kernels(tmp_path):
    rows, truth = WORLD.draw().x, Truth(WORLD.dictionary(), WORLD.draw("test", 2000))
    paths = []
    for backend in ("reference", "cpu"):
        paths.append(tmp_path / f"{backend}.json")
        paths[-1].write_text(json.dumps(results(backend, rows, truth)))
    assert same_results.main([str(path) for path in paths]) == 0
    first, second = (json.loads(path.read_text()) for path in paths)
    errors = [one for one in same_results.compared(first, second) if one.measure == "mse"]
    assert len(errors) == 2
    for one in errors:
        assert one.a["mean"] == pytest.approx(one.b["mean"], rel=0.05)


def test_intervals_that_do_not_meet_are_told(tmp_path, capsys):
    def write(name, low, high):
        numbers = {"mean": (low + high) / 2, "std": 0.1, "low": low, "high": high}
        path = tmp_path / name
        path.write_text(json.dumps({"rows": [{"method": "osae", "mse": numbers, "seconds": 3.0}]}))
        return str(path)

    low, high = write("low.json", 0.1, 0.2), write("high.json", 0.3, 0.4)
    assert same_results.main([low, low]) == 0
    assert same_results.main([low, high]) == 1
    assert "0 of 1 measures agree" in capsys.readouterr().out
