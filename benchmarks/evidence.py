"""Run the experiments behind evidence/ and store their results:

    python -m benchmarks.evidence [NAME ...]

Each experiment is a command of `osae reproduce`; run this again to resume after an interruption. A finished
experiment replaces its folder in evidence/, then tables and pages are updated. The language-model part
needs activations, and has its own script: evidence/lm/commands.sh.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ROOT

RUNS = Path("runs")
EXPERIMENTS = {
    "lemma": (),
    "pca": ("--seeds", "5"),
    "energy": ("--seeds", "5"),
    "toy": ("--seeds", "10"),
    "schedules": ("--seeds", "5"),
    "sizes": (
        *("--seeds", "5"),
        *("--methods", "topk,matryoshka-fixed,matryoshka-random,osae-paper,osae"),
    ),
    "budgets": ("--seeds", "10"),
    "ablate": ("--seeds", "5"),
    "zipf": ("--seeds", "5"),
    "hard": ("--seeds", "5"),
}


def keep(source: Path, folder: Path) -> None:
    """Replace a stored folder with an experiment's results and the numbers behind its figures."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "figures").mkdir(parents=True)
    for name in ("results.json", "results.csv"):
        shutil.copyfile(source / name, folder / name)
    for numbers in sorted((source / "figures").glob("*.csv")):
        shutil.copyfile(numbers, folder / "figures" / numbers.name)
    if not any((folder / "figures").iterdir()):
        (folder / "figures").rmdir()


def describe_left(names: Sequence[str], evidence: Path, workers: int) -> str:
    """Return how long these experiments should take, judging by the stored results.

    Stored results may have fewer seeds than an experiment now uses; their times are scaled.
    """
    known, unknown = 0.0, []
    for name in names:
        file = evidence / name / "results.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if (seconds := found.get("training_seconds")) is None:
            unknown.append(name)
        else:
            words = EXPERIMENTS[name]
            seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else len(found["seeds"])
            known += seconds * seeds / max(len(found["seeds"]), 1)
    left = f"about {known / workers / 60:.0f} minutes left"
    return f"{left}, not counting {', '.join(unknown)}" if unknown else left


def main(names: list[str]) -> None:
    """Run the named experiments, or all of them, one after another."""
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        sys.exit(f"no experiment {unknown[0]}: choose from {', '.join(EXPERIMENTS)}.")
    chosen, started = names or list(EXPERIMENTS), time.monotonic()
    for count, name in enumerate(chosen, 1):
        minutes = (time.monotonic() - started) / 60
        left = describe_left(chosen[count - 1 :], ROOT / "evidence", os.cpu_count() or 1)
        print(f"evidence: {name}, {count} of {len(chosen)}, after {minutes:.0f} minutes, {left}", flush=True)
        words = ["reproduce", name, *EXPERIMENTS[name], "--out", str(RUNS / name)]
        subprocess.run([sys.executable, "-m", "osae", *words], cwd=ROOT, check=True)
        keep(ROOT / RUNS / name, ROOT / "evidence" / name)
    for module in ("evidence", "pages"):
        subprocess.run([sys.executable, "-m", f"benchmarks.documentation.{module}"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
