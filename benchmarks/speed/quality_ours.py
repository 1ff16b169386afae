"""Run our trainer on given activations, in its own process, and print a curve as JSON."""

import json
import sys
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.curves import Curve
from benchmarks.speed.pipe import Shape
from osae.data.source import MemoryRows
from osae.recipes import Task, recipe
from osae.training.loop import train
from osae.training.member import Member

RECIPES = {"osae-exact": "osae", "osae-topk": "topk"}


def follow(name: str, shape: Shape, rows: Tensor, held: Tensor, steps: int) -> Curve:
    """Train the recipe of an entry and return its curve."""
    task = Task(shape.d, shape.K, shape.k, samples=steps * shape.B, batch=shape.B)
    member = Member(recipe(RECIPES[name], task), 0, rows)

    def reconstruct(x: Tensor) -> Tensor:
        return member.sae(x * member.scale).reconstruction / member.scale

    curve = Curve(held, reconstruct, shape.B, steps)
    train([member], MemoryRows(rows), after=[lambda done, _: curve.after(done)])
    return curve


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    _, name, sizes, steps, data = sys.argv
    torch.set_num_threads(1)
    given = torch.load(data, weights_only=True)
    found = follow(name, Shape(*json.loads(sizes)), given["rows"], given["held"], int(steps))
    print(json.dumps({"version": f"osae {version('osae')}", "points": found.points}), file=answers)
