"""Checkpoints: the whole state of a training in one file that is whole or absent."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from osae.files import atomic_write
from osae.training.member import Member

SCHEMA = 1


def save(path: Path, members: Sequence[Member], done: int) -> None:
    """The members' weights, optimizers and counters after `done` steps, at `path`."""
    tensors = {f"{m.name}/{name}": t.detach() for m in members for name, t in m.state().items()}
    about = {"schema": SCHEMA, "done": done, "scales": {m.name: m.scale for m in members}}
    with atomic_write(path) as beside:
        save_file(
            {n: t.clone().contiguous() for n, t in tensors.items()}, beside, {"osae": json.dumps(about)}
        )


@torch.no_grad()
def restore(path: Path, members: Sequence[Member]) -> int:
    """The number of finished steps, after the members are put back to where the file says."""
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {}).get("osae", "{}"))
        if about.get("schema") != SCHEMA:
            raise ValueError(f"{path} has schema {about.get('schema')}: this release reads {SCHEMA}.")
        for member in members:
            member.scale = about["scales"][member.name]
            prefix = f"{member.name}/"
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            member.restore({name.removeprefix(prefix): file.get_tensor(name) for name in names})
    return about["done"]
