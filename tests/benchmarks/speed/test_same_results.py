"""Training does not depend on the kernel: measures agree within their intervals over seeds."""

import pytest

from benchmarks.speed import same_results
from osae import kernels
from osae.data.worlds import SparseWorld
from osae.experiments.worlds.measuring import measure_rows
from osae.experiments.worlds.training import Group
from osae.recipes import Task, world_recipe
from osae.results import ExperimentResult, Interval, write_json
from osae.results.experiment import MethodRow
from osae.training.simple import fit

WORLD = SparseWorld(width=16, units=20, active=3, samples=4000)
TASK = Task(width=16, units=20, k=3, samples=60_000, batch=200)
SEEDS = (0, 1, 2)


def write(path, rows):
    write_json(ExperimentResult("toy", "Table 1", {}, SEEDS, rows), path)
    return str(path)


def train_with(backend):
    x = WORLD.draw().x
    with kernels.using(backend):
        groups = [
            Group(
                name,
                world_recipe(name, TASK),
                {seed: fit(world_recipe(name, TASK), x, seed=seed) for seed in SEEDS},
            )
            for name in ("topk", "osae")
        ]
    return measure_rows(groups, WORLD)


@pytest.mark.slow
def test_training_gives_the_same_with_reference_and_cpu_kernels(tmp_path):
    rows = {backend: train_with(backend) for backend in ("reference", "cpu")}
    paths = [write(tmp_path / f"{backend}.json", found) for backend, found in rows.items()]
    assert same_results.main(paths) == 0
    for reference, cpu in zip(*rows.values(), strict=True):
        assert reference.mean("mse") == pytest.approx(cpu.mean("mse"), rel=0.05)


def test_intervals_that_do_not_overlap_are_reported(tmp_path, capsys):
    def write_interval(name, low, high):
        measures = {"mse": Interval((low + high) / 2, 0.1, low, high), "seconds": 3.0}
        return write(tmp_path / name, (MethodRow("osae", measures=measures),))

    low, high = write_interval("low.json", 0.1, 0.2), write_interval("high.json", 0.3, 0.4)
    assert same_results.main([low, low]) == 0
    assert same_results.main([low, high]) == 1
    assert "0 of 1 measures agree" in capsys.readouterr().out


def test_results_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"other\.json"):
        same_results.main([str(path), str(path)])
