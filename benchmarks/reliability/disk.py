"""Compare forecasts of disk space with the files that commands write: print a table; --out writes it.

    python -m benchmarks.reliability.disk [--only NAME] [--out FOLDER]

Each command writes into a folder of its own, in a process forked from one that has imported everything. What
is compared is the largest size of all files in it at any time, looked at every five milliseconds, which
includes checkpoints that are replaced or removed later. The forecast is the one that the command checks
before it starts; it covers only what the command writes into that folder.
"""

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.reliability.commands import (
    make_rows,
    make_sae,
    name_of,
    prepare,
    read_rows,
    run_apart,
    warm,
    write_rows,
)
from osae import forecast
from osae.cli import main as osae
from tests.data.tiny import documents, saved_model, saved_text

HEAD = "| command | disk: forecast | written | ratio |"


class Case(NamedTuple):
    """A command that writes to `out`, and its name in the table."""

    name: str
    words: Sequence[object]
    out: Path


def measure(case: Case) -> str:
    """Return the row of a command."""
    sizes = [0]
    text = run_apart(lambda: _run(case), lambda process: sizes.append(_sum_sizes(case.out)))
    largest = max(*sizes, _sum_sizes(case.out))
    code, _, rest = text.partition(" ")
    if code != "0":
        raise RuntimeError(f"{case.name} ended with {text[-600:]!r}")
    expected = float(rest.split("\n")[0])
    return f"| {case.name} | {expected / 1e6:,.2f} MB | {largest / 1e6:,.2f} MB | {expected / largest:.2f} |"


def _run(case: Case) -> str:
    """Run the command in this process; return its exit code and the largest forecast, then its messages."""
    asked: list[int] = [0]
    room = forecast.free_disk

    def look(folder: Path) -> int:
        free = room(folder)
        frame = sys._getframe(1)
        if "forecast" in frame.f_locals:
            asked.append(frame.f_locals["forecast"].disk)
        return free

    forecast.free_disk = look
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as messages:
        code = osae([str(word) for word in case.words])
    return f"{code} {max(asked)}\n{messages.getvalue()}"


def _sum_sizes(out: Path) -> int:
    """Return the bytes of a file, or of all files in a folder, which may be written at the moment."""
    total = 0
    for path in [out, *(Path(folder) / name for folder, _, names in os.walk(out) for name in names)]:
        with suppress(OSError):  # it does not exist yet, or was removed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def list_cases(folder: Path) -> Iterator[Case]:
    """Yield the commands."""
    rows = make_rows(folder, 4096, 256)
    sae, other = (make_sae(folder, 4096, 256, 16, seed) for seed in (0, 1))
    often = ["--checkpoint-seconds", 0, "--device", "cpu", "--batch", 512]

    def case(name: str, *words: object) -> Case:
        out = Path(tempfile.mkdtemp(dir=folder)) / "out"
        return Case(name, [out if word == "OUT" else word for word in words], out)

    train = ["--data", rows, "--units", 4096, "--k", 16, *often, "--out", "OUT"]
    yield case("train topk, a checkpoint at every step", "train", "topk", *train, "--tokens", 10_240)
    seldom = [word for word in train if word not in often[:2]]
    yield case("train topk, less than a minute", "train", "topk", *seldom, "--tokens", 10_240)
    twice = [*train, "--seeds", "0,1", "--snapshots", "2048,4096", "--tokens", 10_240]
    yield case("train osae and vanilla, two seeds, two snapshots", "train", "osae,vanilla", *twice)
    sweep = folder / "sweep.yaml"
    sweep.write_text(
        f"data: {rows}\nunits: 4096\nk: 16\nbatch: 512\ntokens: 5120\nvary:\n  recipes: [topk, vanilla]\n"
        "  seeds: [0, 1]\ncheckpoint_seconds: 0\n"
    )
    yield case("sweep, four runs", "sweep", sweep, "--device", "cpu", "--jobs", 1, "--out", "OUT")
    model, text = saved_model(folder / "lm"), saved_text(folder / "t.jsonl", documents(400, seed=5))
    harvest = ["harvest", "--model", model, "--layer", 2, "--text", text, "--tokens", 4000, "--context", 16]
    harvest += ["--device", "cpu", "--out", "OUT"]
    for dtype in ("float16", "float32"):
        yield case(f"harvest in {dtype}", *harvest, "--dtype", dtype)
    acts = Path(tempfile.mkdtemp(dir=folder)) / "acts"
    prepare([acts if word == "OUT" else word for word in harvest])
    small = make_sae(folder, 512, 16, 4)
    contexts = ["contexts", small, "--data", acts, "--model", "none", "--out"]
    yield case("contexts", *contexts, "OUT")
    trust = ["trust", sae, "--data", rows, "--runs", 2, "--tokens", 2048, "--device", "cpu", "--out", "OUT"]
    yield case("trust, two twins", *trust)
    world = ["--methods", "topk,osae", "--seeds", 2, "--jobs", 1, "--quick", "--out", "OUT"]
    yield case("reproduce toy", "reproduce", "toy", *world)
    for to in ("osae", "saelens", "sparsify", "dictionary_learning"):
        yield case(f"convert --to {to}", "convert", sae, "OUT", "--to", to)
    push = ["push", sae, "hf:user/repo", "--dry-run", "OUT"]
    yield case("push", *push)
    yield case("order", "order", sae, "--data", rows, "--out", "OUT")
    yield case("prune", "prune", sae, "--others", other, "--data", rows, "--out", "OUT")
    result = folder / "c.json"
    prepare(["compare", sae, other, "--chance-draws", 0, "--json", result])
    yield case("report, a comparison of 2 x 4,096 units", "report", result, "--out", "OUT")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--out", type=Path, help="write the rows of these cases to the table in this folder")
    asked = parser.parse_args()
    rows = read_rows(asked.out) if asked.out else {}
    with tempfile.TemporaryDirectory() as scratch:
        warm(Path(scratch))
        for case in list_cases(Path(scratch)):
            if asked.only in case.name:
                row = measure(case)
                rows[name_of(row)] = row
                print(row, flush=True)
                if asked.out:
                    write_rows(asked.out, "Forecasts of disk space", HEAD, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
