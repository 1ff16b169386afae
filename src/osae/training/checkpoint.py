"""Checkpoints: the whole state of a training run in one file, written completely or not at all.

The last two are kept. Each carries a digest of its content: if the last one is damaged, the run is resumed
from the one before it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def save(folder: Path, members: Sequence[Member], done: int) -> None:
    """Write the members' weights, optimizers and counters after `done` steps; keep the checkpoint before."""
    tensors = {f"{m.name}/{name}": t.detach() for m in members for name, t in m.state().items()}
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    about: dict[str, Any] = {"schema": SCHEMA, "done": done, "scales": {m.name: m.scale for m in members}}
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
    digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy())


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
