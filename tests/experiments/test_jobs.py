"""SAEs kept by experiments are of the recipe that was asked for."""

import signal

import pytest

from osae import SAE
from osae.config import alter
from osae.data.worlds import SparseWorld
from osae.experiments import jobs
from osae.experiments.jobs import Job, find_commits, sum_seconds, train_all
from osae.experiments.places import Local
from osae.recipes import Task, recipe
from osae.training.member import Member

WORLD = SparseWorld(16, 24, 3, samples=2000)


def job(rate, **choices):
    made = alter(recipe("topk", Task(16, 24, 3, 1000, batch=100)), {"lr.peak": rate})
    return Job(made, 0, WORLD, (0, 500), **choices)


def test_what_is_there_is_not_trained_again(tmp_path, monkeypatch):
    (first,) = train_all([job(1e-2)], tmp_path, place=Local())
    monkeypatch.setattr("osae.experiments.jobs.train", lambda *args, **options: pytest.fail("trained again"))
    (again,) = train_all([job(1e-2)], tmp_path, place=Local())
    assert again.sae.decoder.equal(first.sae.decoder)
    assert again.seconds == first.seconds


def test_every_sae_knows_the_commit_that_trained_it_and_what_it_cost(tmp_path, monkeypatch):
    finished = []
    for commit, rate in (("b" * 40, 1e-2), ("a" * 40, 3e-3), (None, 1e-3)):
        monkeypatch.setattr("osae.experiments.jobs.find_commit", lambda commit=commit: commit)
        finished += train_all([job(rate)], tmp_path / str(rate), place=Local())
    assert find_commits(tmp_path) == ("a" * 40, "b" * 40)
    list(train_all([job(1e-2)], tmp_path / "0.01", place=Local()))  # is there, of the other commit
    assert find_commits(tmp_path / "0.01") == ("b" * 40,)
    assert sum_seconds(tmp_path) == pytest.approx(sum(done.seconds for done in finished))
    assert find_commits(tmp_path / "nothing") == ()


def test_what_another_training_run_started_to_overwrite_is_trained_again(tmp_path, monkeypatch):
    """Snapshots of one recipe are never taken for those of another that was asked for before and after."""
    before, between = job(1e-2), job(3e-3)
    (first,) = train_all([before], tmp_path, place=Local())
    kept = SAE.load(before.snapshot(tmp_path, 500)).decoder

    def killed(self, folder, *, provenance=None):
        if provenance is not None:
            raise InterruptedError
        return save(self, folder)

    save = SAE.save
    with monkeypatch.context() as patch:
        patch.setattr(SAE, "save", killed)
        with pytest.raises(InterruptedError):
            list(train_all([between], tmp_path, place=Local()))
    assert not SAE.load(before.snapshot(tmp_path, 500)).decoder.equal(kept)
    (again,) = train_all([before], tmp_path, place=Local())
    assert again.sae.decoder.equal(first.sae.decoder)
    assert SAE.load(before.snapshot(tmp_path, 500)).decoder.equal(kept)


@pytest.mark.parametrize("name", ["sae.json", "sae.safetensors", "snapshots/500/sae.safetensors"])
def test_what_is_damaged_is_trained_again(name, tmp_path):
    asked = job(1e-2)
    (first,) = train_all([asked], tmp_path, place=Local())
    file = asked.folder(tmp_path) / name
    file.write_bytes(file.read_bytes()[:-20])
    (again,) = train_all([asked], tmp_path, place=Local())
    assert again.sae.decoder.equal(first.sae.decoder)
    SAE.load(file.parent)


@pytest.fixture
def stopped(monkeypatch):
    """Send SIGTERM during the third step of every job."""
    advance = Member.advance

    def stop(member, x, step):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        return advance(member, x, step)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "advance", stop)
        yield patch


def count_steps(monkeypatch):
    steps, advance = [], Member.advance
    monkeypatch.setattr(
        Member, "advance", lambda member, x, step: (steps.append(step), advance(member, x, step))[1]
    )
    return steps


def test_a_job_that_pauses_is_resumed_and_gives_the_same_sae(tmp_path, stopped, monkeypatch):
    asked = job(1e-2)
    assert jobs._train_and_keep(asked, tmp_path / "paused", may_pause=True) == asked
    assert jobs._is_paused(asked, tmp_path / "paused")
    stopped.undo()
    steps = count_steps(monkeypatch)
    jobs._train_and_keep(asked, tmp_path / "paused", may_pause=True)
    assert steps == list(range(3, 10))
    assert not jobs._is_paused(asked, tmp_path / "paused")
    jobs._train_and_keep(asked, tmp_path / "whole")
    for place in ("", "snapshots/0", "snapshots/500"):
        whole, paused = (
            SAE.load(asked.folder(tmp_path / name) / place).state_dict() for name in ("whole", "paused")
        )
        assert all(paused[name].equal(tensor) for name, tensor in whole.items())
    assert not list(asked.folder(tmp_path / "paused").glob("paused-*"))


@pytest.mark.parametrize("change", ["recipe", "checkpoint", "seconds"])
def test_a_checkpoint_that_does_not_fit_is_not_used(change, tmp_path, stopped, monkeypatch):
    asked = job(1e-2)
    jobs._train_and_keep(asked, tmp_path, may_pause=True)
    stopped.undo()
    (paused,) = asked.folder(tmp_path).glob("paused-*")
    if change == "recipe":
        asked = job(3e-3)
    else:
        (file,) = paused.glob(f"{change}*")
        file.write_bytes(file.read_bytes()[:-4] + b"????")
    steps = count_steps(monkeypatch)
    jobs._train_and_keep(asked, tmp_path, may_pause=True)
    assert steps == list(range(10))
    assert not paused.exists()


def test_a_job_that_was_stopped_for_good_is_an_error(tmp_path, stopped, monkeypatch):
    monkeypatch.setattr(
        jobs, "run_tasks", lambda function, tasks, **_: map(jobs.partial(function, may_pause=True), tasks)
    )
    with pytest.raises(ChildProcessError, match="run the same command again"):
        list(train_all([job(1e-2)], tmp_path, place=Local()))
