"""SIGKILL at random moments and at every kind of write; two writers; signals that ask to stop."""

import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np

from osae.interop import load
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, judge_refusal
from tests.faults.processes import run, run_both

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "500"]
TRAIN = ["train", "osae", "--seeds", "0,1", "--batch", "50", *WORLD, "--snapshots", "500"]
TRAIN += ["--checkpoint-seconds", "0", "--device", "cpu", "--epochs"]
ASIDE = ("checkpoint.safetensors", "checkpoint-before.safetensors", "speed.jsonl")


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below the folder but checkpoints and speeds, which say when they were written."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ASIDE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def make_run(folder: Path, epochs: int = 2) -> tuple[dict[str, bytes], float]:
    """The files of an uninterrupted run, and the seconds it took."""
    started = time.perf_counter()
    code, said = run([*TRAIN, epochs, "--out", folder])
    assert code == 0, said
    return files_of(folder), time.perf_counter() - started


def draw_kill(draw: random.Random, seconds: float) -> dict:
    return {"after": draw.uniform(0, seconds)} if draw.random() < 0.5 else {"at": draw.randrange(1, 90)}


def kill_training(count: int, folder: Path, seed: int = 0) -> Tally:
    """`osae train` and `osae resume`, killed again and again until they end."""
    tally, draw = Tally("SIGKILL of train and resume"), random.Random(seed)
    whole, seconds = make_run(folder / "whole")
    while tally.tried < count:
        out, killed = folder / "run", 0
        shutil.rmtree(out, ignore_errors=True)
        while killed < 6:
            words = ["resume", out] if (out / "run.json").exists() else [*TRAIN, 2, "--out", out]
            code, said = run(words, **draw_kill(draw, seconds))
            if code != -signal.SIGKILL:
                break
            killed += 1
        words = ["resume", out] if (out / "run.json").exists() else [*TRAIN, 2, "--out", out]
        code, said = run(words)
        found = files_of(out)
        other = sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name))
        for _ in range(max(killed, 1)):
            tally.add(LOST if code or other else SURVIVED, f"exit code {code}, {other}: {said[-300:]}")
    return tally


def stop_training(count: int, folder: Path, seed: int = 0) -> Tally:
    """Signals that ask to stop: the right code, and a run that ends like an uninterrupted one."""
    tally, draw = Tally("SIGINT and SIGTERM of train"), random.Random(seed)
    whole, seconds = make_run(folder / "whole", epochs=8)
    for _ in range(count):
        out, number = folder / "run", draw.choice((signal.SIGINT, signal.SIGTERM))
        shutil.rmtree(out, ignore_errors=True)
        code, said = run([*TRAIN, 8, "--out", out], after=draw.uniform(0.3, 0.9) * seconds, number=number)
        if code not in (0, 128 + number):
            tally.add(LOST, f"{number} ended with {code}: {said}")
            continue
        code, said = run(["resume", out]) if (out / "run.json").exists() else run([*TRAIN, 8, "--out", out])
        tally.add(SURVIVED if code == 0 and files_of(out) == whole else LOST, said)
    return tally


def resume_twice(count: int, folder: Path, seed: int = 0) -> Tally:
    """Two processes on one run: one is refused and told about the other, or comes when all is done."""
    tally = Tally("two resumes of one run at once")
    whole, seconds = make_run(folder / "whole", epochs=4)
    for _ in range(count):
        out = folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        run([*TRAIN, 4, "--out", out], after=0.5 * seconds, number=signal.SIGINT)
        if not (out / "run.json").exists():
            continue
        ends = run_both(["resume", out], ["resume", out])
        refused = [said for code, said in ends if code == 2]
        named = all("is in use by process" in said for said in refused)
        right = files_of(out) == whole and named and {code for code, _ in ends} <= {0, 2} and len(refused) < 2
        tally.add((DETECTED if refused else SURVIVED) if right else LOST, str(ends))
    return tally


def kill_studies(count: int, folder: Path, seed: int = 0) -> Tally:
    """compare, convert and order: what they leave is whole, or is not read as whole."""
    tally, draw = Tally("SIGKILL of compare, convert and order"), random.Random(seed)
    make_run(folder / "run")
    one, two = folder / "run" / "osae-seed0", folder / "run" / "osae-seed1"
    decoder = load(one).decoder
    compare = ["compare", one, two, "--json", folder / "c.json", "--html", folder / "c.html"]
    convert = ["convert", one, folder / "out", "--to"]
    rows = np.random.default_rng(0).normal(size=(200, decoder.shape[1]))
    np.save(folder / "x.npy", rows.astype(np.float32))
    order = ["order", one, "--data", folder / "x.npy", "--out", folder / "out"]
    cases = [compare, order, [*convert, "osae"], [*convert, "saelens"], [*convert, "dictionary_learning"]]
    for case in range(count):
        shutil.rmtree(folder / "out", ignore_errors=True)
        for name in ("c.json", "c.html"):
            (folder / name).unlink(missing_ok=True)
        words = cases[case % len(cases)]
        code, said = run(words, at=draw.randrange(1, 9))
        fine = code in (0, -signal.SIGKILL) and (
            _is_whole(folder) if words is compare else _is_same(folder, decoder, sort=words is order)
        )
        tally.add(SURVIVED if fine else LOST, f"{words} ended with {code}: {said[-300:]}")
    return tally


def _is_whole(folder: Path) -> bool:
    """Whether each of the files is absent or whole."""
    from osae import results

    if (folder / "c.json").exists():
        results.read(folder / "c.json")
    page = folder / "c.html"
    return not page.exists() or page.read_text().rstrip().endswith("</html>")


def _is_same(folder: Path, decoder, *, sort: bool) -> bool:
    """Whether the SAE that was written is refused, or has the same atoms, in any order if `sort`."""
    if not (folder / "out").exists():
        return True
    try:
        found = load(folder / "out").decoder
        return bool((found.sort(0)[0] == decoder.sort(0)[0]).all() if sort else (found == decoder).all())
    except ValueError as error:
        return not judge_refusal(2, f"osae: {error}", str(folder / "out"))
