"""A disk that is full at some write, and one that is read-only: the file is named, and the run is resumed.

python -m tests.faults.storage FOLDER COUNT     on a small disk that is mounted at FOLDER
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.kills import TRAIN, files_of, make_run
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, judge_refusal
from tests.faults.processes import run, warm

MOUNT = 'mount -t tmpfs -o size=50m tmpfs "$0" && exec "$@"'
FAULT = "full disk while training"


def fill_disk(count: int, folder: Path, seed: int = 0) -> Tally:
    """The same as below, in a process that may mount a disk; nothing is tried where that is not permitted."""
    folder.mkdir(parents=True)
    inside = ["unshare", "-rm", "sh", "-c", MOUNT, str(folder)]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        return Tally(f"{FAULT} (not permitted here)")
    words = [*inside, sys.executable, "-m", "tests.faults.storage", str(folder), str(count), str(seed)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    tally = Tally(FAULT)
    for end, what in json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else [(LOST, ran.stderr)]:
        tally.add(end, what)
    return tally


def _resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def _try_sizes(disk: Path, count: int, seed: int) -> list[tuple[str, str]]:
    draw, ends = random.Random(seed), []
    whole, _ = make_run(disk / "whole")
    used = sum(path.stat().st_blocks * 512 for path in disk.rglob("*")) // 1024
    shutil.rmtree(disk / "whole")
    for _ in range(count):
        out = disk / "run"
        _resize(disk, f"{draw.randrange(8, 2 * used)}k")
        code, said = run([*TRAIN, 2, "--out", out])
        wrong = judge_refusal(code, said, str(out)) if code else ""
        _resize(disk, "50m")
        words = ["resume", out] if (out / "run.json").exists() else [*TRAIN, 2, "--out", out]
        again, more = run(words)
        if wrong or again != 0 or files_of(out) != whole:
            ends.append((LOST, f"{wrong}; then {words[0]} ended with {again}: {more[-300:]}"))
        else:
            ends.append((DETECTED if code else SURVIVED, ""))
        shutil.rmtree(out)
    return ends


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        warm(Path(scratch))
    print(json.dumps(_try_sizes(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
