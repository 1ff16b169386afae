"""Measure steps per second of one process and of several on the same batches, with one thread each.

    python -m benchmarks.speed.ranks [--processes 2] [--out evidence/ranks]

torchrun starts the processes. Each turn consists of a few steps of the first process alone while the others
wait, a few with the rows of every batch split between processes, and a few with the units split between them.
The shortest time of a turn counts, since other work on the machine can only add to it. Efficiency is the
speed of all processes divided by that of one and by their number. On a busy machine, processes wait for cores
most of the time; their CPU time hardly depends on that. Efficiency in CPU time is that of one process divided
by the sum of all: what is left when no process ever waits for another.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WIDTH, K = 512, 40
SIZES = ((4096, 2048), (16384, 2048), (4096, 8192))  # units, rows in a batch
WAYS = ("one process", "rows shared", "units shared")
COLUMNS = ("units", "rows in a batch", *(f"{way}, steps/s" for way in WAYS))
COLUMNS += tuple(f"{kind}, {way}" for kind in ("efficiency", "in CPU time") for way in WAYS[1:])
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' --: |' * len(COLUMNS)}\n"


class Cost(NamedTuple):
    """The shortest time of a step, and its least CPU time over all processes together, in seconds."""

    elapsed: float = float("inf")
    cpu: float = float("inf")


def time_ways(units: int, batch: int, steps: int, turns: int) -> dict[str, Cost]:
    """Return the cost of a step in each way; all processes call this."""
    import torch

    from osae.ranks import ALONE, open_mesh
    from osae.recipes import RECIPES, Task
    from osae.training.member import Member

    rows = torch.randn(2 * batch, WIDTH, generator=torch.Generator().manual_seed(0))
    recipe = RECIPES["osae-from-noise"](Task(WIDTH, units, K, samples=100_000 * batch, batch=batch))
    by_rows, by_units = open_mesh(), open_mesh(int(os.environ["WORLD_SIZE"]))
    everyone = by_rows.everyone
    meshes = dict(zip(WAYS, (ALONE, by_rows, by_units), strict=True))
    members = {way: Member(recipe, 0, rows, mesh=mesh) for way, mesh in meshes.items()}
    least = dict.fromkeys(WAYS, Cost())
    late = recipe.steps // 2  # after the warm-up of k
    for turn in range(turns + 1):  # the first compiles
        for way, member in members.items():
            everyone.wait()
            started, used = time.perf_counter(), time.process_time()
            for step in range(0 if way == WAYS[0] and everyone.rank > 0 else steps):
                member.advance(rows[step % 2 * batch :][:batch], late + turn * steps + step)
            elapsed, used = time.perf_counter() - started, time.process_time() - used
            cpu = float(everyone.sum_(torch.tensor(used, dtype=torch.float64)))
            if turn:
                best = least[way]
                least[way] = Cost(min(best.elapsed, elapsed / steps), min(best.cpu, cpu / steps))
    return least


def format_row(units: int, batch: int, least: dict[str, Cost], processes: int) -> str:
    """Return a row of the table."""
    one, *several = (least[way] for way in WAYS)
    speeds = [f"{1 / cost.elapsed:.3g}" for cost in (one, *several)]
    shares = [f"{one.elapsed / cost.elapsed / processes:.2f}" for cost in several]
    work = [f"{one.cpu / cost.cpu:.2f}" for cost in several]
    return f"| {units:,} | {batch:,} | {' | '.join([*speeds, *shares, *work])} |\n"


def work(steps: int, turns: int, out: Path | None) -> None:
    """Time all sizes; the first process prints the table."""
    import torch

    from osae.ranks import joined

    torch.set_num_threads(1)
    first, processes = os.environ["RANK"] == "0", int(os.environ["WORLD_SIZE"])
    before, lines = os.getloadavg()[0], []
    with joined():
        for units, batch in SIZES:
            least = time_ways(units, batch, steps, turns)
            if first:
                lines.append(format_row(units, batch, least, processes))
                print(lines[-1], end="", flush=True)
    load = (
        f"Load of the machine ({os.cpu_count()} cores): {before:.1f} before, {os.getloadavg()[0]:.1f} after."
    )
    if first:
        print(load)
    if first and out is not None:
        out.mkdir(parents=True, exist_ok=True)
        about = (
            f"Width {WIDTH}, k = {K}, one thread each; the least of {turns} turns of {steps} steps. {load}"
        )
        text = f"# One process and {processes}\n\n{about}\n\n{HEAD}{''.join(lines)}"
        (out / "table.md").write_text(text)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="number of steps per turn")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--out", type=Path, help="write the table to this folder")
    asked = parser.parse_args(words)
    if "RANK" in os.environ:
        work(asked.steps, asked.turns, asked.out)
        return 0
    print(HEAD, end="", flush=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    given = ["-m", "benchmarks.speed.ranks", *(words if words is not None else sys.argv[1:])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    return subprocess.run([*torchrun, str(asked.processes), *given], env=os.environ | threads).returncode


if __name__ == "__main__":
    sys.exit(main())
