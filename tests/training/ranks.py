"""Several processes that train the same SAEs: `python -m tests.training.ranks OUT MESHES [CASE]`.

Every case is trained on a mesh of all processes and saved by the first of them.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from osae.config import alter
from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.dictionary import Aligned, Archetypal, Tied
from osae.model import SAE
from osae.ranks import ALONE, Mesh, joined, open_mesh
from osae.recipes import RECIPES, WORLD_RECIPES, Recipe, Task
from osae.sparsify import JumpReLU
from osae.training import checkpoint
from osae.training.finite import NotFinite
from osae.training.loop import train
from osae.training.member import Member

HALVES = ("osae", "world-batchtopk", "archetypal")  # also trained in two halves, on different meshes
HALF = 7
PRECISIONS = {"bf16": "bf16"}  # of the cases that are not in single precision
TASK = Task(width=12, units=18, k=3, samples=14 * 48, batch=48)


def make_cases() -> dict[str, Recipe]:
    """Every recipe, and every choice that no recipe makes."""
    on_worlds = {f"world-{name}": make(TASK) for name, make in WORLD_RECIPES.items()}
    on_activations = {name: make(TASK) for name, make in RECIPES.items()}
    # units die and come back within a few steps; and gradients that are nothing but rounding errors, as those
    # of principal directions at first, are not blown up to full steps, with the signs of those errors
    # a fixed rate: the default one is large for so small a width, and carries rounding along
    changes = {"revival.dead_after": 100, "revival.k": 2, "adam.eps": 1e-3, "lr.peak": 4e-3}
    on_activations = {name: alter(made, changes) for name, made in on_activations.items()}
    plain = on_worlds["world-osae"]
    others = {
        "jumprelu": replace(plain, sae=replace(plain.sae, sparsifier=JumpReLU(0.01)), k_warmup=None),
        "tied": replace(plain, dictionary=Tied()),
        "aligned": replace(plain, dictionary=Aligned()),
        "archetypal": replace(plain, dictionary=Archetypal(points=30), revival=None),
        "clipped": alter(on_activations["topk"], {"adam.clip": 0.3}),
        "bf16": on_activations["topk"],
    }
    return on_worlds | on_activations | others


def draw_rows() -> torch.Tensor:
    """The rows that all train on."""
    return SparseWorld(TASK.width, TASK.units, TASK.k, samples=600).draw("train").x


def train_case(name: str, mesh: Mesh = ALONE) -> SAE:
    """The SAE of a case after its few steps."""
    precision = PRECISIONS.get(name, "fp32")
    member = Member(make_cases()[name], 0, draw_rows(), mesh=mesh, precision=precision)
    train([member], MemoryRows(draw_rows()))
    return member.finish()


class Enough(Exception):
    """Raised to stop training."""


def begin(recipe: Recipe, folder: Path, mesh: Mesh = ALONE) -> None:
    """Train half of the steps, up to a checkpoint in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    member = Member(recipe, 0, draw_rows(), mesh=mesh)

    def stop(done: int, _: object) -> None:
        if done == HALF:
            with checkpoint.CheckpointWriter(folder, mesh=mesh) as writer:
                writer.save([member], done)
            raise Enough

    with contextlib.suppress(Enough):
        train([member], MemoryRows(draw_rows()), after=[stop])
    mesh.everyone.wait()


def end(recipe: Recipe, folder: Path, mesh: Mesh = ALONE) -> SAE:
    """Train the other half, from the checkpoint in the folder."""
    member = Member(recipe, 0, draw_rows(), mesh=mesh)
    assert checkpoint.restore(folder, [member], print) == HALF
    train([member], MemoryRows(draw_rows()), done=HALF)
    return member.finish()


def check_that_all_stop(mesh: Mesh) -> None:
    """If the loss of the last rank is NaN, all ranks stop."""
    member = Member(make_cases()["topk"], 0, draw_rows(), mesh=mesh)
    real = member.terms
    factor = float("nan") if mesh.everyone.rank == mesh.everyone.size - 1 else 1.0
    member.terms = lambda x, step: (found := real(x, step))._replace(total=found.total * factor)
    try:
        train([member], MemoryRows(draw_rows()))
    except NotFinite:
        return
    raise AssertionError(f"rank {mesh.everyone.rank} went on")


def launch(processes: int, *words: str) -> None:
    """Run a module in several processes that find each other, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    there = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *words],
            env={**os.environ, **there, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    assert not any(process.returncode for process in started), "\n".join(errors)


def find_workers(parent: int) -> list[int]:
    """The processes that another one has started, in their order."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(path.parent.name))
    return sorted(found)


def main(out: str, meshes: str, *names: str) -> None:
    """Train the cases, by default all, on a mesh for each number of ranks that share a dictionary."""
    torch.set_num_threads(1)
    with joined():
        for dictionary_ranks in meshes.split(","):
            mesh = open_mesh(int(dictionary_ranks))
            train_cases(mesh, Path(out) / dictionary_ranks, Path(out) / "given", names)
            check_that_all_stop(mesh)


def train_cases(mesh: Mesh, out: Path, given: Path, names: Sequence[str]) -> None:
    """Train these cases, or else all of them, and the other halves of those that were given."""
    for name, recipe in make_cases().items():
        if not names or name in names:
            save(train_case(name, mesh), out / name, mesh)
        if name in HALVES and not names:
            begin(recipe, out / "begun" / name, mesh)
            save(end(recipe, given / name, mesh), out / "ended" / name, mesh)


def save(sae: SAE, folder: Path, mesh: Mesh) -> None:
    """Save the SAE once."""
    if mesh.is_first:
        sae.save(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # as `osae.cli.run` ends a rank
