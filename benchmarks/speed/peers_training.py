"""Run a peer's own trainer on given activations, in the peers' environment, and print a curve as JSON.

Learning rates are the libraries' defaults: 3e-4 for SAELens' runner, and 2e-4 / sqrt(K / 2^14) for sparsify
and dictionary_learning. This module needs torch and the peers, but not osae.
"""

import json
import sys
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.curves import Curve, draw_batches
from benchmarks.speed.peers import PACKAGES, DictionaryLearning, SAELens, Sparsify
from benchmarks.speed.pipe import Shape

ENTRIES = {
    "saelens-topk": lambda shape, x: SAELens(shape, x, nested=False, lr=3e-4),
    "saelens-matryoshka": lambda shape, x: SAELens(shape, x, nested=True, lr=3e-4),
    "sparsify-topk": lambda shape, x: Sparsify(shape, x, signum=False, lr=2e-4 / (shape.K / 2**14) ** 0.5),
    "dictionary_learning-topk": lambda shape, x: DictionaryLearning(shape, x, nested=False),
}


def follow(name: str, shape: Shape, rows: Tensor, held: Tensor, steps: int) -> Curve:
    """Train the entry and return its curve."""
    torch.manual_seed(0)
    entry = ENTRIES[name](shape, rows[: shape.B])
    curve = Curve(held, entry.reconstruct, shape.B, steps)
    for step, places in enumerate(draw_batches(rows, shape.B, steps)):
        entry.x = rows[places]
        entry.step()
        curve.after(step + 1)
    return curve


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # some libraries print when imported
    _, name, sizes, steps, data = sys.argv
    torch.set_num_threads(1)
    given = torch.load(data, weights_only=True)
    found = follow(name, Shape(*json.loads(sizes)), given["rows"], given["held"], int(steps))
    package = PACKAGES[name.partition("-")[0]]
    print(json.dumps({"version": f"{package} {version(package)}", "points": found.points}), file=answers)
