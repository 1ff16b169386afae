"""One writer per folder: a second process gets an error that names the first.

FOLDER/.osae.lock   {"pid": 4711, "host": "node3", "since": "2026-01-31T12:00:00+00:00"}

The system locks the file (`flock`) and releases it when its process ends, however that happens, so that a
killed process on this host never blocks others. If a folder is shared between hosts, the system may not see
the lock of another host. Each holder therefore touches the file every `BEAT` seconds, and other hosts
consider it dead after `SILENCE` seconds without an update.
"""

import fcntl
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from osae.files import is_alive

LOCK = ".osae.lock"
BEAT = 15.0
SILENCE = 120.0


class LockedError(ValueError):
    """Raised when another process is writing to a folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the folder for writing within the block; raise `LockedError` if another process holds it.

    The folder is created if it is missing, and removed again if it is left empty.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = _acquire(folder)
        over = threading.Event()
        beat = threading.Thread(target=_keep_beating, args=(folder / LOCK, over), daemon=True)
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(held)
    finally:
        for path in made:
            with suppress(OSError):  # it is not empty
                path.rmdir()


def clear_lock(folder: Path) -> None:
    """Remove a lock left by a killed process; keep one that is held."""
    if (folder / LOCK).exists():
        with suppress(LockedError, OSError), lock(folder):
            pass


def _acquire(folder: Path) -> int:
    """Return the open lock file, which is now ours."""
    path = folder / LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            _claim(file, folder)
            if _is_at(file, path):  # it was not removed by the last holder while we waited
                _write_holder(file)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _claim(file: int, folder: Path) -> None:
    """Lock the file; raise `LockedError` if the process that it names is still running."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except BlockingIOError:
        raise _refusal(folder, _read_holder(file)) from None
    except OSError:  # a file system without locks
        locked = False
    holder = _read_holder(file)
    here = holder.get("host") == socket.gethostname()
    if holder and not here and _seconds_silent(file, folder) < SILENCE:
        raise _refusal(folder, holder)
    pid = holder.get("pid")
    if here and not locked and isinstance(pid, int) and is_alive(pid):
        raise _refusal(folder, holder)


def _refusal(folder: Path, holder: dict[str, Any]) -> LockedError:
    pid, host, since = (str(holder.get(key, "unknown"))[:60] for key in ("pid", "host", "since"))
    return LockedError(
        f"{folder} is in use by process {pid} on {host}, since {since}: wait for it to end, or stop it."
    )


def _read_holder(file: int) -> dict[str, Any]:
    """Return the holder recorded in the file; empty if there is none, or if a full disk truncated it."""
    try:
        held = json.loads(os.pread(file, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _write_holder(file: int) -> None:
    since = datetime.now(UTC).isoformat("T", "seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(file, 0)
    with suppress(OSError):  # on a full disk, the lock still works, without a name
        os.pwrite(file, json.dumps(holder).encode(), 0)


def _seconds_silent(file: int, folder: Path) -> float:
    """Return how long ago the lock was touched, by the clock of the disk it is on."""
    with tempfile.TemporaryFile(dir=folder) as now:
        return os.fstat(now.fileno()).st_mtime - os.fstat(file).st_mtime


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _keep_beating(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with suppress(OSError):
            os.utime(path)
