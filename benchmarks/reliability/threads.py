"""Measure how far the weights of a training run depend on the number of threads: print a table.

    python -m benchmarks.reliability.threads [--out evidence/threads]

Steps are large enough to run in several threads, also with odd sizes, and with rows that are encoded in
blocks. Differences are relative to the largest weight.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from osae.data.source import MemoryRows
from osae.devices import SMALL_WORK, single_thread
from osae.recipes import RECIPES, FromModes, Task, recipe
from osae.training.loop import train
from osae.training.member import Member

THREADS = (1, 2, 3, 4)
STEPS = 4


class Size(NamedTuple):
    """The size of an SAE and its batches."""

    width: int
    units: int
    k: int
    batch: int

    def __str__(self) -> str:
        return f"{self.units:,} units of width {self.width}, k {self.k}, batch {self.batch}"


SIZES = (Size(256, 1024, 16, 512), Size(101, 3001, 7, 700), Size(130, 8500, 20, 700))
MOST_MODES = 4000  # units that start from modes, which take long to find


def train_with(name: str, threads: int, size: Size = SIZES[0]) -> Tensor:
    """Return all weights after a few steps of a recipe, computed with that many threads."""
    width, units, k, batch = size
    assert batch * units * width >= SMALL_WORK
    source = torch.Generator().manual_seed(0)
    with single_thread():
        mixed = torch.randn(width, width, generator=source) / width**0.5
        rows = torch.randn(2 * batch, width, generator=source) @ mixed
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        member = Member(recipe(name, Task(width, units, k, STEPS * batch, batch=batch)), 0, rows)
        train([member], MemoryRows(rows))
        return torch.cat([tensor.flatten() for tensor in member.finish().state_dict().values()])
    finally:
        torch.set_num_threads(before)


def compare_threads(name: str, threads: Sequence[int] = THREADS, size: Size = SIZES[0]) -> float:
    """Return the largest difference between weights for these numbers of threads; 0 if identical."""
    first, *others = (train_with(name, count, size) for count in threads)
    return max(float((first - other).abs().max() / first.abs().max()) for other in others)


def format_difference(name: str, size: Size) -> str:
    """Return the largest difference for a recipe and a size."""
    starts = recipe(name, Task(*size[:3], STEPS * size.batch, batch=size.batch)).start
    if isinstance(starts, FromModes) and size.units > MOST_MODES:
        return "not tried"
    return f"{compare_threads(name, size=size):.1g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the table to this folder")
    out = parser.parse_args().out
    lines = [" | ".join(["| recipe", *map(str, SIZES)]) + " |", "| :-- |" + " --: |" * len(SIZES)]
    for name in RECIPES:
        lines.append(" | ".join([f"| `{name}`", *(format_difference(name, size) for size in SIZES)]) + " |")
        print(lines[-1], flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        listed = ", ".join(map(str, THREADS))
        about = f"Largest difference between weights after {STEPS} steps with {listed} threads."
        (out / "table.md").write_text(f"# Weights and threads\n\n{about}\n\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
