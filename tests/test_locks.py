"""One writer per folder: the second is refused by name; what a dead process left does not count."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from osae import locks
from osae.locks import LOCK, LockedError, clear_lock, lock

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom osae.locks import lock\n"
    "with lock(Path(sys.argv[1])):\n print('held', flush=True)\n time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_writer_is_refused_and_told_who_the_first_is(holder, tmp_path):
    with pytest.raises(LockedError) as refused, lock(tmp_path):
        pytest.fail("two writers")
    message = str(refused.value)
    assert f"{tmp_path} is in use by process {holder.pid} on {socket.gethostname()}, since 20" in message
    assert (tmp_path / LOCK).exists()


def test_the_lock_of_a_killed_process_is_no_obstacle(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    with lock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_process_cannot_hold_a_folder_twice(tmp_path):
    with lock(tmp_path):
        with pytest.raises(LockedError, match=f"process {os.getpid()} "), lock(tmp_path):
            pytest.fail("two writers")
        assert (tmp_path / LOCK).exists()


def leave_lock(folder, host, age):
    (folder / LOCK).write_text(json.dumps({"pid": os.getpid(), "host": host, "since": "long ago"}))
    os.utime(folder / LOCK, (time.time() - age,) * 2)


def test_another_host_counts_as_dead_after_the_stated_silence(tmp_path):
    leave_lock(tmp_path, "elsewhere", locks.SILENCE - 20)
    with pytest.raises(LockedError, match=r"process .* on elsewhere, since long ago"), lock(tmp_path):
        pytest.fail("two writers")
    leave_lock(tmp_path, "elsewhere", locks.SILENCE + 5)
    with lock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["host"] == socket.gethostname()


def test_a_holder_shows_other_hosts_that_it_is_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.02)
    with lock(tmp_path):
        os.utime(tmp_path / LOCK, (1, 1))
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK).stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_where_the_disk_has_no_locks_a_living_process_of_this_host_is_respected(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    leave_lock(tmp_path, socket.gethostname(), 1000)
    with pytest.raises(LockedError), lock(tmp_path):
        pytest.fail("two writers")
    (tmp_path / LOCK).write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    with lock(tmp_path):
        pass


@pytest.mark.parametrize("left", ["", "{", "[]", '{"host": [1]}', "[" * 4096])
def test_a_damaged_lock_of_nobody_is_taken_over(left, tmp_path):
    (tmp_path / LOCK).write_text(left)
    os.utime(tmp_path / LOCK, (1, 1))
    with lock(tmp_path):
        pass


def test_a_folder_that_stays_empty_is_removed_with_those_above_it(tmp_path):
    with lock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK).exists()
    assert os.listdir(tmp_path) == []
    with lock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "x").touch()
    assert os.listdir(tmp_path / "a") == ["x"]


def test_what_a_killed_process_left_is_cleared_and_what_is_held_stays(tmp_path):
    (tmp_path / LOCK).write_text(f'{{"pid": 1, "host": "{socket.gethostname()}"}}')
    clear_lock(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clear_lock(tmp_path)
    with lock(tmp_path):
        clear_lock(tmp_path)
        assert (tmp_path / LOCK).exists()
