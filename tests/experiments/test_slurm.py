"""A real Slurm cluster on this machine: results, deaths, requeued runs and refusals.

On Debian, as root: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
"""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from osae.cli import main
from osae.data.worlds import SparseWorld
from osae.experiments.jobs import Job, train_all
from osae.experiments.places import Local, Slurm, run_tasks
from osae.recipes import Task, recipe
from tests.experiments.slurm_cluster import is_possible, slurm_cluster

pytestmark = pytest.mark.cluster

SWEEP = "recipes: topk\nworld_width: 12\nworld_units: 16\nworld_samples: 4000\nbatch: 50\n"


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    pytest.importorskip("submitit")
    if not is_possible():
        pytest.skip("needs root and the programs of Slurm and munge")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(config))
        patch.setenv(
            "PYTHONPATH", f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"
        )  # finds `die_or_double`
        yield


def die_or_double(task: int) -> int:
    """Return twice the number, or die if it is negative."""
    if task < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * task


def sweep(folder, seeds, epochs, on):
    file = folder / "sweep.yaml"
    file.write_text(f"{SWEEP}epochs: {epochs}\nvary: {{seeds: {seeds}}}\n")
    return main(["sweep", str(file), "--out", str(folder / on), "--on", on, "--device", "cpu"])


def assert_same_saes(folder, seeds):
    for seed in seeds:
        ours, theirs = (
            load_file(folder / on / f"runs/seeds={seed}/topk-seed{seed}/sae.safetensors")
            for on in ("local", "slurm")
        )
        assert all(bool((ours[name] == tensor).all()) for name, tensor in theirs.items())


def test_a_sweep_of_two_jobs_equals_one_on_this_machine(tmp_path, capfd):
    assert sweep(tmp_path, [0, 1], 2, "local") == sweep(tmp_path, [0, 1], 2, "slurm") == 0
    assert_same_saes(tmp_path, [0, 1])
    (script,) = (tmp_path / "slurm" / "slurm").glob("[0-9]*.sh")
    assert "--array=0-1%2" in script.read_text()
    assert "--time" not in script.read_text()  # the limit of the partition
    assert "accounting" not in capfd.readouterr().err  # which this cluster does not have


def test_a_job_that_is_killed_loses_its_task_alone(tmp_path):
    place = Slurm(tmp_path / "logs")
    found = run_tasks(die_or_double, [3, -1], place=place, describe=str, lost=lambda task, why: (task, why))
    lost, done = sorted(found, key=str)
    assert done == 6
    assert lost[0] == -1
    assert "GONE" in lost[1]


def test_a_run_whose_time_is_over_is_queued_again_and_resumed(tmp_path):
    """As Slurm does before the limit, a signal is sent in the middle of the run."""
    assert sweep(tmp_path, [0], 60, "local") == 0
    interrupted = threading.Thread(target=interrupt, args=[tmp_path / "slurm/runs/seeds=0/log.jsonl"])
    interrupted.start()
    assert sweep(tmp_path, [0], 60, "slurm") == 0
    interrupted.join()
    assert_was_queued_twice(tmp_path / "slurm" / "slurm")
    assert_same_saes(tmp_path, [0])


def test_an_experiments_job_whose_time_is_over_is_queued_again_and_resumed(tmp_path):
    made = recipe("topk", Task(12, 16, 2, samples=150_000, batch=50))
    job = Job(made, 0, SparseWorld(12, 16, 2, samples=4000), snapshots=(0,))
    (whole,) = train_all([job], tmp_path / "local", place=Local())
    begun = job.snapshot(tmp_path / "slurm", 0) / "sae.json"
    interrupted = threading.Thread(target=interrupt, args=[begun])
    interrupted.start()
    (resumed,) = train_all([job], tmp_path / "slurm", place=Slurm(tmp_path / "logs"))
    interrupted.join()
    assert_was_queued_twice(tmp_path / "logs")
    ours, theirs = whole.sae.state_dict(), resumed.sae.state_dict()
    assert all(bool((ours[name] == tensor).all()) for name, tensor in theirs.items())


def assert_was_queued_twice(logs):
    (log,) = logs.glob("*_log.err")
    assert "queued again" in log.read_text()
    assert len(re.findall("Starting with JobEnvironment", log.with_suffix(".out").read_text())) == 2


def interrupt(begun):
    """Send SIGUSR2 to the job as soon as it has begun, and spare it the two minutes after a requeue."""
    wait_until(begun.exists)
    subprocess.run(["scancel", "--signal=USR2", "--name=osae"], check=True)
    wait_until(lambda: "BeginTime" in queue("%r"))
    subprocess.run(["scontrol", "update", f"JobId={queue('%i')}", "StartTime=now"], check=True)


def queue(columns):
    words = ["squeue", "--noheader", "--name=osae", f"--format={columns}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def wait_until(reached):
    until = time.monotonic() + 60
    while not reached() and time.monotonic() < until:
        time.sleep(0.05)


def test_what_slurm_refuses_is_an_error_of_one_line(tmp_path, capsys):
    (tmp_path / "sweep.yaml").write_text(f"{SWEEP}epochs: 1\nvary: {{seeds: [0]}}\n")
    words = ["--out", str(tmp_path / "out"), "--on", "slurm", "--slurm", "partition=none"]
    assert main(["sweep", str(tmp_path / "sweep.yaml"), *words]) == 2
    assert "invalid partition" in capsys.readouterr().err.lower()
