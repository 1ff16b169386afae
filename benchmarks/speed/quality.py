"""Time to quality: train with our `train` and the peers' trainers on the same activations and tokens.

    python -m benchmarks.speed.quality --data acts --held-out acts-held-out

Entries are trained one after another, each in its own process on one thread; time is CPU time, without that
of the measurements. Activations are mixed, centred and scaled to a mean square of one per coordinate for
all entries. Every entry gets the same number of trials: its default learning rate and multiples of it, on the
first rows; the best of them is used for the whole run. The time of imports is not counted for any entry.
Results are written after every entry; with --only, the others keep those of an earlier run of the same size.

`osae-exact` is the recipe `osae`; `constant-k` means `--start noise`, `--set k_warmup=null` and `--set
lr.decay=0.2`, with `topk` or `topk-aligned` (docs/consistency.md). `osae-aligned-95` is the recipe
`osae-aligned` with `--set prefix.full=0.95` instead of 0.8.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import ROOT
from benchmarks.speed import plots
from benchmarks.speed.pipe import Shape
from benchmarks.speed.results import add_out, describe_machine, write_results
from osae.data.shards import Shards

OURS = (
    "osae-exact",
    "osae-aligned",
    "osae-aligned-95",
    "osae-topk",
    "osae-topk-constant-k",
    "osae-topk-aligned-constant-k",
)
PEERS = (
    "saelens-topk",
    "saelens-matryoshka",
    "sparsify-topk",
    "sparsify-topk-signum",
    "dictionary_learning-topk",
)
FACTORS = (1.0, 3.0, 10.0, 30.0)  # of the default learning rate, one per trial
TRIAL = 8  # a trial takes this fraction of the steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Train every entry, print its curve, and write all curves."""
    asked = _parse_arguments(arguments)
    rows, held = _read(asked.data, asked.rows), _read(asked.held_out, asked.held_rows)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    spread, mean = torch.std_mean(rows, 0)
    scale = 1 / float(spread.square().mean().sqrt())
    for part in (rows, held):  # in place: a million rows take gigabytes
        part.sub_(mean).mul_(scale)
    shape = Shape(asked.batch, rows.shape[1], asked.units, asked.k)
    steps = asked.rows * asked.epochs // asked.batch
    size = {"shape": shape._asdict(), "steps": steps}
    entries = _keep(asked.out / "quality.json", size)
    result = {**size, "machine": describe_machine(), "entries": entries}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "activations.pt"
        torch.save({"rows": rows, "held": held}, path)
        del rows, held  # each entry reads its own
        for name in asked.only or (*OURS, *PEERS):
            entries[name] = find_best(name, shape, steps, path, str(asked.peers_python))
            print(
                f"{name}, {entries[name]['factor']:g} x the default rate:",
                *(f"{ev:.3f}@{seconds:.1f}s" for seconds, _, ev in entries[name]["points"]),
                flush=True,
            )
            write_results(result, asked.out / "quality.json")
            plots.plot_quality(result, asked.out / "quality.png")
    print(format_markdown(result))
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.quality", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", required=True, metavar="DATA", help="activations from `osae harvest`")
    parser.add_argument("--held-out", required=True, metavar="DATA", help="activations of other documents")
    for name, default in (("rows", 65536), ("held-rows", 4096), ("epochs", 2), ("batch", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--units", type=int, default=1024, metavar="N")
    parser.add_argument("--k", type=int, default=32, metavar="N")
    parser.add_argument("--only", nargs="*", choices=(*OURS, *PEERS), help="train only these entries")
    parser.add_argument(
        "--peers-python", type=Path, default=ROOT / ".venv-interop/bin/python", metavar="PATH"
    )
    add_out(parser)
    return parser.parse_args(arguments)


def _read(path: str, count: int) -> Tensor:
    """Return the first rows of activations on disk."""
    parts, found = [], 0
    for batch in Shards(path).batches(4096):
        parts.append(batch.float())
        found += len(batch)
        if found >= count:
            break
    return torch.cat(parts)[:count]


def _keep(path: Path, size: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of an earlier run of this size."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    return earlier["entries"] if earlier and size.items() <= earlier.items() else {}


def find_best(name: str, shape: Shape, steps: int, data: Path, peers_python: str) -> dict[str, Any]:
    """Return the curve of an entry with the learning rate that is best in short runs, and their results."""
    trials = {}
    for factor in FACTORS:
        found = run(name, shape, max(1, steps // TRIAL), factor, data, peers_python)
        trials[factor] = found["points"][-1][2]
    best = max(trials, key=lambda factor: trials[factor] if math.isfinite(trials[factor]) else -math.inf)
    return run(name, shape, steps, best, data, peers_python) | {"factor": best, "trials": trials}


def run(name: str, shape: Shape, steps: int, factor: float, data: Path, peers_python: str) -> dict[str, Any]:
    """Return the version and the curve of an entry, trained in its own process."""
    python, module = (
        (sys.executable, "benchmarks.speed.quality_ours")
        if name in OURS
        else (peers_python, "benchmarks.speed.peers_training")
    )
    command = [python, "-m", module, name, json.dumps(shape), str(steps), str(factor), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{name} stopped:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def format_markdown(result: Mapping[str, Any]) -> str:
    """Return a table of the best result of each entry, and how many times sooner ours reach it.

    Times are compared in multiples of the product that was timed during each run: on a busy machine, a run
    may have had less of the processor than another.
    """
    entries = result["entries"]
    ours = [name for name in OURS if name in entries]
    head = ("entry", "rate", "explained variance", "CPU seconds", "product, ms", *(f"`{n}`" for n in ours))
    lines = [f"| {' | '.join(head)} |", f"| :-- |{' --: |' * (len(head) - 1)}"]
    for name, entry in sorted(entries.items(), key=lambda item: item[0] not in OURS):
        seconds, _, reached = max(entry["points"], key=lambda point: point[2])
        cells = [f"`{name}`", f"{entry['factor']:g} x", f"{reached:.4f}", f"{seconds:.1f}"]
        cells.append(f"{entry['product_ms']:.1f}")
        for other in ours:
            sooner = find_time(entries[other]["points"], reached)
            load = entry["product_ms"] / entries[other]["product_ms"]
            times = "never" if sooner is None else f"{seconds / sooner / load:.1f}"
            cells.append("" if name in OURS else times)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def find_time(points: Sequence[Sequence[float]], level: float) -> float | None:
    """Return when a curve first reaches a level, by linear interpolation; None if it never does.

    Nothing is known about the time before the first point.
    """
    before = points[0]
    for point in points:
        if point[2] >= level:
            share = 1.0 if point[2] <= before[2] else max(0.0, level - before[2]) / (point[2] - before[2])
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


if __name__ == "__main__":
    sys.exit(main())
