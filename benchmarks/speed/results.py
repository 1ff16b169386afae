"""Write and locate the results of benchmarks."""

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from osae.files import atomic_write

OUT = ROOT / "runs/bench"


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the option that sets the folder for results."""
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="folder for results (runs/bench)"
    )


def write_results(found: Mapping[str, Any], path: Path) -> None:
    """Write the measurements as JSON, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps({"schema": 1, **found}, indent=2) + "\n")
    print(f"Results: {path}")


def describe_machine() -> str:
    """Return the processor, the number of cores and the load of this machine."""
    return f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
