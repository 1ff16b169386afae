"""Checkpoints: the whole state of a training run in one file, written completely or not at all.

The last two are kept. Each carries a digest of its content: if the last one is damaged, the run is resumed
from the one before it. The state is copied to the host's memory at once, and written in the background.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osae.files import atomic_write, check_regular, remove_leftovers
from osae.training.member import Member

SCHEMA = 1
LAST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


def exists(folder: Path) -> bool:
    """Return whether the run in this folder has a checkpoint."""
    return (folder / LAST).exists() or (folder / BEFORE).exists()


class Captured(NamedTuple):
    """The state of a run after some steps, in the host's memory."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


class Writer:
    """Writes checkpoints in the background, one at a time; leaving its `with` block waits for the last one.

    `pause` is the least time between two of them: training may wait for one in a twentieth of the time, and
    the disk may be busy with them in half of it.
    """

    def __init__(self, folder: Path):
        self.folder, self.pause = folder, 0.0
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.wait()
        elif self._thread is not None and not issubclass(kind, KeyboardInterrupt):
            self._thread.join()  # what is under way is good; the error at hand says more than its error would

    def save(self, members: Sequence[Member], done: int) -> None:
        """Copy the members' state to the host's memory, and begin to write it once the last one is written.

        Raise what went wrong with the last one. All ranks take part, and the first one writes.
        """
        self.wait()
        started = time.monotonic()
        captured = capture(members, done)
        blocked = time.monotonic() - started
        if not members[0].mesh.is_first:
            return
        # a daemon: a process that has to end at once leaves the file that is being written unfinished
        self._thread = Thread(target=self._write, args=(captured, blocked), name="osae-writer", daemon=True)
        self._thread.start()

    def is_busy(self) -> bool:
        """Return whether a checkpoint is being written; raise what went wrong with the last one."""
        if self._thread is not None and self._thread.is_alive():
            return True
        self.wait()
        return False

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, captured: Captured, blocked: float) -> None:
        started = time.monotonic()
        try:
            write(self.folder, captured)
        except BaseException as error:
            self._error = error
        self.pause = max(20 * blocked, 2 * (time.monotonic() - started))


def save(folder: Path, members: Sequence[Member], done: int) -> None:
    """Write the members' weights, optimizers and counters after `done` steps; keep the checkpoint before."""
    write(folder, capture(members, done))


def capture(members: Sequence[Member], done: int) -> Captured:
    """Copy the members' state to the host's memory, from any device and without a second copy there."""
    tensors = {f"{m.name}/{name}": t.detach() for m in members for name, t in m.state().items()}
    tensors = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return Captured(tensors, {"schema": SCHEMA, "done": done, "scales": {m.name: m.scale for m in members}})


def write(folder: Path, captured: Captured) -> None:
    """Write a checkpoint; keep the one before."""
    tensors, about = captured
    digest = _start_digest(about)
    for name in sorted(tensors):
        _add_to_digest(digest, name, tensors[name])
    if (folder / LAST).exists():
        _keep_before(folder)
    with atomic_write(folder / LAST) as beside:
        save_file(tensors, beside, {"osae": json.dumps(about | {"sha256": digest.hexdigest()})})


def restore(folder: Path, members: Sequence[Member], tell: Callable[[str], None]) -> int:
    """Put the members back to where the last whole checkpoint was written; return the finished steps.

    If the last one is damaged, `tell` is called with a sentence that says so.
    """
    last, before = folder / LAST, folder / BEFORE
    if not last.exists():
        return _restore_from(before, members) if before.exists() else 0
    try:
        return _restore_from(last, members)
    except ValueError as error:
        try:
            done = _restore_from(before, members) if before.exists() else None
        except ValueError:
            done = None
        if done is None:
            raise
        os.replace(before, last)  # or the damaged one would be kept in its place
        tell(f"{str(error).rpartition(': ')[0]}: resumed from the checkpoint before it, at step {done}.")
        return done


@torch.no_grad()
def _restore_from(path: Path, members: Sequence[Member]) -> int:
    check_regular(path)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("osae", "{}"))
            if about.get("schema") != SCHEMA:
                raise ValueError(f"it has schema {about.get('schema')}, and this release reads {SCHEMA}")
            _check_digest(file, about)
            for member in members:
                member.scale = float(about["scales"][member.name])
                prefix = f"{member.name}/"
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                member.restore({name.removeprefix(prefix): file.get_tensor(name) for name in names})
        return int(about["done"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"{path} does not fit this run ({reason}): delete it to start the run again from the beginning."
        ) from error


def _check_digest(file: Any, about: dict[str, Any]) -> None:
    """Raise `ValueError` if the content is not what was written; earlier releases wrote no digest."""
    wanted = about.pop("sha256", None)
    if wanted is None:
        return
    digest = _start_digest(about)
    for name in sorted(file.keys()):
        _add_to_digest(digest, name, file.get_tensor(name))
    if digest.hexdigest() != wanted:
        raise ValueError("its content does not match its checksum")


def _start_digest(about: dict[str, Any]) -> Any:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode())


def _add_to_digest(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy())


def _keep_before(folder: Path) -> None:
    """Give the last checkpoint a second name, under which it outlives the next one."""
    remove_leftovers(folder / BEFORE)
    second = folder / f".{BEFORE}.{os.getpid()}.part"
    try:
        second.unlink(missing_ok=True)
        os.link(folder / LAST, second)
        os.replace(second, folder / BEFORE)
        second.unlink(missing_ok=True)  # renaming does nothing if both are names of one file already
    except OSError:  # where files cannot have two names, there is no last one until the next is written
        os.replace(folder / LAST, folder / BEFORE)
