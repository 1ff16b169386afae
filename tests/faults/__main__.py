"""Every kind of fault, many times: prints a table, and writes it if asked.

python -m tests.faults [--scale 1.0] [--out evidence/faults] [--only NAME]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import damage, experiments, kills, requests, storage
from tests.faults.outcomes import Tally, format_table
from tests.faults.processes import MEMORY, warm

CAMPAIGNS: dict[Callable[..., Tally], int] = {  # how often each fault is tried in the long version
    requests.send_lines: 10_000,
    requests.send_configs: 5_000,
    requests.send_files: 9_000,
    requests.send_bombs: 1_000,
    damage.damage_saes: 3_500,
    damage.damage_shards: 3_500,
    damage.damage_results: 1_500,
    damage.damage_runs: 1_500,
    kills.resume_twice: 40,
    kills.stop_training: 60,
    kills.kill_studies: 200,
    experiments.kill_reproduce: 10,
    storage.fill_disk: 150,
    kills.kill_training: 800,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="try each fault so many times as often")
    parser.add_argument("--out", type=Path, help="write the rows into the table in this folder")
    parser.add_argument("--only", default="", help="try only the faults with this in their name")
    asked = parser.parse_args()
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        warm(Path(scratch))
        for campaign, count in CAMPAIGNS.items():
            if asked.only not in campaign.__name__:
                continue
            started = time.monotonic()
            tally = campaign(max(1, round(asked.scale * count)), Path(scratch) / campaign.__name__)
            tallies.append(tally)
            print(f"{tally.fault}: {dict(tally.counts)}, {time.monotonic() - started:.0f} s", flush=True)
            for what in tally.lost[:10]:
                print(f"  LOST {what}", file=sys.stderr, flush=True)
            if asked.out:
                _update(asked.out / "table.md", tally)
    print(f"\n{format_table(tallies)}", end="")
    return int(any(tally.lost for tally in tallies))


def _update(path: Path, tally: Tally) -> None:
    """Put the row into the table, in place of what was counted before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else ""
    path.write_text(f"# Faults\n\n{format_table([tally], before)}")


if __name__ == "__main__":
    sys.exit(main())
