"""Measure `osae compare` of three large SAEs with activations: time, CPU time and peak memory.

    python -m benchmarks.speed.comparing                 # 16,384 units, width 512, k = 32, 20,000 rows
    python -m benchmarks.speed.comparing --units 2048 --rows 4000

60 % of the atoms of each SAE are atoms of the first SAE plus noise (cosine 0.7 to 0.99), in a different
order; the others are its own. Rows are sums of k atoms of the first SAE with positive weights, plus noise.

Shapes: K units, d width, k active units, N rows.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import ROOT
from benchmarks.speed.results import add_out, describe_machine, write_results
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
from osae.versions import versions

SAES, SHARE, NOISE = 3, 0.6, 0.1
BLOCK = 4096  # rows drawn at a time
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    asked = _parse_arguments(arguments)
    with tempfile.TemporaryDirectory() as folder:
        paths, data = make_inputs(Path(folder), asked.units, asked.width, asked.k, asked.rows)
        found = measure([*paths, "--data", data, "--json", Path(folder, "result.json")], asked.threads)
    sizes = {name: getattr(asked, name) for name in ("units", "width", "k", "rows", "threads")}
    print(f"{found['seconds']:.1f} s, {found['cpu_seconds']:.1f} s of CPU time, {found['peak_gb']:.2f} GB")
    machine = {"machine": describe_machine(), "versions": versions()}
    write_results({**sizes, **found, **machine}, asked.out / "comparing.json")
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.comparing", description=__doc__.split("\n")[0]
    )
    for flag, letter, default in (
        ("--units", "K", 16_384),
        ("--width", "d", 512),
        ("--k", "k", 32),
        ("--rows", "N", 20_000),
        ("--threads", "N", os.cpu_count() or 1),
    ):
        parser.add_argument(flag, type=int, default=default, metavar=letter)
    add_out(parser)
    return parser.parse_args(arguments)


def measure(words: Sequence[str | Path], threads: int) -> dict[str, Any]:
    """Return seconds, CPU seconds and peak memory of `osae compare` with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "osae", "compare", *map(str, words)],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(THREADS, str(threads)),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_gb": after.ru_maxrss * 1024 / 1e9,  # of the largest child process so far; there is only one
    }


# --- inputs -----------------------------------------------------------------------------------------


def make_inputs(folder: Path, units: int, width: int, k: int, rows: int) -> tuple[list[Path], Path]:
    """Write the SAEs and the activations; return their paths."""
    generator = torch.Generator().manual_seed(0)
    first = normalize(torch.randn(units, width, generator=generator), dim=1)
    paths = []
    for place in range(SAES):
        atoms = first if place == 0 else _change(first, generator)
        sae = SAE(SAEConfig(width=width, units=units, sparsifier=TopK(k)), generator=generator)
        with torch.no_grad():
            sae.decoder.copy_(atoms)
            sae.encoder.copy_(atoms)
        paths.append(folder / f"sae{place}")
        sae.save(paths[-1])
    data = folder / "rows.npy"
    np.save(data, torch.cat(list(_draw_rows(first, k, rows, generator))).numpy())
    return paths, data


def _change(atoms: Tensor, generator: torch.Generator) -> Tensor:
    """Return atoms, a share of which are near the given ones, in a different order."""
    found = normalize(torch.randn(atoms.shape, generator=generator), dim=1)
    common = round(SHARE * len(atoms))
    near = 0.7 + 0.29 * torch.rand(common, 1, generator=generator)
    here, there = (torch.randperm(len(atoms), generator=generator)[:common] for _ in range(2))
    found[there] = normalize(near * atoms[here] + (1 - near**2).sqrt() * found[there], dim=1)
    return found


def _draw_rows(atoms: Tensor, k: int, rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield rows, a block at a time."""
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        chosen = torch.randint(len(atoms), (count, k), generator=generator)
        weights = 0.5 + torch.rand(count, k, generator=generator)
        noise = NOISE * torch.randn(count, atoms.shape[1], generator=generator)
        yield torch.einsum("nk,nkd->nd", weights, atoms[chosen]) + noise


if __name__ == "__main__":
    sys.exit(main())
