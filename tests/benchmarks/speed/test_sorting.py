"""The benchmark of sorting by gain, at a size that takes no time."""

import json

import torch

from benchmarks.speed import sorting


def test_rows_are_mostly_explained():
    sae, rows = sorting.make_inputs(64, 128, 4, 50)
    error = (rows - sae(rows).reconstruction.detach()).square().sum()
    assert float(error / rows.square().sum()) < 0.5
    assert torch.equal(sae.encoder, sae.decoder)


def test_benchmark_writes_time_and_memory(tmp_path, capsys):
    small = ["--units", "64", "--width", "32", "--k", "4", "--rows", "100", "--threads", "1"]
    assert sorting.main([*small, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "sorting.json").read_text())
    assert (found["units"], found["rows"]) == (64, 100)
    assert found["cpu_seconds"] > 0
    assert 0 < found["peak_gb"] < 100
    assert "s of CPU time" in capsys.readouterr().out
