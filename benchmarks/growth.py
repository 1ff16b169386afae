"""What the exact ordered step costs as the dictionary, the code and the width grow.

    python -m benchmarks.growth

One size doubles while the others stay; time and extra memory are fitted as size^exponent over the larger
half of the sizes, where what does not grow has faded. Writes `growth.json` and `growth.png`.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import plots
from benchmarks.pipe import ROOT, Shape, Worker
from osae.files import atomic_write

SWEEPS = {
    "K": (Shape(B=512, d=256, K=0, k=32), [2**n for n in range(10, 18)]),
    "k": (Shape(B=1024, d=512, K=8192, k=0), [2**n for n in range(3, 9)]),
    "d": (Shape(B=512, d=0, K=8192, k=32), [2**n for n in range(7, 13)]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="steps at each size (7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench", metavar="DIR")
    asked = parser.parse_args(arguments)
    sweeps = [sweep(along, fixed, sizes, asked) for along, (fixed, sizes) in SWEEPS.items()]
    asked.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(asked.out / "growth.json") as path:
        path.write_text(
            json.dumps({"schema": 1, "threads": asked.threads, "sweeps": sweeps}, indent=2) + "\n"
        )
    plots.growth(sweeps, asked.out / "growth.png")
    print(f"Results: {asked.out / 'growth.json'}\nFigure:  {asked.out / 'growth.png'}")
    return 0


def sweep(along: str, fixed: Shape, sizes: Sequence[int], asked: argparse.Namespace) -> dict[str, Any]:
    """The costs at each size of one dimension, and how they grow."""
    points = []
    for size in sizes:
        found = {"size": size, **cost(fixed._replace(**{along: size}), asked)}
        points.append(found)
        print(
            f"{along}={size}: step {found['step_ms']:.1f} ms, product {found['floor_ms']:.1f} ms, "
            f"{found['peak_mb']:.0f} MB",
            flush=True,
        )
    growth = {
        key: exponent(sizes, [point[key] for point in points]) for key in ("step_ms", "floor_ms", "peak_mb")
    }
    print(f"{along}: time ~ {along}^{growth['step_ms']:.2f}, memory ~ {along}^{growth['peak_mb']:.2f}")
    others = ", ".join(f"{name}={value}" for name, value in fixed._asdict().items() if name != along)
    return {"along": along, "fixed": others, "points": points, "growth": growth}


def cost(shape: Shape, asked: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the step and of the bare product, asked in turns, and the step's extra memory."""
    start = [sys.executable, "benchmarks.ours"]
    with (
        Worker(*start, "osae-exact", shape, asked.threads) as exact,
        Worker(*start, "floor", shape, asked.threads) as floor,
    ):
        exact.ask("version"), floor.ask("version")  # both have warmed up
        rounds = [(exact.ask("step")["ms"], floor.ask("step")["ms"]) for _ in range(asked.rounds)]
        steps, products = zip(*rounds, strict=True)
        return {"step_ms": median(steps), "floor_ms": median(products), **exact.ask("memory")}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope of log value against log size over the larger half of the sizes."""
    half = len(sizes) // 2
    x = [math.log(size) for size in sizes[half:]]
    y = [math.log(max(value, 1e-9)) for value in values[half:]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


if __name__ == "__main__":
    sys.exit(main())
