"""The benchmark of large comparisons measures what it says, at sizes that take no time."""

import json

import numpy as np
import pytest

import osae
from benchmarks.speed import comparing


def test_sixty_percent_of_the_atoms_are_near_those_of_the_first_sae(tmp_path):
    paths, data = comparing.make_inputs(tmp_path, units=100, width=256, k=4, rows=50)
    first, *others = (osae.load(path).decoder for path in paths)
    for other in others:
        best, place = (first @ other.T).max(0)
        assert int((best > 0.65).sum()) == 60
        assert int((place == comparing.torch.arange(100)).sum()) < 10
    assert np.load(data).shape == (50, 256)


def test_benchmark_runs_the_command_and_writes_what_it_took(tmp_path, capsys):
    words = ["--units", "64", "--width", "16", "--k", "4", "--rows", "200", "--threads", "1"]
    assert comparing.main([*words, "--out", str(tmp_path)]) == 0
    assert "s of CPU time" in capsys.readouterr().out
    found = json.loads((tmp_path / "comparing.json").read_text())
    assert (found["units"], found["rows"], found["threads"]) == (64, 200, 1)
    assert found["cpu_seconds"] > 0
    assert found["seconds"] > 0
    assert 0.05 < found["peak_gb"] < 3


def test_a_command_that_fails_has_no_numbers(tmp_path):
    with pytest.raises(comparing.subprocess.CalledProcessError):
        comparing.measure([tmp_path / "nothing"], threads=1)
