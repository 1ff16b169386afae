"""Tasks on a real Ray cluster and through submitit: answers, errors and losses as on this machine."""

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osae.experiments.places import Local, Ray, Slurm, run_tasks

pytestmark = pytest.mark.cluster


def act(task: Any) -> tuple[Any, int, str]:
    """Do what the task says."""
    match task:
        case ("raise", what):
            raise ValueError(what)
        case ("kill", number):
            os.kill(os.getpid(), number)
        case _:
            pass
    return task, os.getpid(), os.getcwd()


@pytest.fixture(autouse=True)
def _usual_priority(monkeypatch):
    """Workers of Ray would give way to everything else on the machine."""
    monkeypatch.setenv("RAY_worker_niceness", "0")


@pytest.fixture(params=["local", "ray", "submitit"])
def place(request, tmp_path):
    if request.param != "local":
        pytest.importorskip(request.param)
    return {"local": Local(2), "ray": Ray(), "submitit": Slurm(tmp_path / "logs", cluster="local")}[
        request.param
    ]


def run(place, tasks, lost=None):
    return list(run_tasks(act, tasks, place=place, describe=lambda task: f"task {task}", lost=lost))


def test_every_task_is_done_once_elsewhere_and_in_this_folder(place):
    found = run(place, [1, 2, 3])
    assert sorted(task for task, _, _ in found) == [1, 2, 3]
    assert os.getpid() not in {pid for _, pid, _ in found}
    assert {folder for _, _, folder in found} == {os.getcwd()}
    assert run(place, []) == []


def test_errors_come_through(place):
    with pytest.raises((ValueError, RuntimeError), match="of the user"):
        run(place, [("raise", "of the user")])


def test_a_process_that_dies_names_its_task_or_has_a_stand_in(place):
    tasks = [1, ("kill", signal.SIGKILL)]
    found = run(place, tasks, lost=lambda task, why: (task, 0, why))
    assert sorted(pid == 0 for _, pid, _ in found) == [False, True]
    with pytest.raises(ChildProcessError, match=r"task .*kill"):
        run(place, tasks[1:])


def test_a_sweep_on_ray_equals_one_on_this_machine(tmp_path):
    pytest.importorskip("ray")
    from safetensors.torch import load_file

    from osae.cli import main

    words = "recipes: topk\nworld_width: 12\nworld_units: 16\nworld_samples: 400\nbatch: 50\nepochs: 2\n"
    (tmp_path / "sweep.yaml").write_text(words + "vary: {seeds: [0, 1]}\n")
    for on in ("local", "ray"):
        out = ["--out", str(tmp_path / on), "--on", on, "--device", "cpu"]
        assert main(["sweep", str(tmp_path / "sweep.yaml"), *out]) == 0
    for seed in (0, 1):
        ours, theirs = (
            load_file(tmp_path / on / f"runs/seeds={seed}/topk-seed{seed}/sae.safetensors")
            for on in ("local", "ray")
        )
        assert all(bool((ours[name] == tensor).all()) for name, tensor in theirs.items())


def test_an_experiment_trains_on_ray(tmp_path):
    pytest.importorskip("ray")
    from osae.config import alter
    from osae.data.worlds import SparseWorld
    from osae.experiments.jobs import Job, train_all
    from osae.recipes import Task, world_recipe

    world = SparseWorld(8, 10, 2, samples=200)
    made = alter(world_recipe("topk", Task(8, 10, 2, samples=200, batch=50)), {"k_warmup": None})
    jobs = [Job(made, seed, world) for seed in (0, 1)]
    found = sorted(done.job.seed for done in train_all(jobs, tmp_path, place=Ray()))
    assert found == [0, 1]


def test_the_script_for_slurm_has_what_was_asked_for(tmp_path, monkeypatch):
    """A stand-in for sbatch keeps the script that a real one would get."""
    pytest.importorskip("submitit")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in {
        "sbatch": f'cp "$1" {tmp_path}/script.sh\necho Submitted batch job 7',
        "srun": "true",
        "squeue": "echo 7_0 7_1 7_2 7_3",
        "scancel": f"echo $@ >> {tmp_path}/cancelled",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    place = Slurm(tmp_path / "logs", {"partition": "gpu", "gres": "gpu:1", "time": "60"}, at_once=3)
    going = run_tasks(act, [1, 2, 3, 4], place=place, describe=str)
    import submitit

    monkeypatch.setattr(submitit.helpers, "as_completed", lambda jobs, poll_frequency: iter(()))
    assert list(going) == []
    script = (tmp_path / "script.sh").read_text()
    for line in ("partition=gpu", "gres=gpu:1", "time=60", "array=0-3%3", "job-name=osae"):
        assert f"#SBATCH --{line}" in script
    assert "submitit.core._submit" in script
    assert (tmp_path / "cancelled").exists()  # nothing is left in the queue
    if shutil.which("bash"):
        subprocess.run(["bash", "-n", tmp_path / "script.sh"], check=True)
    assert replace(place, at_once=1).at_once == 1
    assert Path(place.logs).is_dir()
