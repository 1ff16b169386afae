"""Measure a step while k is warmed up, in multiples of the bare encoder product: each stage, and their mean.

    python -m benchmarks.speed.warmup           # CPU time on one thread, both small dictionaries

The k of a TopK recipe falls linearly to its target over the first part of training. Steps are timed at a few
values of k, evenly spaced over the fall, so that the trapezoidal rule gives the mean of all steps.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.speed.pipe import Shape, Worker
from benchmarks.speed.results import add_out, describe_machine, write_results
from benchmarks.speed.run import FLOORS
from osae.recipes import Task, recipe

SHAPES = (Shape(2048, 576, 512, 24), Shape(2048, 576, 1024, 32))
STAGES = 5
EXACT = "osae-exact"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.warmup", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    add_out(parser)
    asked = parser.parse_args(arguments)
    cases = [measure_case(shape, asked.rounds) for shape in SHAPES]
    for case in cases:
        stages = ", ".join(f"{stage['k']}: {stage['times_floor']:.2f}" for stage in case["stages"])
        print(f"{Shape(**case['shape'])}: {case['mean']:.2f} products on average ({stages})")
    write_results(
        {"rounds": asked.rounds, "machine": describe_machine(), "cases": cases}, asked.out / "warmup.json"
    )
    return 0


def measure_case(shape: Shape, rounds: int) -> dict[str, Any]:
    """Return the cost of a step at every stage of the warm-up that ends at the k of this shape."""
    stages = choose_stages(shape)
    with ExitStack() as stack:

        def start(name: str, k: int) -> Worker:
            asked = shape._replace(k=k)
            return stack.enter_context(Worker(sys.executable, "benchmarks.speed.ours", name, asked, 1, "cpu"))

        workers = [*(start(name, shape.k) for name in FLOORS), *(start(EXACT, k) for k in stages)]
        times = [[worker.ask("step")["ms"] for worker in workers] for _ in range(rounds)]
    floor, of_steps, *steps = (median(column) for column in zip(*times, strict=True))
    costs = [step / floor for step in steps]
    found = [{"k": k, "times_floor": cost} for k, cost in zip(stages, costs, strict=True)]
    return {
        "shape": shape._asdict(),
        "floor_ms": floor,
        "floor_of_steps_ms": of_steps,
        "stages": found,
        "mean": integrate(costs),
    }


def choose_stages(shape: Shape) -> list[int]:
    """Return values of k, evenly spaced from the first of the default recipe's warm-up to the last."""
    warmup = recipe("topk", Task(shape.d, shape.K, shape.k, samples=1, batch=1)).k_warmup
    assert warmup is not None
    first = warmup.start or shape.K
    return [round(first + (shape.k - first) * i / (STAGES - 1)) for i in range(STAGES)]


def integrate(costs: Sequence[float]) -> float:
    """Return the mean over a linear fall, by the trapezoidal rule."""
    return (sum(costs) - (costs[0] + costs[-1]) / 2) / (len(costs) - 1)


def format_markdown(result: Mapping[str, Any]) -> str:
    """Return a table with one row per shape."""
    head = ("B, d, K, k", *(f"{i} % of it" for i in range(0, 101, 100 // (STAGES - 1))), "mean")
    head = (*head, "mean / oneDNN's product")
    lines = [f"| {' | '.join(head)} |", f"| :-- |{' --: |' * (len(head) - 1)}"]
    for case in result["cases"]:
        stages = [f"{stage['times_floor']:.2f} (k = {stage['k']})" for stage in case["stages"]]
        of_steps = case["mean"] * case["floor_ms"] / case["floor_of_steps_ms"]
        cells = [", ".join(str(n) for n in case["shape"].values()), *stages]
        cells += [f"{case['mean']:.2f}", f"{of_steps:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
