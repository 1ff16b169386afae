"""Checkpoints are copied to the host's memory and written while training continues."""

import json
import threading
import time

import pytest
import torch

from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.model import SAE
from osae.recipes import Task, recipe, world_recipe
from osae.training import checkpoint, run
from osae.training.loop import Batches, train
from osae.training.member import Member
from tests.simulated import on_device

WORLD = SparseWorld(width=12, units=16, active=2, samples=400)
TASK = Task(width=12, units=16, k=2, samples=4000, batch=100)


@pytest.fixture
def folder(tmp_path):
    run.create(tmp_path, run.RunConfig((world_recipe("osae", TASK),), (0,), WORLD, checkpoint_seconds=1e-9))
    return tmp_path


@pytest.fixture
def slow_disk(monkeypatch):
    """Writing waits until the event is set; the list has the steps of the checkpoints that began."""
    go, begun, real = threading.Event(), [], checkpoint.write

    def write(folder, captured):
        begun.append(captured.about["done"])
        assert go.wait(30)
        real(folder, captured)

    monkeypatch.setattr(checkpoint, "write", write)
    return go, begun


def test_training_goes_on_while_a_checkpoint_is_written(folder, slow_disk):
    go, begun = slow_disk
    steps = []

    def progress(done, *_):
        steps.append((done, go.is_set()))
        if done == 30:
            go.set()

    run.go(folder, progress=progress)
    assert begun[0] == 1  # and no other began before it was written
    assert len(begun) == 1 or begun[1] > 30
    assert [done for done, free in steps if not free] == list(range(1, 31))
    member = Member(world_recipe("osae", TASK), 0, WORLD.draw("train").x)
    assert checkpoint.restore(folder, [member], pytest.fail) == 40


def test_what_is_written_is_the_state_of_its_step_and_no_later_one(folder, slow_disk):
    rows = WORLD.draw("train").x
    member = Member(world_recipe("osae", TASK), 0, rows)
    kept = {}

    def after(done, _):
        if done == 5:
            kept.update({name: tensor.clone() for name, tensor in member.state().items()})
            writer.save([member], done)

    with checkpoint.CheckpointWriter(folder) as writer:
        train([member], MemoryRows(rows), after=[after])
        slow_disk[0].set()
    again = Member(world_recipe("osae", TASK), 0, rows)
    assert checkpoint.restore(folder, [again], pytest.fail) == 5
    assert all(torch.equal(tensor, again.state()[name]) for name, tensor in kept.items())


def test_a_disk_that_fails_in_the_background_stops_the_run(folder, monkeypatch):
    def write(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(OSError, match="No space left"):
        run.go(folder)
    assert not (folder / "osae-seed0").exists()


def test_an_error_elsewhere_leaves_the_checkpoint_that_is_being_written_whole(folder, slow_disk):
    go, _ = slow_disk

    def progress(done, *_):
        if done == 3:
            threading.Timer(0.2, go.set).start()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run.go(folder, progress=progress)
    assert (folder / "checkpoint.safetensors").exists()


def test_large_checkpoints_are_written_less_often(folder, monkeypatch):
    real = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: (time.sleep(0.05), real(*args)))
    members = [Member(world_recipe("topk", TASK), 0, WORLD.draw("train").x)]
    with checkpoint.CheckpointWriter(folder) as writer:
        assert writer.pause == 0
        writer.save(members, 1)
        assert writer.is_busy()
        writer.wait()
        assert 0.1 <= writer.pause < 5
        assert not writer.is_busy()


@pytest.mark.parametrize(("pause", "steps"), [(1e9, [40]), (0.0, range(1, 41))])
def test_a_run_waits_as_long_as_its_checkpoints_ask_for(pause, steps, folder, monkeypatch):
    """Although it was asked for one after every step."""
    begun, real = [], checkpoint.CheckpointWriter.save
    asked = property(lambda writer: pause, lambda writer, pause: None)
    monkeypatch.setattr(checkpoint.CheckpointWriter, "pause", asked, raising=False)
    monkeypatch.setattr(checkpoint.CheckpointWriter, "is_busy", lambda writer: False)
    monkeypatch.setattr(
        checkpoint.CheckpointWriter, "save", lambda *args: (begun.append(args[-1]), real(*args))
    )
    run.go(folder)
    assert begun == list(steps)


def test_the_state_is_not_copied_on_the_device():
    rows = WORLD.draw("train").x
    with on_device() as calls:
        member = Member(recipe("topk", TASK), 0, rows, device="mps")
        train([member], MemoryRows(rows), done=39)
        calls.clear()
        captured = checkpoint.capture([member], 40)
        finished = member.finish()
    copies = [args[0].shape for name, args, _ in calls if name in ("clone", "contiguous", "div", "copy_")]
    assert not copies
    assert len(captured.tensors) > 10
    assert isinstance(finished, SAE)
    assert all(tensor.device.type == "cpu" for tensor in captured.tensors.values())


def test_the_log_has_what_people_look_for(tmp_path):
    config = run.RunConfig(
        (world_recipe("osae", TASK), world_recipe("vanilla", TASK)), (0,), WORLD, log_every=7
    )
    run.create(tmp_path, config)
    seen = []
    members = run.go(tmp_path, logs=[seen.append])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[::2]] == [7, 14, 21, 28, 35, 40]
    assert [line["lr"] for line in lines[::2]] == pytest.approx([0.01] * 3 + [0.0065, 0.003, 0.0005])
    assert lines[0]["k"] == 7  # on its way from 10 to 2 within 14 steps
    assert "k" not in lines[1]
    assert lines[-2]["k"] == 2
    speeds = [json.loads(line) for line in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert all(0 < line["memory_gb"] < 100 for line in speeds)
    assert all(line["samples_per_second"] > 0 for line in speeds[1:])
    assert seen[-1] == lines[-1] | {key: value for key, value in speeds[-1].items() if key != "step"}
    # the last batch, with the weights at the end
    rows = WORLD.draw("train").x
    for member, line in zip(members, lines[-2:], strict=True):
        x = Batches(MemoryRows(rows), 0, TASK.batch).at(39)
        sae = member.finish()
        k = 2 if member.recipe.name == "osae" else None
        error = (x - sae.decode(sae.encode(x, k=k))).square().sum() / (x - x.mean(0)).square().sum()
        assert line["explained_variance"] == pytest.approx(1 - error.item(), abs=1e-5)
