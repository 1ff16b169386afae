"""Damaged runs: each is refused in one line that names the file; only the log is cut and continued."""

import json
import os

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


@pytest.fixture
def stopped(tmp_path):
    def stop(done, *_):
        if done == 4:
            raise InterruptedError

    run.create(tmp_path, run.RunConfig((RECIPE,), (0,), WORLD, checkpoint_seconds=0))
    with pytest.raises(InterruptedError):
        run.go(tmp_path, progress=stop)
    return tmp_path


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": 1}', '{"schema": 1, "config": []}', '{"schema": 7}', "[" * 100_000]
)
def test_a_damaged_description_is_refused(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json cannot be read") as refused:
        run.read(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("old", "new"), [('"seeds"', '"snapshots"'), ('"k": 2', '"k": 3')])
def test_a_description_that_was_changed_is_refused(old, new, finished):
    text = (finished / "run.json").read_text()
    assert old in text
    (finished / "run.json").write_text(text.replace(old, new))
    with pytest.raises(
        ValueError, match=r"run\.json cannot be read: its content does not match its osae_checksum"
    ):
        run.read(finished)


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "checkpoint.safetensors"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name, finished):
    (finished / name).unlink()
    os.mkfifo(finished / name)
    with pytest.raises(ValueError, match=f"{name}.* is not a regular file"):
        run.go(finished)


def test_a_recipe_in_place_of_a_run_is_refused(tmp_path):
    run.create(tmp_path, run.RunConfig((RECIPE,), (0,), WORLD))
    about = json.loads((tmp_path / "run.json").read_text())
    other = {"schema": 1, "config": about["config"]["recipes"][0]}
    (tmp_path / "run.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="it does not contain a RunConfig"):
        run.read(tmp_path)


def flipped(data):
    """The bytes with one bit of the last tensor changed."""
    return data[:-3] + bytes([data[-3] ^ 16]) + data[-2:]


DAMAGE = [lambda data: b"", lambda data: data[:300], lambda data: b"x" * 500, flipped]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(damage, stopped):
    """The run is interrupted after its fourth step, with a checkpoint after each."""
    file, told = stopped / "checkpoint.safetensors", []
    file.write_bytes(damage(file.read_bytes()))
    run.go(stopped, tell=told.append)
    (sentence,) = told
    assert sentence.startswith(str(file))
    assert sentence.endswith("resumed from the previous checkpoint, at step 3.")
    (stopped / "checkpoint.safetensors").unlink()
    (stopped / "checkpoint-before.safetensors").unlink()
    resumed = load_file(stopped / "osae-seed0" / "sae.safetensors")
    log = (stopped / "log.jsonl").read_text()
    run.go(stopped)  # from the beginning
    again = load_file(stopped / "osae-seed0" / "sae.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in resumed.items())
    assert (stopped / "log.jsonl").read_text() == log


def test_two_damaged_checkpoints_are_refused_with_a_remedy(stopped):
    for name in ("checkpoint.safetensors", "checkpoint-before.safetensors"):
        (stopped / name).write_bytes(flipped((stopped / name).read_bytes()))
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors does not fit .* checksum.*: delete it"):
        run.go(stopped)


def test_a_run_killed_between_its_two_checkpoints_leaves_nothing_behind(stopped):
    """Both names stand for the same file then."""
    (stopped / "checkpoint-before.safetensors").unlink()
    os.link(stopped / "checkpoint.safetensors", stopped / "checkpoint-before.safetensors")
    run.go(stopped)
    assert not list(stopped.glob(".*"))


def test_a_run_killed_while_its_checkpoint_is_renamed_resumes_from_the_one_before(stopped):
    (stopped / "checkpoint.safetensors").unlink()
    run.go(stopped)
    assert (stopped / "osae-seed0" / "sae.safetensors").exists()


@pytest.mark.parametrize("damage", DAMAGE)
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
