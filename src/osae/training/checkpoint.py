"""Checkpoints: the whole state of a training run in one file, written completely or not at all."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from osae.files import atomic_write
from osae.training.member import Member

SCHEMA = 1


def save(path: Path, members: Sequence[Member], done: int) -> None:
    """Write the members' weights, optimizers and counters after `done` steps to `path`."""
    tensors = {f"{m.name}/{name}": t.detach() for m in members for name, t in m.state().items()}
    about = {"schema": SCHEMA, "done": done, "scales": {m.name: m.scale for m in members}}
    with atomic_write(path) as beside:
        save_file(
            {n: t.clone().contiguous() for n, t in tensors.items()}, beside, {"osae": json.dumps(about)}
        )


@torch.no_grad()
def restore(path: Path, members: Sequence[Member]) -> int:
    """Put the members back to where they were when the file was written; return the finished steps."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("osae", "{}"))
            if about.get("schema") != SCHEMA:
                raise ValueError(f"it has schema {about.get('schema')}, and this release reads {SCHEMA}")
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
