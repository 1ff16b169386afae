"""SIGKILL at random moments and at every kind of write; two writers; signals that ask to stop."""

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from osae.interop import load
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, judge_refusal
from tests.faults.processes import run, run_both

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "500"]
TRAIN = ["train", "osae", "--seeds", "0,1", "--batch", "50", *WORLD, "--snapshots", "500"]
TRAIN += ["--checkpoint-seconds", "0", "--device", "cpu", "--epochs"]
ASIDE = ("checkpoint.safetensors", "checkpoint-before.safetensors", "speed.jsonl", "contexts.json")
MOST = 6  # kills in a row before a command is left to end

Words = Callable[[Path], Sequence[object]]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below the folder but those that say when they were written."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ASIDE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def run_whole(words: Words, folder: Path) -> tuple[dict[str, bytes], float]:
    """The files of a command that nobody interrupts, and the seconds it took."""
    started = time.perf_counter()
    code, said = run(words(folder))
    assert code == 0, said
    return files_of(folder), time.perf_counter() - started


def make_run(folder: Path, epochs: int = 2) -> tuple[dict[str, bytes], float]:
    """The files of an uninterrupted run, and the seconds it took."""
    return run_whole(lambda out: [*TRAIN, epochs, "--out", out], folder)


def train_or_resume(out: Path, epochs: int = 2) -> Sequence[object]:
    """What a user types next."""
    return ["resume", out] if (out / "run.json").exists() else [*TRAIN, epochs, "--out", out]


def kill_repeatedly(
    tally: Tally,
    count: int,
    draw: random.Random,
    words: Words,
    whole: dict[str, bytes],
    folder: Path,
    *,
    seconds: float,
    writes: int,
) -> None:
    """Kill a command at random times and writes, up to six times in a row, let it end, and compare files."""
    while tally.tried < count:
        out, killed = folder / "killed", 0
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(min(MOST, count - tally.tried)):
            moment = {"after": draw.uniform(0, seconds)}
            code, said = run(
                words(out), **(moment if draw.random() < 0.5 else {"at": draw.randint(1, writes)})
            )
            if code != -signal.SIGKILL:
                break
            killed += 1
        code, said = run(words(out))
        found = files_of(out)
        other = sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name))
        for _ in range(killed):
            tally.add(LOST if code or other else SURVIVED, f"exit code {code}, {other}: {said[-300:]}")
        if not killed and (code or other):
            tally.add(LOST, f"without a kill: exit code {code}, {other}: {said[-300:]}")


def kill_training(count: int, folder: Path, seed: int = 0) -> Tally:
    """`osae train` and `osae resume`, killed again and again until they end."""
    tally = Tally("SIGKILL of train and resume")
    whole, seconds = make_run(folder / "whole")
    draw = random.Random(seed)
    kill_repeatedly(tally, count, draw, train_or_resume, whole, folder, seconds=seconds, writes=90)
    return tally


def kill_harvest(count: int, folder: Path, seed: int = 0) -> Tally:
    """`osae harvest`, killed again and again until it ends."""
    tally, harvest = Tally("SIGKILL of harvest"), prepare_harvest(folder, tokens=400)
    whole, seconds = run_whole(harvest, folder / "killed")
    draw = random.Random(seed)
    kill_repeatedly(tally, count, draw, harvest, whole, folder, seconds=seconds, writes=40)
    return tally


def kill_trust(count: int, folder: Path, seed: int = 0) -> Tally:
    """`osae trust`, whose twins are training runs."""
    tally = Tally("SIGKILL of trust")
    make_run(folder / "run")
    sae, data = folder / "run" / "osae-seed0", write_rows(folder / "x.npy", 300, 12)

    def words(out: Path) -> list[object]:
        return ["trust", sae, "--data", data, "--runs", 2, "--tokens", 200, "--out", out, "--device", "cpu"]

    whole, seconds = run_whole(words, folder / "killed")
    draw = random.Random(seed)
    kill_repeatedly(tally, count, draw, words, whole, folder, seconds=seconds, writes=60)
    return tally


def kill_contexts(count: int, folder: Path, seed: int = 0) -> Tally:
    """`osae contexts` on a tiny harvest, with the logit lens."""
    from tests.studies.saes import noise, save_sae

    tally = Tally("SIGKILL of contexts")
    code, said = run(prepare_harvest(folder, tokens=400)(folder / "acts"))
    assert code == 0, said
    sae = save_sae(folder / "sae", noise(20, 16, 0))

    def words(out: Path) -> list[object]:
        return ["contexts", sae, "--data", folder / "acts", "--out", out, "--device", "cpu"]

    whole, seconds = run_whole(words, folder / "killed")
    draw = random.Random(seed)
    kill_repeatedly(tally, count, draw, words, whole, folder, seconds=seconds, writes=12)
    return tally


def prepare_harvest(folder: Path, tokens: int) -> Words:
    """A command that harvests so many rows from a tiny language model, in shards of 50."""
    from tests.data.tiny import documents, saved_model, saved_text

    folder.mkdir(parents=True, exist_ok=True)
    model, text = saved_model(folder / "lm"), saved_text(folder / "t.jsonl", documents(60, seed=5))
    words = ["harvest", "--model", model, "--layer", "2", "--text", text, "--tokens", tokens]
    words += ["--context", "16", "--mix-rows", "50", "--dtype", "float32", "--batch-tokens", "200"]
    return lambda out: [*words, "--device", "cpu", "--out", out]


def write_rows(path: Path, rows: int, width: int) -> Path:
    """A file of random activations."""
    np.save(path, np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32))
    return path


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
        code, said = run(train_or_resume(out, 8))
        tally.add(SURVIVED if code == 0 and files_of(out) == whole else LOST, said)
    return tally


def resume_twice(count: int, folder: Path, seed: int = 0) -> Tally:
    """Two processes on one run: one is refused and told about the other, or comes when all is done."""
    tally = Tally("two resumes of one run at once")
    whole, seconds = make_run(folder / "whole", epochs=4)
    while tally.tried < count:
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
    """compare, convert, order, prune and report: what they leave is whole, or is not read as whole."""
    tally, draw = Tally("SIGKILL of compare, convert, order, prune and report"), random.Random(seed)
    make_run(folder / "run")
    one, two = folder / "run" / "osae-seed0", folder / "run" / "osae-seed1"
    decoder, rows, out = load(one).decoder, write_rows(folder / "x.npy", 200, 12), folder / "out"
    page = ["--html", folder / "c.html"]
    code, said = run(["compare", one, two, "--json", folder / "scores.json"])
    assert code == 0, said
    compare = ["compare", one, two, "--json", folder / "c.json", *page]
    report = ["report", folder / "run", folder / "scores.json", "--out", folder / "c.html"]
    order = ["order", one, "--data", rows, "--out", out]
    shutil.copytree(one, folder / "twin")
    prune = [
        "prune",
        one,
        "--others",
        folder / "twin",
        "--data",
        rows,
        "--model",
        "none",
        "--out",
        out,
        *page,
    ]
    cases = [compare, report, order, prune]
    cases += [["convert", one, out, "--to", name] for name in ("osae", "saelens", "dictionary_learning")]

    def remove() -> None:
        shutil.rmtree(out, ignore_errors=True)
        for name in ("c.json", "c.html"):
            (folder / name).unlink(missing_ok=True)

    def time_whole(words: Sequence[object]) -> float:
        remove()
        return run_whole(lambda _: words, folder / "nothing")[1]

    seconds = [time_whole(words) for words in cases]
    while tally.tried < count:
        remove()
        chosen = draw.randrange(len(cases))
        words, after = cases[chosen], draw.uniform(0, seconds[chosen])
        code, said = run(words, **({"after": after} if draw.random() < 0.5 else {"at": draw.randrange(1, 9)}))
        if code == 0:
            continue  # it was done by then, or has fewer writes than that
        fine = code == -signal.SIGKILL and _is_whole(folder) and _is_same(out, decoder, words[0])
        tally.add(SURVIVED if fine else LOST, f"{words} ended with {code}: {said[-300:]}")
    return tally


def _is_whole(folder: Path) -> bool:
    """Whether each of the files is absent or whole."""
    from osae import results

    if (folder / "c.json").exists():
        results.read(folder / "c.json")
    page = folder / "c.html"
    return not page.exists() or page.read_text().rstrip().endswith("</html>")


def _is_same(folder: Path, decoder, command: object) -> bool:
    """Whether the SAE that was written is refused or has these atoms, some of them, or another order."""
    if not folder.exists():
        return True
    try:
        found = load(folder).decoder
    except ValueError as error:
        return not judge_refusal(2, f"osae: {error}", str(folder))
    if command == "prune":
        return all(bool((decoder == atom).all(1).any()) for atom in found)
    if command == "order":
        return bool((found.sort(0)[0] == decoder.sort(0)[0]).all())
    return bool((found == decoder).all())
