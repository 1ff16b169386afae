"""Run our trainer on given activations, in its own process, and print a curve as JSON."""

import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.curves import Curve
from benchmarks.speed.pipe import Shape
from osae.data.source import MemoryRows
from osae.recipes import Task, recipe
from osae.training.loop import train
from osae.training.member import Member

BLOCK = 2**16  # rows in a block: about as many as `osae train` reads at once at this width
RECIPES = {"osae-exact": "osae", "osae-topk": "topk"}


class Blocks(MemoryRows):
    """Rows in memory, mixed once and cut into blocks like those that are read from a disk."""

    def __init__(self, rows: Tensor):
        super().__init__(rows)
        self._order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))

    @property
    def rows(self) -> int:
        return min(BLOCK, len(self._rows))

    def block(self, index: int, seed: int = 0) -> Tensor:
        start = index * self.rows % (len(self._rows) // self.rows * self.rows)
        return self._rows[self._order[start : start + self.rows]]


def follow(name: str, shape: Shape, rows: Tensor, held: Tensor, steps: int, factor: float = 1.0) -> Curve:
    """Train the recipe of an entry, at `factor` times its learning rate, and return its curve."""
    task = Task(shape.d, shape.K, shape.k, samples=steps * shape.B, batch=shape.B)
    made = recipe(RECIPES[name], task)
    made = replace(made, lr=replace(made.lr, peak=factor * made.lr.peak))
    source, started = Blocks(rows), time.process_time()
    member = Member(made, 0, source.block(0))

    def reconstruct(x: Tensor) -> Tensor:
        return member.sae(x * member.scale).reconstruction / member.scale

    curve = Curve(held, reconstruct, shape.B, steps, started)
    train([member], source, after=[lambda done, _: curve.after(done)])
    return curve


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    _, name, sizes, steps, factor, data = sys.argv
    torch.set_num_threads(1)
    given = torch.load(data, weights_only=True)
    found = follow(name, Shape(*json.loads(sizes)), given["rows"], given["held"], int(steps), float(factor))
    print(json.dumps({"version": f"osae {version('osae')}", "points": found.points}), file=answers)
