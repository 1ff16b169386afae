"""Compare certified matching of two dictionaries with scipy's dense solver: time, peak memory and result.

    python -m benchmarks.speed.matching                 # 16,384 units with scipy, 65,536 without
    python -m benchmarks.speed.matching --units 4096    # only this size, with scipy unless --no-scipy
    python -m benchmarks.speed.matching --quick         # 1,024 units

"realistic": 60 % of atoms have a partner with cosine 0.5 to 0.95 at a different position, and the rest are
unrelated. "random": no atom is related to any other. Each solver runs in its own process, and has compiled
what it needs before timing starts; its peak memory includes the libraries and both dictionaries. scipy's time
includes the matrix product that it needs.

Shapes: K units, d width.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import ROOT
from benchmarks.speed.results import add_out, describe_machine, write_results
from benchmarks.speed.worker import read_resident
from osae.metrics import cosine, match_atoms
from osae.versions import versions

Kind = Literal["realistic", "random"]
Solver = Literal["osae", "scipy"]
SHARE = 0.6  # share of the realistic atoms that have a partner
QUICK = 1024
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Case(NamedTuple):
    """Two dictionaries of one size and kind, and whether scipy solves them too."""

    units: int
    width: int
    kind: Kind
    scipy: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    asked = _parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    found = [measure_case(case, asked.threads) for case in announce(asked.cases)]
    result = {
        "threads": asked.threads,
        "machine": describe_machine(),
        "versions": versions(),
        "cases": found,
    }
    console.print(make_table(found))
    write_results(result, asked.out / "matching.json")
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.matching", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--units", type=int, metavar="K", help="only this size, both kinds")
    parser.add_argument("--width", type=int, default=512, metavar="d")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} units unless --units is given")
    parser.add_argument("--no-scipy", action="store_true", help="only our matching")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    add_out(parser)
    asked = parser.parse_args(arguments)
    asked.cases = list(
        list_cases(asked.units or (QUICK if asked.quick else None), asked.width, not asked.no_scipy)
    )
    return asked


def list_cases(units: int | None, width: int, scipy: bool) -> Iterator[Case]:
    """Yield both kinds at the requested size, or at the default sizes."""
    for kind in ("realistic", "random"):
        yield Case(units or 16_384, width, kind, scipy)
    if units is None:  # all pairs of 65,536 units would take scipy 64 GB
        yield Case(65_536, width, "realistic", scipy=False)


def announce(todo: Iterable[Case]) -> Iterator[Case]:
    """Yield the cases, and print which one is running: a large case takes minutes."""
    for case in todo:
        print(f"{case.units} units, {case.kind} ...", file=sys.stderr, flush=True)
        yield case


# --- measuring --------------------------------------------------------------------------------------


def measure_case(case: Case, threads: int) -> dict[str, Any]:
    """Return time, memory and result of our matching and of scipy's; None for scipy if it is skipped."""
    ours = solve_alone("osae", case, threads)
    dense = solve_alone("scipy", case, threads) if case.scipy else {}
    theirs = {f"scipy_{name}": dense.get(name) for name in ("seconds", "peak_mb", "value")}
    return {"units": case.units, "width": case.width, "kind": case.kind, **ours, **theirs}


def solve_alone(solver: Solver, case: Case, threads: int) -> dict[str, Any]:
    """Return what `solve` returns, run in a new process so that peak memory can be measured."""
    code = "import sys; from benchmarks.speed.matching import print_answer; print_answer(*sys.argv[1:])"
    words = [solver, str(case.units), str(case.width), case.kind]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(THREADS, str(threads)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{solver} stopped at {case}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def print_answer(solver: Solver, units: str, width: str, kind: Kind) -> None:
    """Print what `solve` returns, for `solve_alone` to read."""
    print(json.dumps(solve(solver, *make_dictionaries(int(units), int(width), kind))))


def solve(solver: Solver, a: Tensor, b: Tensor) -> dict[str, Any]:
    """Return seconds, peak memory of this process and the total cosine; for ours also the certificate."""
    match = {"osae": _match_certified, "scipy": _match_dense}[solver]
    match(*make_dictionaries(64, 8, "random"))  # loads and compiles everything needed
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    started = time.perf_counter()
    result = match(a, b)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_mb": read_resident("VmHWM") / 1e6, **result}


def _match_certified(a: Tensor, b: Tensor) -> dict[str, Any]:
    found = match_atoms(a, b, method="sparse")
    return {"value": float(found.similarity.sum()), "gap": found.gap, "optimal": found.optimal}


def _match_dense(a: Tensor, b: Tensor) -> dict[str, Any]:
    similarity = cosine(a, b).numpy()
    return {"value": float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())}


def make_dictionaries(units: int, width: int, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return two dictionaries (K, d) of unit atoms, always the same for a size and kind."""
    generator = torch.Generator().manual_seed(0)
    a, b = (normalize(torch.randn(units, width, generator=generator), dim=1) for _ in range(2))
    if kind == "realistic":
        common = round(SHARE * units)
        near = 0.5 + 0.45 * torch.rand(common, 1, generator=generator)
        here, there = (torch.randperm(units, generator=generator)[:common] for _ in range(2))
        b[there] = near * a[here] + (1 - near**2).sqrt() * b[there]
    return a, b


# --- reporting --------------------------------------------------------------------------------------


def make_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return all cases as a table; the mean cosine is the total over the number of units."""
    made = Table(title="One matching of two dictionaries", title_justify="left")
    made.add_column("kind")
    for column in (
        "units",
        "width",
        "s",
        "peak MB",
        "mean cosine",
        "gap",
        "scipy s",
        "scipy MB",
        "differs by",
    ):
        made.add_column(column, justify="right")
    for one in found:
        with_scipy = one["scipy_seconds"] is not None
        made.add_row(
            one["kind"],
            f"{one['units']:,}",
            str(one["width"]),
            f"{one['seconds']:.1f}",
            f"{one['peak_mb']:,.0f}",
            f"{one['value'] / one['units']:.4f}",
            f"{one['gap']:.0e}" + ("" if one["optimal"] else " not certified"),
            *((f"{one['scipy_seconds']:.1f}", f"{one['scipy_peak_mb']:,.0f}") if with_scipy else ("", "")),
            f"{abs(one['value'] / one['scipy_value'] - 1):.0e}" if with_scipy else "",
        )
    return made


if __name__ == "__main__":
    sys.exit(main())
