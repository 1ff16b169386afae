"""Atomic writes, file digests, and safe reading of untrusted JSON."""

import glob
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from osae.messages import one_line, shorten

LARGEST_JSON = 2**26  # bytes; larger files are not read
DEEPEST_JSON = 100  # nested lists and objects
TOO_DEEP = f"it is nested more than {DEEPEST_JSON} levels deep."
CHECKSUM = "osae_checksum"  # key of the digest of everything else in a JSON file
_LINKS = 40  # links to follow before they count as a loop


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a path to write to; the file replaces `path` once the block ends without an error.

    The yielded path is in a temporary folder, which is removed together with anything else that the writer
    leaves there. Symbolic links are kept, and the file that they point to is replaced. Pipes, terminals and
    other streams (`/dev/stdout`, `/dev/null`) are not replaced: they receive the content when the block ends.
    """
    target = _follow_links(Path(path))
    if _is_stream(target):
        with _deliver(target) as beside:
            yield beside
    else:
        with _replace(target) as beside:
            yield beside


def append_text(path: Path, text: str) -> None:
    """Append text to a file; errors name the file."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


def check_regular(path: Path) -> None:
    """Raise `ValueError` if the path is a pipe, a device or a folder, which could block forever."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file: give the path of one.")


def is_handed_over(path: Path) -> bool:
    """Return whether the path is one of our own open files: /dev/stdin, or a pipe that the shell opened."""
    return _is_own_descriptor(_follow_links(path))


def read_json(path: Path | str, *, largest: int = LARGEST_JSON) -> Any:
    """Return the content of a JSON file; raise a `ValueError` that names the file if it cannot be read.

    The digest added by `seal` is checked and left out.
    """
    path = Path(path)
    check_regular(path)
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    try:
        if len(data) > largest:
            raise ValueError(f"it is larger than {largest} bytes, the largest size that is read.")
        held = json.loads(data.decode("utf-8"))
        _check_depth(held)
        return _unseal(held) if isinstance(held, dict) else held
    except UnicodeDecodeError:
        raise ValueError(f"{path} cannot be read: it is not a JSON file, but binary data.") from None
    except RecursionError:
        raise ValueError(f"{path} cannot be read: {TOO_DEEP}") from None
    except ValueError as error:
        raise ValueError(one_line(f"{path} cannot be read: {error}")) from error


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with a digest added, from which `read_json` detects changes."""
    return {**data, CHECKSUM: _digest_json(json.loads(json.dumps(data)))}


def _unseal(held: dict[str, Any]) -> dict[str, Any]:
    """Return the data without its digest; raise `ValueError` if the digest does not match."""
    content = {key: value for key, value in held.items() if key != CHECKSUM}
    if CHECKSUM in held and held[CHECKSUM] != _digest_json(content):
        raise ValueError(
            f"its content does not match its {CHECKSUM}: it is damaged or was edited. Restore it, or remove "
            "that key if the change is intended."
        )
    return content


def _digest_json(data: dict[str, Any]) -> str:
    """Return the SHA-256 digest of the content, regardless of formatting."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _check_depth(held: Any) -> None:
    level = [held]
    for _ in range(DEEPEST_JSON):
        level = [item for each in level for item in _list_inside(each)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _list_inside(held: Any) -> Iterable[Any]:
    return held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()


def is_part(path: Path) -> bool:
    """Return whether this is an unfinished file, still being written or left by a killed writer."""
    return path.name.startswith(".") and path.name.endswith(".part")


def file_sha256(path: Path | str) -> str:
    """Return the SHA-256 digest of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(path: Path) -> None:
    """Remove the unfinished files that killed writers of `path` left next to it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        pid = left.name.removeprefix(f".{path.name}.").split(".")[0]
        if pid.isdigit() and not is_alive(int(pid)):
            _remove(left)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this host; zombies do not count."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # there is no /proc, or the process has just ended
        return True


@contextmanager
def _replace(path: Path) -> Iterator[Path]:
    remove_leftovers(path)
    folder = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside, whole = folder / path.name, path.with_name(f".{path.name}.{os.getpid()}.whole.part")
    try:
        folder.mkdir(exist_ok=True)
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        os.chmod(beside, mode)  # some writers replace the file with one that only its owner can read
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.rename(beside, whole)
        shutil.rmtree(folder)  # first: whenever the process is killed, the next writer of `path` cleans up
        os.replace(whole, path)
    except Exception as error:
        if reason := _storage_reason(error, folder):
            raise OSError(f"{path} cannot be written: {reason}") from error
        raise
    finally:
        _remove(folder)
        _remove(whole)


def _storage_reason(error: Exception, folder: Path) -> str:
    """Return why the disk rejected a file in the folder; empty if the error has another cause."""
    if isinstance(error, OSError):
        ours = error.filename is None or Path(os.fsdecode(error.filename)).parent in (folder, folder.parent)
        return (error.strerror or str(error)) if ours else ""
    # safetensors and torch raise their own errors when the disk is full
    foreign = type(error).__name__ == "SafetensorError" or isinstance(error.__context__, OSError)
    return shorten(error.__context__ or error) if foreign else ""


@contextmanager
def _deliver(stream: Path) -> Iterator[Path]:
    """Yield a path to write to; send its content to the stream once the block ends without an error."""
    with tempfile.TemporaryDirectory(prefix="osae-") as folder:
        beside = Path(folder) / stream.name
        beside.touch()
        yield beside
        with open(beside, "rb") as content, _open_stream(stream) as receiver:
            shutil.copyfileobj(content, receiver)


def _open_stream(stream: Path) -> BinaryIO:
    """Open a stream for writing; one of our own open files is shared, so that its position advances."""
    if not _is_own_descriptor(stream):
        return open(os.open(stream, os.O_WRONLY), "wb")
    sys.stdout.flush()  # what was printed before comes first
    sys.stderr.flush()
    return open(int(stream.name), "wb", closefd=False)


def _follow_links(path: Path) -> Path:
    """Return the file that a chain of links points to, whether it exists or not.

    The chain ends at one of our own open files: /dev/stdout is such a link, and may point to a file that the
    shell has opened for us, which must not be replaced.
    """
    for _ in range(_LINKS):
        if _is_own_descriptor(path) or not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise ValueError(f"{path} is a loop of symbolic links: give the name of a file.")


def _is_own_descriptor(path: Path) -> bool:
    """Return whether the path is a file descriptor of this process, such as /dev/fd/3."""
    return path.name.isdigit() and path.parent.resolve() == Path(f"/proc/{os.getpid()}/fd")


def _is_stream(path: Path) -> bool:
    """Return whether to write to the path rather than replace it.

    Raise `ValueError` if neither is possible.
    """
    if _is_own_descriptor(path):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder: give the name of a file.")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        kind = "block device" if stat.S_ISBLK(mode) else "socket"
        raise ValueError(
            f"{path} is a {kind}, which cannot be used as an output file: give the name of a file."
        )
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
