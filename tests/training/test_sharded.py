"""Checkpoints in parts: two are kept, damage is found, and the newest counts whichever way it was written."""

import shutil
from pathlib import Path

import pytest
import torch

from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.ranks import NO_OTHERS
from osae.recipes import Task, world_recipe
from osae.training import checkpoint, sharded
from osae.training.loop import train
from osae.training.member import Member

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # there is one process here
WORLD = SparseWorld(width=12, units=16, active=2, samples=400)
RECIPE = world_recipe("osae", Task(width=12, units=16, k=2, samples=4000, batch=100))
STEPS = (3, 5, 8)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A folder with a checkpoint in parts after some steps, and the state at each."""
    folder, states = tmp_path_factory.mktemp("run"), {}
    member = make_member()

    def keep(done, _):
        if done in STEPS:
            states[done] = {name: tensor.clone() for name, tensor in member.state().items()}
            write_parts(folder, member, done)

    train([member], MemoryRows(WORLD.draw("train").x), after=[keep])
    return folder, states


@pytest.fixture
def folder(states, tmp_path):
    shutil.copytree(states[0], tmp_path / "run")
    return tmp_path / "run"


def make_member() -> Member:
    return Member(RECIPE, 0, WORLD.draw("train").x)


def write_parts(folder: Path, member: Member, done: int) -> None:
    captured = checkpoint.capture_parts([member], done)
    sharded.write(folder, captured.tensors, captured.places, captured.about, NO_OTHERS)


def list_steps(folder: Path) -> list[int]:
    return [done for done, _ in sharded.list_whole(folder)]


def restored(folder: Path, expected: dict[str, torch.Tensor], tell=pytest.fail) -> int:
    member = make_member()
    done = checkpoint.restore(folder, [member], tell)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in member.state().items())
    return done


def test_the_newest_that_is_whole_is_restored_bit_for_bit(folder, states):
    assert list_steps(folder) == [8, 5, 3]
    assert restored(folder, states[1][8]) == 8
    (folder / "checkpoints" / f"{8:012d}" / "checkpoint.json").unlink()  # as if writing was cut short
    assert restored(folder, states[1][5]) == 5
    assert checkpoint.exists(folder)


@pytest.mark.parametrize("damage", ["flipped", "lost", "index"])
def test_a_damaged_one_is_named_and_passed_over(damage, folder, states):
    path, told = folder / "checkpoints" / f"{8:012d}", []
    (part,) = path.glob("*.safetensors")
    file = path / "checkpoint.json" if damage == "index" else part
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.unlink() if damage == "lost" else file.write_bytes(data)
    assert restored(folder, states[1][5], told.append) == 5
    assert str(path) in told[0]
    assert "resumed from the previous checkpoint, at step 5" in told[0]
    assert list_steps(folder) == [5, 3]  # so that the next one does not push out a whole one


def test_the_newest_counts_whichever_way_it_was_written_and_two_are_kept(folder, states):
    member = make_member()
    checkpoint.restore(folder, [member], pytest.fail)
    checkpoint.save(folder, [member], 9)
    assert restored(folder, states[1][8]) == 9
    checkpoint._remove_older(folder)
    assert list_steps(folder) == [8]
    checkpoint.save(folder, [member], 10)
    checkpoint._remove_older(folder)
    assert list_steps(folder) == []
    write_parts(folder, member, 12)
    assert restored(folder, states[1][8]) == 12


def test_only_the_last_two_are_kept(folder):
    checkpoint._remove_older(folder)
    assert list_steps(folder) == [8, 5]
