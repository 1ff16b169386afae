"""Measure sorting by gain of a very large dictionary: time and peak memory.

    python -m benchmarks.speed.sorting          # 65,536 units, width 2,304, k = 80, 20,000 rows
    python -m benchmarks.speed.sorting --units 16384 --width 512

The rows, as many as training reads for a sort, are sums of k atoms with positive weights, plus noise. Their
codes are computed by the SAE, as in training, and this is part of the time.

Shapes: K units, d width, k active units, N rows.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed.results import add_out, describe_machine, write_results
from osae import kernels, passes
from osae.model import SAE, SAEConfig
from osae.schedule import Resort
from osae.sparsify import TopK

NOISE = 0.1
BLOCK = 1024  # rows encoded at a time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    asked = _parse_arguments(arguments)
    torch.set_num_threads(asked.threads)
    sizes = {name: getattr(asked, name) for name in ("units", "width", "k", "rows", "threads")}
    sae, rows = make_inputs(asked.units, asked.width, asked.k, asked.rows)
    passes.encode(sae, rows[:1])  # compiles and loads what it needs
    started = time.perf_counter(), time.process_time()
    passes.order_units(sae, rows.split(BLOCK))
    found = {
        "seconds": time.perf_counter() - started[0],
        "cpu_seconds": time.process_time() - started[1],
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    print(f"{found['seconds']:.1f} s, {found['cpu_seconds']:.1f} s of CPU time, {found['peak_gb']:.2f} GB")
    write_results({**sizes, **found, "machine": describe_machine()}, asked.out / "sorting.json")
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.sorting", description=__doc__.split("\n")[0]
    )
    for flag, letter, default in (
        ("--units", "K", 65_536),
        ("--width", "d", 2304),
        ("--k", "k", 80),
        ("--rows", "N", Resort(1).samples),
        ("--threads", "N", os.cpu_count() or 1),
    ):
        parser.add_argument(flag, type=int, default=default, metavar=letter)
    add_out(parser)
    return parser.parse_args(arguments)


def make_inputs(units: int, width: int, k: int, rows: int) -> tuple[SAE, Tensor]:
    """Return an SAE and rows that its atoms explain."""
    generator = torch.Generator().manual_seed(0)
    sae = SAE(SAEConfig(width=width, units=units, sparsifier=TopK(k)), generator=generator)
    with torch.no_grad():
        sae.decoder.copy_(normalize(sae.decoder, dim=1))
        sae.encoder.copy_(sae.decoder)
    found = NOISE * torch.randn(rows, width, generator=generator)
    for block in found.split(BLOCK):
        chosen = torch.randint(units, (len(block), k), generator=generator)
        weights = 0.5 + torch.rand(len(block), k, generator=generator)
        block += kernels.decode(weights, chosen, sae.decoder.detach())
    return sae, found


if __name__ == "__main__":
    sys.exit(main())
