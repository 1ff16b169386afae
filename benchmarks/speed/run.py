"""`make bench`: time every library's training step on the same batch, and the bare encoder product.

    python -m benchmarks.speed.run                 # all shapes, ours and the peers
    python -m benchmarks.speed.run --no-peers      # only ours
    python -m benchmarks.speed.run --quick         # few rounds
    python -m benchmarks.speed.run --busy          # on a busy machine: CPU time on one thread
    python -m benchmarks.speed.run --shape 2048,512,65536,80 --no-peers

Each entry runs in its own process and waits while the others work. In every round, each part of each entry is
timed once, in rotating order; the numbers are medians over the rounds.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import ROOT
from benchmarks.speed import plots
from benchmarks.speed.pipe import Shape, Worker
from benchmarks.speed.results import add_out, describe_machine, write_results

SHAPES = (
    Shape(2048, 512, 4096, 80),
    Shape(2048, 576, 4096, 64),
    Shape(2048, 512, 16384, 64),
    Shape(1024, 2304, 16384, 80),
    Shape(2048, 576, 1024, 32),  # small dictionaries
    Shape(2048, 576, 512, 24),
    Shape(2048, 576, 512, 128),  # the last during the warm-up of k
)
FLOORS = ("floor", "floor-of-steps")  # the encoder's product by torch.mm, and as our steps compute it
OURS = ("osae-topk", "osae-topk-decoded", "osae-matryoshka", "osae-exact")
PEERS = (
    "saelens-topk",
    "saelens-matryoshka",
    "sparsify-topk",
    "sparsify-topk-signum",
    "dictionary_learning-topk",
    "dictionary_learning-matryoshka",
)
PARTS = ("forward", "forward_backward", "step")
Times = dict[str, dict[str, list[float]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    asked = _parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    cases, versions = [], {}
    result = {
        "threads": asked.threads,
        "clock": asked.clock,
        "rounds": asked.rounds,
        "machine": describe_machine(),
        "versions": versions,
        "cases": cases,
    }
    for shape in asked.shape or SHAPES:
        cases.append(measure_case(shape, asked, versions))
        console.print(make_table(cases[-1]))
        write_results(result, asked.out / "bench.json")
    plots.plot_steps(result, asked.out / "bench.png")
    for line in state_verdicts(cases):
        console.print(line, highlight=False)
    console.print(f"Figure:  {asked.out / 'bench.png'}", highlight=False)
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.run", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--shape",
        type=_parse_shape,
        action="append",
        metavar="B,d,K,k",
        help="shape to time instead of the default shapes; repeatable",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds (5)")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument(
        "--no-peers", action="store_true", help="only our entries, without the peers' environment"
    )
    parser.add_argument(
        "--peers-python", type=Path, default=ROOT / ".venv-interop/bin/python", metavar="PATH"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--busy", action="store_true", help="measure CPU time on one thread instead of elapsed time"
    )
    add_out(parser)
    asked = parser.parse_args(arguments)
    asked.clock, asked.threads = ("cpu", 1) if asked.busy else ("wall", asked.threads)
    asked.rounds = asked.rounds or (2 if asked.quick else 5)
    if not asked.no_peers and not asked.peers_python.exists():
        parser.error(f"no {asked.peers_python}: run `make bench`, which sets it up, or give --no-peers.")
    return asked


def _parse_shape(text: str) -> Shape:
    return Shape(*(int(number) for number in text.split(",")))


# --- measuring --------------------------------------------------------------------------------------


def measure_case(shape: Shape, asked: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    """Return the medians of every entry at one shape; add the entries' versions to `versions`."""
    with ExitStack() as stack:
        workers = {}
        for name in (*FLOORS, *OURS, *(() if asked.no_peers else PEERS)):
            python, module = (
                (str(asked.peers_python), "benchmarks.speed.peers")
                if name in PEERS
                else (sys.executable, "benchmarks.speed.ours")
            )
            worker = stack.enter_context(Worker(python, module, name, shape, asked.threads, asked.clock))
            try:
                versions[name] = worker.ask("version")  # answers after its warm-up
                workers[name] = worker
            except RuntimeError as error:
                print(f"skipped: {error}", file=sys.stderr)
        times = time_parts(workers, asked.rounds)
        floor, of_steps = (median(times.pop(name)["step"]) for name in FLOORS)
        entries = [
            summarize(name, parts, floor) | workers[name].ask("memory") for name, parts in times.items()
        ]
    return {
        "shape": shape._asdict(),
        "floor_ms": floor,
        "floor_of_steps_ms": of_steps,
        "entries": entries,
    }


def time_parts(workers: Mapping[str, Worker], rounds: int) -> Times:
    """Return milliseconds of each part of each entry, round by round."""
    times: Times = {name: {part: [] for part in PARTS} for name in workers}
    order = list(workers)
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            for part in PARTS if name not in FLOORS else ("step",):
                times[name][part].append(workers[name].ask(part)["ms"])
    return times


def summarize(name: str, parts: Mapping[str, list[float]], floor: float) -> dict[str, Any]:
    """Return an entry's medians, and the fastest and slowest of its steps."""
    medians = {f"{part}_ms": median(numbers) for part, numbers in parts.items()}
    return {
        "name": name,
        **medians,
        "times_floor": medians["step_ms"] / floor,
        "range_ms": [min(parts["step"]), max(parts["step"])],
    }


# --- reporting --------------------------------------------------------------------------------------


def make_table(found: Mapping[str, Any]) -> Table:
    """Return one case as a table, with the fastest entry first."""
    title = (
        f"{Shape(**found['shape'])}: the bare encoder product takes {found['floor_ms']:.1f} ms, "
        f"{found['floor_of_steps_ms']:.1f} in our steps"
    )
    made = Table(title=title, title_justify="left")
    made.add_column("entry")
    for column in ("forward", "+ backward", "step ms", "range", "x floor", "extra MB"):
        made.add_column(column, justify="right")
    for entry in sorted(found["entries"], key=lambda entry: entry["step_ms"]):
        low, high = entry["range_ms"]
        made.add_row(
            entry["name"],
            f"{entry['forward_ms']:.1f}",
            f"{entry['forward_backward_ms']:.1f}",
            f"{entry['step_ms']:.1f}",
            f"{low:.0f}-{high:.0f}",
            f"{entry['times_floor']:.2f}",
            f"{entry['peak_mb']:.0f}",
        )
    return made


def state_verdicts(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe how the exact ordered step compares, case by case."""
    lines = []
    for found in cases:
        step = {entry["name"]: entry["step_ms"] for entry in found["entries"]}
        exact = step["osae-exact"]
        own = min(step["osae-topk"], step["osae-topk-decoded"])
        floors = (
            f"{exact / found['floor_ms']:.2f} x the floor ({exact / found['floor_of_steps_ms']:.2f} x ours)"
        )
        said = [floors, f"{exact / own:.2f} x our fastest TopK"]
        for kind in ("matryoshka", "topk"):
            theirs = {name: ms for name, ms in step.items() if name in PEERS and f"-{kind}" in name}
            if theirs:
                fastest = min(theirs, key=theirs.__getitem__)
                said.append(f"{theirs[fastest] / exact:.1f} times as fast as {fastest}")
        lines.append(f"{Shape(**found['shape'])}: the exact ordered step is {', '.join(said)}.")
    return lines


if __name__ == "__main__":
    sys.exit(main())
