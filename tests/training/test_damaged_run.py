"""Damaged runs: each is refused in one line that names the file; only the log is cut and continued."""

import json

import pytest
import torch
from safetensors.torch import load_file

from osae.config import alter
from osae.data.worlds import SparseWorld
from osae.dictionary import Aligned
from osae.recipes import Task, world_recipe
from osae.training import run

WORLD = SparseWorld(width=12, units=16, active=2, samples=400)
RECIPE = world_recipe("osae", Task(width=12, units=16, k=2, samples=800, batch=100))


@pytest.fixture
def finished(tmp_path):
    run.create(tmp_path, run.RunConfig((RECIPE,), (0,), WORLD))
    run.go(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": 1}', '{"schema": 1, "config": []}', '{"schema": 7}', "[" * 100_000]
)
def test_a_damaged_description_is_refused(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json cannot be read") as refused:
        run.read(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_recipe_in_place_of_a_run_is_refused(tmp_path):
    run.create(tmp_path, run.RunConfig((RECIPE,), (0,), WORLD))
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(about | {"config": about["config"]["recipes"][0]}))
    with pytest.raises(ValueError, match="it holds no RunConfig"):
        run.read(tmp_path)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:300], lambda data: b"x" * 500])
def test_a_damaged_checkpoint_is_refused_with_a_remedy(damage, finished):
    file = finished / "checkpoint.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"does not fit this run .*: delete it to start") as refused:
        run.go(finished)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("changes", [{"dictionary": Aligned()}, {"sae.units": 20}, {"name": "other"}])
def test_the_checkpoint_of_another_run_is_refused(changes, finished, tmp_path):
    other = tmp_path / "other"
    run.create(other, run.RunConfig((alter(RECIPE, changes),), (0,), WORLD))
    (other / "checkpoint.safetensors").write_bytes((finished / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match="does not fit this run"):
        run.go(other)


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "osae-seed0"}', '{"step": "three"}', "\udcff"])
def test_the_log_is_cut_before_a_damaged_line(line, finished):
    log, whole = finished / "log.jsonl", load_file(finished / "osae-seed0" / "sae.safetensors")
    lines = log.read_text().splitlines()
    log.write_bytes("\n".join([*lines[:3], line, *lines[3:]]).encode(errors="surrogateescape"))
    run.go(finished)
    assert log.read_text().splitlines() == lines[:3]
    again = load_file(finished / "osae-seed0" / "sae.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
