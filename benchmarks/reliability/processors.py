"""Measure how far training depends on the processor: print a table, and write it with --out.

    python -m benchmarks.reliability.processors [--out evidence/processors]

Other processors are emulated by restricting the instructions that torch, MKL and numba may use, each in its
own process. The first setting uses everything that this processor supports. Differences are relative to the
largest weight, after a few steps and after many; stability is the mean cosine of matched units at the end.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

RECIPES = ("topk", "osae")
FEW, MANY = 5, 400
WIDTH, UNITS, K, BATCH = 64, 128, 4, 100
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "no vectors in torch": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL for any processor": {"MKL_CBWR": "COMPATIBLE"},
    "numba for any x86-64": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
}


class Row(NamedTuple):
    """How far a recipe differs from the first setting."""

    setting: str
    recipe: str
    few: float
    many: float
    stability: float


def train_once(name: str, steps: int) -> Tensor:
    """Return the decoder after that many steps of a run of `MANY` steps, on rows of a synthetic world."""
    from osae.data.source import MemoryRows
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task, recipe
    from osae.training.loop import train
    from osae.training.member import Member

    rows = SparseWorld(WIDTH, UNITS, K, samples=4000).draw("train").x
    member = Member(recipe(name, Task(WIDTH, UNITS, K, MANY * BATCH, batch=BATCH)), 0, rows)
    kept: dict[int, Tensor] = {}

    def keep(done: int, _: object) -> None:
        if done == steps:
            kept[done] = member.finish().decoder.detach()

    train([member], MemoryRows(rows), after=[keep])
    return kept[steps]


def run_here(out: Path) -> None:
    """Train in this process, with the settings of its environment."""
    torch.set_num_threads(1)
    found = {f"{name} {steps}": train_once(name, steps) for name in RECIPES for steps in (FEW, MANY)}
    torch.save(found, out)


def run_with(changes: Mapping[str, str], out: Path) -> dict[str, Tensor]:
    """Return the decoders of a process with these variables in its environment."""
    words = [sys.executable, "-m", "benchmarks.reliability.processors", "--here", str(out)]
    subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1", **changes}, check=True)
    return torch.load(out)


def compare(setting: str, first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[Row]:
    """Return how far a setting differs from the first, recipe by recipe."""
    from osae import stability

    def differ(key: str) -> float:
        return float((first[key] - other[key]).abs().max() / first[key].abs().max())

    return [
        Row(
            setting,
            name,
            differ(f"{name} {FEW}"),
            differ(f"{name} {MANY}"),
            float(stability(first[f"{name} {MANY}"], other[f"{name} {MANY}"])),
        )
        for name in RECIPES
    ]


def format_table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    head = f"| instructions | recipe | after {FEW} steps | after {MANY} steps | stability |\n"
    lines = (
        f"| {row.setting} | `{row.recipe}` | {row.few:.1g} | {row.many:.1g} | {row.stability:.4f} |\n"
        for row in rows
    )
    return head + "| :-- | :-- | --: | --: | --: |\n" + "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the table to this folder")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # train in this process
    asked = parser.parse_args()
    if asked.here:
        run_here(asked.here)
        return 0
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        first = run_with({}, Path(scratch) / "first.pt")
        for number, (setting, changes) in enumerate(SETTINGS.items()):
            rows += compare(setting, first, run_with(changes, Path(scratch) / f"{number}.pt"))
            print(format_table(rows[-len(RECIPES) :]).split("\n", 2)[2], end="", flush=True)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "table.md").write_text(f"# Weights and processors\n\n{format_table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
