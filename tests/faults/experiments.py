"""Experiments with several workers: a worker that is killed, and a parent that is."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally

REPRODUCE = [sys.executable, "-m", "osae", "reproduce", "toy", "--quick", "--methods", "topk,osae"]
REPRODUCE += ["--seeds", "2", "--jobs", "2", "--out"]


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def is_running(pid: int) -> bool:
    """Whether the process does anything: one that nobody waits for stays in the list after it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def weights_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("sae.safetensors")}


def kill_reproduce(count: int, folder: Path, seed: int = 0) -> Tally:
    """Kill one worker, or the parent; then run to the end, with the same weights."""
    tally, draw = Tally("SIGKILL of a worker or the parent of reproduce"), random.Random(seed)
    folder.mkdir(parents=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    started = time.monotonic()
    subprocess.run([*REPRODUCE, str(folder / "whole")], check=True, **quiet)
    seconds, whole = time.monotonic() - started, weights_of(folder / "whole")
    for case in range(count):
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        parent = subprocess.Popen([*REPRODUCE, str(out)], **quiet)
        time.sleep(draw.uniform(0.3, 0.8) * seconds)
        workers = children_of(parent.pid)
        victim = workers[0] if case % 2 and workers else parent.pid
        os.kill(victim, signal.SIGKILL)
        wrong = _judge(parent, victim, workers)
        again = subprocess.run([*REPRODUCE, str(out)], check=False, **quiet)
        if wrong or again.returncode or weights_of(out) != whole:
            tally.add(LOST, f"{wrong}; then {again.returncode}: {again.stderr[-300:]}")
        else:
            tally.add(DETECTED if victim != parent.pid else SURVIVED)
    return tally


def _judge(parent: subprocess.Popen, victim: int, workers: list[int]) -> str:
    """'' if all processes ended within seconds, and a dead worker was reported in one line."""
    _, error = parent.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left := [pid for pid in workers if is_running(pid)]:
        return f"workers {left} are left"
    if victim == parent.pid or parent.returncode == 0:
        return ""
    lines = [line for line in error.splitlines() if line.startswith("osae: ")]
    told = len(lines) == 1 and "died (killed by SIGKILL" in lines[0] and "Traceback" not in error
    return "" if told and parent.returncode == 2 else f"exit code {parent.returncode}: {error[-300:]}"
