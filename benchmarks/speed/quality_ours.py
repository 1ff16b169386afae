"""Run our trainer on given activations, in its own process, and print a curve as JSON."""

import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.curves import Curve, load_rows
from benchmarks.speed.pipe import Shape
from benchmarks.speed.worker import TINY
from osae.data.source import MemoryRows
from osae.prefix import Mixed
from osae.recipes import Recipe, Task, recipe
from osae.training.loop import train
from osae.training.member import Member

BLOCK = 2**16  # rows in a block: about as many as `osae train` reads at once at this width
RECIPES = {
    "osae-exact": "osae",
    "osae-aligned": "osae-aligned",
    "osae-aligned-95": "osae-aligned",
    "osae-topk": "topk",
    "osae-topk-constant-k": "topk",
    "osae-topk-aligned-constant-k": "topk-aligned",
}


class Blocks(MemoryRows):
    """Rows in memory, cut into blocks like those that are read from a disk in the background."""

    @property
    def rows(self) -> int:
        return min(BLOCK, len(self._rows))

    def block(self, index: int, seed: int = 0) -> Tensor:
        start = index * self.rows % (len(self._rows) // self.rows * self.rows)
        return self._rows[start : start + self.rows]


def follow(name: str, shape: Shape, rows: Tensor, held: Tensor, steps: int, factor: float = 1.0) -> Curve:
    """Train the recipe of an entry, at `factor` times its learning rate, and return its curve."""
    few = torch.randn(10 * TINY.B, TINY.d, generator=torch.Generator().manual_seed(0))
    make_member(name, TINY, few, steps, factor).advance(few[: TINY.B], 0)  # imports libraries, as for peers
    source, started = Blocks(rows), time.process_time()
    member = make_member(name, shape, source.block(0), steps, factor)

    def reconstruct(x: Tensor) -> Tensor:
        return member.sae(x * member.scale).reconstruction / member.scale

    curve = Curve(held, reconstruct, shape, steps, started)
    train([member], source, after=[lambda done, _: curve.after(done)])
    return curve


def make_member(name: str, shape: Shape, rows: Tensor, steps: int, factor: float) -> Member:
    """Start the SAE of an entry, from the first rows."""
    task = Task(shape.d, shape.K, shape.k, samples=steps * shape.B, batch=shape.B)
    made = keep_k(RECIPES[name], task) if name.endswith("constant-k") else recipe(RECIPES[name], task)
    if name.endswith("-95"):
        assert isinstance(made.prefix, Mixed)
        made = replace(made, prefix=replace(made.prefix, full=0.95))
    return Member(replace(made, lr=replace(made.lr, peak=factor * made.lr.peak)), 0, rows)


def keep_k(name: str, task: Task) -> Recipe:
    """Return a recipe with `--start noise --set k_warmup=null --set lr.decay=0.2` (docs/consistency.md)."""
    made = recipe(name, task, start="noise")
    return replace(made, k_warmup=None, lr=replace(made.lr, decay=0.2))


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    _, name, sizes, steps, factor, data = sys.argv
    torch.set_num_threads(1)
    shape = Shape(*json.loads(sizes))
    found = follow(name, shape, *load_rows(data, int(steps) * shape.B), int(steps), float(factor))
    print(json.dumps(found.report(f"osae {version('osae')}")), file=answers)
