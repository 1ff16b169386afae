"""Commands of several processes: a worker, a rank or the parent is killed, and the others end at once."""

import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

from osae.files import is_alive
from tests.faults.kills import TRAIN, files_of, run_whole
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, judge_refusal
from tests.faults.processes import Started, run, start

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "1000"]
REPRODUCE = ["reproduce", "toy", "--quick", "--methods", "topk,osae", "--seeds", "2", *WORLD, "--jobs"]
SOON = 10.0  # seconds within which all processes must have ended
EPOCHS = 8


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def kill_reproduce(count: int, folder: Path, seed: int = 0) -> Tally:
    """Kill one of two workers, or the parent, up to four times; then the SAEs are those of one worker."""
    tally, draw = Tally("SIGKILL of a worker or the parent of reproduce"), random.Random(seed)
    folder.mkdir(parents=True)
    words = [*REPRODUCE, 2, "--out", folder / "out"]
    whole, _ = run_whole(lambda out: [*REPRODUCE, 1, "--out", out], folder / "whole")
    _, seconds = run_whole(lambda out: [*REPRODUCE, 2, "--out", out], folder / "timed")
    while tally.tried < count:
        shutil.rmtree(folder / "out", ignore_errors=True)
        ends = [_kill_one(words, draw, seconds) for _ in range(min(4, count - tally.tried))]
        code, said = run(words)
        same = weights_of(files_of(folder / "out")) == weights_of(whole)
        for end, wrong in ends:
            fine = not wrong and code == 0 and same
            tally.add(end if fine else LOST, f"{wrong}; then {code}, the same: {same}: {said[-300:]}")
    return tally


def weights_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of weights; others tell how long something took."""
    return {name: data for name, data in files.items() if name.endswith("sae.safetensors")}


def _kill_one(words: list[object], draw: random.Random, seconds: float) -> tuple[str, str]:
    """Kill a worker or the parent at a random moment; return the end, and what is wrong with it."""
    parent = start(words)
    time.sleep(draw.uniform(0.05, 0.95) * seconds)
    workers = children_of(parent.pid)
    victim = draw.choice([parent.pid, *workers, *workers])
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    code, said = parent.wait()
    if left := _wait_for(workers, killed + SOON):
        return LOST, f"workers {left} are left"
    if time.monotonic() - killed > SOON and code != 0:
        return LOST, f"it took {time.monotonic() - killed:.0f} s"
    if victim == parent.pid or code == 0:  # a worker that was done already
        return SURVIVED, ""
    return DETECTED, judge_refusal(code, said, "the worker process for ", "died (killed by SIGKILL", "-seed")


def _wait_for(pids: list[int], deadline: float) -> list[int]:
    """The processes that still run when the time is over."""
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill_ranks(count: int, folder: Path, seed: int = 0) -> Tally:
    """Kill one of two processes that train together: the other one names it, and both resume."""
    tally, draw = Tally("SIGKILL of one of two ranks of train"), random.Random(seed)
    folder.mkdir(parents=True)
    whole = _train_in_two(folder / "whole", draw)
    assert [code for code, _ in whole] == [0, 0], whole
    expected = weights_of(files_of(folder / "whole"))
    while tally.tried < count:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        ends = _train_in_two(out, draw, victim=(victim := draw.randrange(2)))
        code, said = ends[1 - victim]
        wrong = judge_refusal(code, said, f"rank {victim} ", "osae resume") if code else ""
        again = _train_in_two(out, draw)
        same = [code for code, _ in again] == [0, 0] and weights_of(files_of(out)) == expected
        tally.add((DETECTED if code else SURVIVED) if same and not wrong else LOST, f"{wrong}; then {again}")
    return tally


def _train_in_two(out: Path, draw: random.Random, victim: int | None = None) -> list[tuple[int, str]]:
    """What two ranks end with, if one of them is killed some time after the first checkpoint."""
    words = ["resume", out] if (out / "run.json").exists() else [*TRAIN, EPOCHS, "--out", out]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks: list[Started] = [
        start(words, environment={**there, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    if victim is not None:
        while not (out / "checkpoint.safetensors").exists() and is_alive(ranks[0].pid):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.5))
        os.kill(ranks[victim].pid, signal.SIGKILL)
    return [rank.wait() for rank in ranks]
