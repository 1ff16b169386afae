"""Measure how far the weights of a training run depend on the number of threads: print a table.

    python -m benchmarks.reliability.threads [--out evidence/threads]

Steps are large enough to run in several threads. Differences are relative to the largest weight.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from osae.data.source import MemoryRows
from osae.devices import SMALL_WORK
from osae.recipes import RECIPES, Task, recipe
from osae.training.loop import train
from osae.training.member import Member

THREADS = (1, 2, 3, 4)
WIDTH, UNITS, K, BATCH, STEPS = 256, 1024, 16, 512, 6


def train_with(name: str, threads: int) -> Tensor:
    """Return all weights after a few steps of a recipe, computed with that many threads."""
    assert BATCH * UNITS * WIDTH >= SMALL_WORK
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source = torch.Generator().manual_seed(0)
        mixed = torch.randn(WIDTH, WIDTH, generator=source) / WIDTH**0.5
        rows = torch.randn(2 * BATCH, WIDTH, generator=source) @ mixed
        member = Member(recipe(name, Task(WIDTH, UNITS, K, STEPS * BATCH, batch=BATCH)), 0, rows)
        train([member], MemoryRows(rows))
        return torch.cat([tensor.flatten() for tensor in member.finish().state_dict().values()])
    finally:
        torch.set_num_threads(before)


def compare_threads(name: str, threads: Sequence[int] = THREADS) -> float:
    """Return the largest difference between weights for these numbers of threads; 0 if identical."""
    first, *others = (train_with(name, count) for count in threads)
    return max(float((first - other).abs().max() / first.abs().max()) for other in others)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the table to this folder")
    out = parser.parse_args().out
    lines = [f"| recipe | largest difference, {', '.join(map(str, THREADS))} threads |", "| :-- | --: |"]
    for name in RECIPES:
        lines.append(f"| `{name}` | {compare_threads(name):.1g} |")
        print(lines[-1], flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.md").write_text("# Weights and threads\n\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
