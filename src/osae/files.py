"""Files that are whole or absent."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(path: Path | str) -> Iterator[Path]:
    """A path to write to beside `path`, which takes its place once the block ends well."""
    path = Path(path)
    _clear(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        os.chmod(beside, mode)  # some writers put a file of their own in its place, for the owner's eyes only
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def is_part(path: Path) -> bool:
    """Whether this is what a writer has begun, or has left when it was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _clear(path: Path) -> None:
    """What a writer that was killed has left beside `path` goes."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        pid = left.suffixes[-2].removeprefix(".")
        if pid.isdigit() and not _alive(int(pid)):
            left.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True
