"""Checkpoints: the complete state of a training run in one file, written atomically.

The last two are kept. Each carries a digest of its content: if the last one is damaged, the run is resumed
from the one before it. The state is copied to the host's memory at once, and written in the background. If
the units of dictionaries are spread over ranks, each rank writes its own: see `osae.training.sharded`.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from osae.array_files import read_metadata
from osae.files import atomic_write, remove_leftovers
from osae.messages import shorten
from osae.ranks import ALONE, Mesh
from osae.tensor_files import read_tensors
from osae.training import sharded
from osae.training.member import Member

SCHEMA = 1
LAST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


def exists(folder: Path) -> bool:
    """Return whether the run in this folder has a checkpoint."""
    return (folder / LAST).exists() or (folder / BEFORE).exists() or bool(sharded.list_whole(folder))


def count_steps(folder: Path) -> int:
    """Return the number of finished steps of the run in this folder, by its last readable checkpoint."""
    return int(max((done for done, _ in _list_newest(folder) if done < math.inf), default=0))


class Captured(NamedTuple):
    """The state of a run after some steps, in host memory; `places` locates the part of a single rank."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]
    places: dict[str, tuple[int, int]] = {}  # noqa: RUF012 - the first row, and the number of all


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time; leaving its `with` block waits for the last one.

    `pause` is the minimum time between two of them: training waits for copies at most a twentieth of the
    time, and the disk is busy with checkpoints at most half of the time. `sent` is called after each of them.
    """

    def __init__(self, folder: Path, sent: Callable[[], None] = lambda: None, mesh: Mesh = ALONE):
        self.folder, self.sent, self.pause = folder, sent, 0.0
        self._first = mesh.is_first
        spread = mesh.units.size > 1 and sharded.is_available() and _is_shared(folder, mesh)
        self._ranks = mesh.everyone.apart() if spread else None  # if each writes its own part
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.wait()
        elif self._thread is not None and not issubclass(kind, KeyboardInterrupt):
            self._thread.join()  # its own error, if any, is less informative than the one being raised

    def save(self, members: Sequence[Member], done: int) -> None:
        """Copy the members' state to host memory, and write it after the previous checkpoint.

        Raise the error of the last one, if any. All ranks take part; the first one writes, or each its part.
        """
        self.wait()
        started = time.monotonic()
        captured = capture(members, done) if self._ranks is None else capture_parts(members, done)
        blocked = time.monotonic() - started
        if not self._first and self._ranks is None:
            return
        # a daemon: a process that has to end at once leaves the current file unfinished
        self._thread = Thread(target=self._write, args=(captured, blocked), name="osae-writer", daemon=True)
        self._thread.start()

    def is_busy(self) -> bool:
        """Return whether a checkpoint is being written; raise the error of the last one, if any."""
        if self._thread is not None and self._thread.is_alive():
            return True
        self.wait()
        return False

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise its error, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, captured: Captured, blocked: float) -> None:
        started = time.monotonic()
        try:
            if self._ranks is None:
                write(self.folder, captured)
            else:
                sharded.write(self.folder, captured.tensors, captured.places, captured.about, self._ranks)
            if self._first:
                _remove_older(self.folder)
                self.sent()
        except BaseException as error:
            self._error = error
        self.pause = max(20 * blocked, 2 * (time.monotonic() - started))


def save(folder: Path, members: Sequence[Member], done: int) -> None:
    """Write the members' weights, optimizers and counters after `done` steps.

    Keep the previous checkpoint.
    """
    write(folder, capture(members, done))


def capture(members: Sequence[Member], done: int) -> Captured:
    """Copy the members' state to host memory, from any device and without a second copy on it."""
    tensors = {f"{m.name}/{name}": t.detach() for m in members for name, t in m.state().items()}
    tensors = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return Captured(tensors, _describe(members, done))


def capture_parts(members: Sequence[Member], done: int) -> Captured:
    """Copy this rank's part of the members' state to host memory."""
    tensors, places = {}, {}
    for member in members:
        for name, (part, spread) in member.parts().items():
            tensors[f"{member.name}/{name}"] = part.detach().to("cpu", copy=True).contiguous()
            if spread:
                places[f"{member.name}/{name}"] = (member.mine.start, member.recipe.sae.units)
    return Captured(tensors, _describe(members, done), places)


def _describe(members: Sequence[Member], done: int) -> dict[str, Any]:
    return {"schema": SCHEMA, "done": done, "scales": {m.name: m.scale for m in members}}


def _is_shared(folder: Path, mesh: Mesh) -> bool:
    """Return whether all ranks see the same folder."""
    mark = folder / ".shared.part"
    if mesh.is_first:
        mark.touch()
    mesh.everyone.wait()
    seen = bool(mesh.everyone.min_(torch.tensor(int(mark.exists()))))
    if mesh.is_first:
        mark.unlink()
    return seen


def write(folder: Path, captured: Captured) -> None:
    """Write a checkpoint; keep the one before."""
    tensors, about, _ = captured
    digest = _start_digest(about)
    for name in sorted(tensors):
        _add_to_digest(digest, name, tensors[name])
    if (folder / LAST).exists():
        _keep_before(folder)
    with atomic_write(folder / LAST) as beside:
        save_file(tensors, beside, {"osae": json.dumps(about | {"sha256": digest.hexdigest()})})


def restore(folder: Path, members: Sequence[Member], tell: Callable[[str], None]) -> int:
    """Restore the members from the last intact checkpoint; return the number of finished steps.

    If the last checkpoint is damaged, `tell` is called with a sentence that says so.
    """
    if not sharded.list_whole(folder):
        return _restore_single(folder, members, tell)
    failed: list[ValueError] = []
    for _, path in _list_newest(folder):
        try:
            done = _restore_from(path, members)
        except ValueError as error:
            failed.append(error)
            continue
        if failed:
            _tell_damage(failed[0], done, tell)
            for later, damaged in sharded.list_whole(folder):
                if later > done:
                    shutil.rmtree(damaged, ignore_errors=True)  # it would count as one of the last two
        return done
    raise failed[0]


def _list_newest(folder: Path) -> list[tuple[float, Path]]:
    """Return all checkpoints of a run with their step counts, newest first; a damaged file comes first."""
    single = [(_read_done(path), path) for path in (folder / LAST, folder / BEFORE) if path.exists()]
    return sorted([*single, *sharded.list_whole(folder)], key=lambda one: -one[0])


def _read_done(path: Path) -> float:
    try:
        return int(json.loads(read_metadata(path)["osae"])["done"])
    except (SafetensorError, ValueError, KeyError, TypeError, OSError):
        return math.inf


def _remove_older(folder: Path) -> None:
    """Remove the checkpoints in parts that are not among the last two."""
    if (folder / sharded.FOLDER).exists():
        for _, path in _list_newest(folder)[2:]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def _restore_single(folder: Path, members: Sequence[Member], tell: Callable[[str], None]) -> int:
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
        os.replace(before, last)  # otherwise the damaged one would be kept instead
        _tell_damage(error, done, tell)
        return done


def _tell_damage(error: ValueError, done: int, tell: Callable[[str], None]) -> None:
    tell(f"{str(error).rpartition(': ')[0]}: resumed from the previous checkpoint, at step {done}.")


@torch.no_grad()
def _restore_from(path: Path, members: Sequence[Member]) -> int:
    try:
        if path.is_dir():
            tensors, about = sharded.read(path)
            _give(members, about, tensors)
            return int(about["done"])
        about, tensors = json.loads(read_metadata(path).get("osae", "{}")), read_tensors(path)
        if about.get("schema") != SCHEMA:
            raise ValueError(f"it has schema {about.get('schema')}, and this release reads {SCHEMA}")
        _check_digest(tensors, about)
        _give(members, about, tensors)
        return int(about["done"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = shorten(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"{path} does not fit this run ({reason}): delete it to start the run again from the beginning."
        ) from error


def _give(members: Sequence[Member], about: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Restore the members from the contents of a checkpoint."""
    for member in members:
        member.scale = float(about["scales"][member.name])
        prefix = f"{member.name}/"
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        member.restore(own)


def _check_digest(tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Raise `ValueError` if the content does not match its digest; earlier releases wrote none."""
    wanted = about.pop("sha256", None)
    if wanted is None:
        return
    digest = _start_digest(about)
    for name, tensor in sorted(tensors.items()):
        _add_to_digest(digest, name, tensor)
    if digest.hexdigest() != wanted:
        raise ValueError("its content does not match its checksum")


def _start_digest(about: dict[str, Any]) -> Any:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode())


def _add_to_digest(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy())


def _keep_before(folder: Path) -> None:
    """Give the last checkpoint a second name, under which it survives the next one."""
    remove_leftovers(folder / BEFORE)
    second = folder / f".{BEFORE}.{os.getpid()}.part"
    try:
        second.unlink(missing_ok=True)
        os.link(folder / LAST, second)
        os.replace(second, folder / BEFORE)
        second.unlink(missing_ok=True)  # renaming has no effect if both are already names of the same file
    except OSError:  # without hard links, there is no last checkpoint until the next one is written
        os.replace(folder / LAST, folder / BEFORE)
