"""Run a peer's own trainer on given activations, in the peers' environment, and print a curve as JSON.

Learning rates are multiples of the libraries' defaults, as their installed sources have them: 3e-4 for
SAELens' runner; for sparsify 5e-3 / sqrt(K / 2^14) with signum, its default, and 2e-4 / sqrt(K / 2^14) with
Adam, which warms up and then decays linearly; 2e-4 / sqrt(K / 2^14) after a warm-up for dictionary_learning.
SAELens and dictionary_learning decay over the last fifth of a run, as in the former's tutorials and the
latter's demo; without it, they explain less. Warm-ups of 1,000 steps are shortened to a tenth of the run, if
that is less. This module needs torch and the peers, but not osae.
"""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.curves import Curve, draw_batches, load_rows
from benchmarks.speed.peers import PACKAGES, DictionaryLearning, SAELens, Sparsify
from benchmarks.speed.pipe import Shape
from benchmarks.speed.worker import TINY

WARMUP = 1000  # steps, in sparsify with Adam and in dictionary_learning


def make_entry(name: str, shape: Shape, x: Tensor, steps: int, factor: float) -> Any:
    """Return the entry with `factor` times its library's default learning rate, for a run of `steps`."""
    scaled, warmup = factor / (shape.K / 2**14) ** 0.5, min(WARMUP, steps // 10)
    match name:
        case "saelens-topk" | "saelens-matryoshka":
            return SAELens(shape, x, nested=name.endswith("matryoshka"), lr=3e-4 * factor, steps=steps)
        case "sparsify-topk":
            return Sparsify(shape, x, signum=False, lr=2e-4 * scaled, plan=(warmup, steps))
        case "sparsify-topk-signum":
            return Sparsify(shape, x, signum=True, lr=5e-3 * scaled)
        case "dictionary_learning-topk":
            return DictionaryLearning(shape, x, nested=False, lr=2e-4 * scaled, plan=(warmup, steps))
    raise ValueError(f"entry {name!r} is unknown.")


def follow(name: str, shape: Shape, rows: Tensor, held: Tensor, steps: int, factor: float = 1.0) -> Curve:
    """Train the entry and return its curve."""
    torch.manual_seed(0)
    make_entry(name, TINY, torch.randn(TINY.B, TINY.d), steps, factor).step()  # imports libraries
    started = time.process_time()
    entry = make_entry(name, shape, rows[: shape.B], steps, factor)
    curve = Curve(held, entry.reconstruct, shape, steps, started)
    for step, places in enumerate(draw_batches(rows, shape.B, steps)):
        entry.x = rows[places]
        entry.step()
        curve.after(step + 1)
    return curve


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # some libraries print when imported
    _, name, sizes, steps, factor, data = sys.argv
    torch.set_num_threads(1)
    shape = Shape(*json.loads(sizes))
    found = follow(name, shape, *load_rows(data, int(steps) * shape.B), int(steps), float(factor))
    package = PACKAGES[name.partition("-")[0]]
    print(json.dumps(found.report(f"{package} {version(package)}")), file=answers)
