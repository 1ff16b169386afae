"""Files that are whole or absent."""

import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """A path to write to, in a folder of its own; it takes the place of `path` once the block ends well.

    What else a writer puts into that folder, such as a temporary file of its own, goes with it.
    """
    path = Path(path)
    _clear(path)
    folder = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside, whole = folder / path.name, path.with_name(f".{path.name}.{os.getpid()}.whole.part")
    try:
        folder.mkdir(exist_ok=True)
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        os.chmod(beside, mode)  # some writers put a file of their own in its place, for the owner's eyes only
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.rename(beside, whole)
        shutil.rmtree(folder)  # first: killed at any moment, what is left is cleared when `path` is written
        os.replace(whole, path)
    finally:
        _remove(folder)
        _remove(whole)


def is_part(path: Path) -> bool:
    """Whether this is what a writer has begun, or has left when it was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _clear(path: Path) -> None:
    """What a writer that was killed has left beside `path` goes."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        pid = left.name.removeprefix(f".{path.name}.").split(".")[0]
        if pid.isdigit() and not _alive(int(pid)):
            _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def file_sha256(path: Path | str) -> str:
    """Return the SHA-256 digest of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
