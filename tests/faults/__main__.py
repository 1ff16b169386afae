"""Every kind of fault, many times: prints a table, and writes it if asked.

python -m tests.faults [--scale 1.0] [--out evidence/faults] [--resume] [--only NAME] [--workers 2]

The faults of a kind come in parts, each with a seed of its own. Every part that is done is a line of
counts.jsonl in the folder: `--resume` leaves out what is there, and the table counts all of it. run.json says
how long the run took, and how often it was resumed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.faults.campaigns import CAMPAIGNS, Part, list_parts, prepare, try_part
from tests.faults.outcomes import LOST, Tally, format_table

COUNTS, TABLE, RUN = "counts.jsonl", "table.md", "run.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="try each fault so many times as often")
    parser.add_argument("--out", type=Path, help="write counts and table into this folder")
    parser.add_argument("--resume", action="store_true", help="leave out parts that the folder has counts of")
    parser.add_argument("--only", default="", help="try only the faults with this in their name")
    parser.add_argument("--workers", type=int, default=1, help="parts tried at the same time")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return try_all(asked, asked.out or Path(scratch))


def try_all(asked: argparse.Namespace, out: Path) -> int:
    """Try all parts that are asked for; return 1 if anything was lost."""
    started = time.monotonic()
    if not asked.resume:
        for name in (COUNTS, RUN):
            (out / name).unlink(missing_ok=True)
    done = {line["part"] for line in read_counts(out)}
    parts = [part for part in list_parts(asked.scale, asked.only) if part.name not in done]
    with ProcessPoolExecutor(asked.workers, get_context("spawn"), prepare) as pool:
        for future in as_completed([pool.submit(try_part, part) for part in parts]):
            keep(out, *future.result())
    keep_duration(out, time.monotonic() - started, workers=asked.workers, resumed=asked.resume)
    print(f"\n{write_table(out)}", end="")
    return int(any(line["counts"].get(LOST) for line in read_counts(out)))


def keep(out: Path, part: Part, tally: Tally, seconds: float) -> None:
    """Add the counts of a part to the file, and report them."""
    out.mkdir(parents=True, exist_ok=True)
    line = {"part": part.name, "fault": tally.fault, "counts": dict(tally.counts), "seconds": round(seconds)}
    with open(out / COUNTS, "a") as file:
        file.write(json.dumps(line) + "\n")
    write_table(out)
    print(f"{part.name}: {dict(tally.counts)}, {seconds:.0f} s", flush=True)
    for what in tally.lost[:10]:
        print(f"  LOST {what}", file=sys.stderr, flush=True)


def keep_duration(out: Path, seconds: float, *, workers: int, resumed: bool) -> None:
    """Write how long the run took; the time of a resumed run is added to that before."""
    before = json.loads((out / RUN).read_text()) if (out / RUN).exists() else {"seconds": 0, "resumed": -1}
    about = {"seconds": before["seconds"] + round(seconds), "resumed": before["resumed"] + 1}
    if resumed and before["resumed"] < 0:  # nobody knows how long it took before it was interrupted
        about = {"seconds": None, "resumed": 1}
    (out / RUN).write_text(json.dumps(about | {"workers": workers}) + "\n")


def read_counts(out: Path) -> list[dict]:
    file = out / COUNTS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write_table(out: Path) -> str:
    """Write all counts as a table, and return it."""
    tallies: dict[str, Tally] = {}
    names = [campaign.__name__ for campaign in CAMPAIGNS]
    for line in sorted(read_counts(out), key=lambda line: names.index(line["part"].split()[0])):
        tallies.setdefault(line["fault"], Tally(line["fault"])).counts += Counter(line["counts"])
    table = format_table(list(tallies.values()))
    (out / TABLE).write_text(f"# Faults\n\n{table}{format_run(out, list(tallies.values()))}")
    return table


def format_run(out: Path, tallies: Sequence[Tally]) -> str:
    """The sums of all counts and the duration of the run as Markdown; '' while it is not finished."""
    if not (out / RUN).exists():
        return ""
    about = json.loads((out / RUN).read_text())
    cells = {
        "faults": f"{sum(tally.tried for tally in tallies):,}",
        "kills": f"{sum(tally.tried for tally in tallies if tally.fault.startswith('SIGKILL')):,}",
        "lost": f"{sum(tally.counts[LOST] for tally in tallies):,}",
        "duration": "unknown" if about["seconds"] is None else f"{about['seconds'] / 60:.0f} minutes",
        "processes": str(about["workers"]),
        "times resumed": "unknown" if about["resumed"] is None else str(about["resumed"]),
    }
    rows = (" | ".join(row) for row in (cells, ["--:"] * len(cells), cells.values()))
    return "\n## Run\n\n" + "".join(f"| {row} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
