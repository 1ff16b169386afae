"""Workers: each task once, errors as they are, a dead worker is named, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osae.experiments.workers import run_locally
from osae.files import is_alive


def act(task):
    """Do what the task says; the workers find this function by its name."""
    print("what a task prints is no answer")
    match task:
        case ("raise", error):
            raise error
        case ("kill", number):
            os.kill(os.getpid(), number)
            time.sleep(60)
        case ("exit", code):
            os._exit(code)
        case ("wait", folder):
            (Path(folder) / str(os.getpid())).touch()
            time.sleep(60)
    return task, os.getpid()


def run(tasks, workers=2):
    return list(run_locally(act, tasks, workers=workers, describe=lambda task: f"task {task}"))


def test_every_task_is_done_once_by_several_processes():
    found = run(list(range(8)))
    assert sorted(task for task, _ in found) == list(range(8))
    assert os.getpid() not in {pid for _, pid in found}


def test_a_single_worker_is_this_process():
    assert run([1, 2], workers=1) == [(1, os.getpid()), (2, os.getpid())]


@pytest.mark.parametrize("error", [ValueError("of the user"), OSError("no space left")], ids=repr)
def test_errors_come_through(error):
    with pytest.raises(type(error), match=str(error)):
        run([("raise", error), 1])


def test_our_own_mistakes_keep_their_traceback():
    with pytest.raises(RuntimeError, match=r"task .* failed:\n(.*\n)*AssertionError: ours"):
        run([("raise", AssertionError("ours")), 1])


@pytest.mark.parametrize(
    ("task", "how"),
    [
        (("kill", signal.SIGKILL), r"killed by SIGKILL, perhaps for lack of memory"),
        (("kill", signal.SIGSEGV), "killed by SIGSEGV"),
        (("exit", 3), "exit code 3"),
    ],
    ids=str,
)
def test_a_dead_worker_stops_the_others_at_once_and_its_task_is_named(task, how, tmp_path):
    started = time.monotonic()
    with pytest.raises(ChildProcessError) as died:
        run([("wait", str(tmp_path)), task])
    assert time.monotonic() - started < 20
    assert str(died.value).startswith(f"the worker process for task {task} died ({how})")
    assert not [file for file in tmp_path.iterdir() if is_alive(int(file.name))]


def test_workers_exit_when_their_parent_is_killed(tmp_path):
    script = (
        "import sys\nfrom tests.experiments.test_workers import run\n"
        "run([('wait', sys.argv[1]), ('wait', sys.argv[1])])"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    deadline = time.monotonic() + 60
    while len(pids := [int(file.name) for file in tmp_path.iterdir()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(pid):
    """Whether the process does anything: one that nobody waits for stays in the list after it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
