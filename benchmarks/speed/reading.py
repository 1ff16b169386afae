"""Does training wait for the disk?

    python -m benchmarks.speed.reading SHARDS

Trains a plain TopK SAE, which trains fastest and so waits most, on activations from `osae harvest`. Measures
the share of time spent waiting for rows while the next block is read ahead, as usual, and how fast blocks are
read when nothing else is done. Files may come from the system's cache, so the numbers do not apply to a slow
disk.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.speed.results import add_out, write_results
from osae.data.shards import Shards
from osae.data.source import MixedRows, Part, Source
from osae.recipes import Task, recipe
from osae.training.loop import train
from osae.training.member import Member


class Timed:
    """A source that adds up how long training waited for it."""

    def __init__(self, source: Source):
        self.source, self.seconds = source, 0.0

    @property
    def rows(self) -> int:
        """Return the rows of a block."""
        return self.source.rows

    def parts(self, step: int, batch: int) -> list[Part]:
        """Return the parts of blocks that make up a batch."""
        return self.source.parts(step, batch)

    def forget(self) -> None:
        """Free the memory of blocks."""
        self.source.forget()

    def block(self, index: int, seed: int = 0) -> Tensor:
        """Return a block, and add the time it took to the total."""
        began = time.perf_counter()
        rows = self.source.block(index, seed)
        self.seconds += time.perf_counter() - began
        return rows


def measure_waiting(
    shards: Shards, *, units: int, k: int, batch: int, blocks: int, limit: int | None = None
) -> dict:
    """Return rows per second of training and of reading alone, and the share of time spent waiting."""
    source = MixedRows(shards, limit)
    if source.count < 2:
        raise ValueError(f"{shards.rows} rows are one block, which is read once: give more rows.")
    steps = blocks * source.length // batch
    made = recipe("topk", Task(shards.width, units, k, samples=steps * batch, batch=batch))
    member = Member(replace(made, k_warmup=None), 0, shards.read(0, source.length))
    timed = Timed(source)
    began = time.perf_counter()
    train([member], timed)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    for index in range(source.count):
        source.block(index)
    reading = shards.rows / (time.perf_counter() - began)
    return {
        "units": units,
        "k": k,
        "rows": steps * batch,
        "blocks": blocks,
        "rows_a_second": steps * batch / seconds,
        "rows_a_second_reading_alone": reading,
        "share_waiting": timed.seconds / seconds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.reading", description=__doc__.split("\n")[0]
    )
    parser.add_argument("shards", type=Path, metavar="SHARDS")
    parser.add_argument(
        "--units", type=int, default=2048, metavar="N", help="number of units of the SAE (2048)"
    )
    parser.add_argument("--k", type=int, default=32, metavar="N", help="number of active units (32)")
    parser.add_argument("--batch", type=int, default=2048, metavar="N", help="number of rows per step (2048)")
    parser.add_argument("--blocks", type=int, default=4, metavar="N", help="number of blocks to train on (4)")
    add_out(parser)
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = measure_waiting(
        Shards(asked.shards), units=asked.units, k=asked.k, batch=asked.batch, blocks=asked.blocks
    )
    print(
        f"training: {found['rows_a_second']:,.0f} rows per second, {found['share_waiting']:.1%} of the time "
        f"waiting for them; reading alone: {found['rows_a_second_reading_alone']:,.0f} rows per second"
    )
    write_results(found, asked.out / "reading.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
