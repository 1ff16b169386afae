"""Measure how the cost of the exact ordered step grows with the dictionary, the code and the width.

    python -m benchmarks.speed.growth
    python -m benchmarks.speed.growth --busy    # on a busy machine: CPU time on one thread

One size doubles while the others stay fixed; time and extra memory are fitted as size^exponent over the
larger half of the sizes, where constant costs no longer matter. Writes `growth.json` and `growth.png`.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.speed import plots
from benchmarks.speed.pipe import Shape, Worker
from benchmarks.speed.results import add_out, describe_machine, write_results

SWEEPS = {
    "K": (Shape(B=512, d=256, K=0, k=32), [2**n for n in range(10, 18)]),
    "k": (Shape(B=1024, d=512, K=8192, k=0), [2**n for n in range(3, 9)]),
    "d": (Shape(B=512, d=0, K=8192, k=32), [2**n for n in range(7, 13)]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.growth", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="number of steps at each size (7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--busy", action="store_true", help="measure CPU time on one thread instead of elapsed time"
    )
    add_out(parser)
    asked = parser.parse_args(arguments)
    asked.clock, asked.threads = ("cpu", 1) if asked.busy else ("wall", asked.threads)
    sweeps = [measure_sweep(along, fixed, sizes, asked) for along, (fixed, sizes) in SWEEPS.items()]
    about = {"threads": asked.threads, "clock": asked.clock, "rounds": asked.rounds}
    write_results(about | {"machine": describe_machine(), "sweeps": sweeps}, asked.out / "growth.json")
    plots.plot_growth(sweeps, asked.out / "growth.png")
    print(f"Figure:  {asked.out / 'growth.png'}")
    return 0


def measure_sweep(
    along: str, fixed: Shape, sizes: Sequence[int], asked: argparse.Namespace
) -> dict[str, Any]:
    """Return the costs at each size of one dimension, and how they grow."""
    points = []
    for size in sizes:
        found = {"size": size, **measure_cost(fixed._replace(**{along: size}), asked)}
        points.append(found)
        print(
            f"{along}={size}: step {found['step_ms']:.1f} ms, product {found['floor_ms']:.1f} ms, "
            f"{found['peak_mb']:.0f} MB",
            flush=True,
        )
    growth = {
        key: fit_exponent(sizes, [point[key] for point in points])
        for key in ("step_ms", "floor_ms", "peak_mb")
    }
    print(f"{along}: time ~ {along}^{growth['step_ms']:.2f}, memory ~ {along}^{growth['peak_mb']:.2f}")
    others = ", ".join(f"{name}={value}" for name, value in fixed._asdict().items() if name != along)
    return {"along": along, "fixed": others, "points": points, "growth": growth}


def measure_cost(shape: Shape, asked: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of the step and of the bare product, alternating, and the step's extra memory."""
    start = [sys.executable, "benchmarks.speed.ours"]
    with (
        Worker(*start, "osae-exact", shape, asked.threads, asked.clock) as exact,
        Worker(*start, "floor", shape, asked.threads, asked.clock) as floor,
    ):
        exact.ask("version"), floor.ask("version")  # both have warmed up
        rounds = [(exact.ask("step")["ms"], floor.ask("step")["ms"]) for _ in range(asked.rounds)]
        steps, products = zip(*rounds, strict=True)
        return {"step_ms": median(steps), "floor_ms": median(products), **exact.ask("memory")}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the least-squares slope of log value against log size over the larger half of the sizes."""
    half = len(sizes) // 2
    x = [math.log(size) for size in sizes[half:]]
    y = [math.log(max(value, 1e-9)) for value in values[half:]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


if __name__ == "__main__":
    sys.exit(main())
