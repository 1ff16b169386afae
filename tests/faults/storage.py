"""Storage that is full, read-only, forbidden, slow, or changed by others: the file is named, work resumes.

python -m tests.faults.storage FAULT FOLDER COUNT SEED     on a small disk that is mounted at FOLDER
"""

import ctypes
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from osae.data.shards import write_shards
from tests.faults.kills import (
    TRAIN,
    files_of,
    make_run,
    prepare_harvest,
    run_whole,
    train_or_resume,
    write_rows,
)
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, judge_refusal
from tests.faults.processes import before_writes, run, start, warm

MOUNT = 'mount -t tmpfs -o size=50m tmpfs "$0" && exec "$@"'
End = tuple[str, str]


def fill_disk(count: int, folder: Path, seed: int = 0) -> Tally:
    """A disk that is full at some write."""
    return _try_on_disk("full disk while training", "full", count, folder, seed)


def forbid_writing(count: int, folder: Path, seed: int = 0) -> Tally:
    """A disk that turns read-only."""
    return _try_on_disk("read-only disk, all commands that write", "read-only", count, folder, seed)


def _try_on_disk(fault: str, how: str, count: int, folder: Path, seed: int) -> Tally:
    """Try it in a process that may mount a disk; nothing is tried where that is not permitted."""
    folder.mkdir(parents=True)
    inside = ["unshare", "-rm", "sh", "-c", MOUNT, str(folder)]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        return Tally(f"{fault} (not permitted here)")
    words = [sys.executable, "-m", "tests.faults.storage", how, str(folder), str(count), str(seed)]
    ran = subprocess.run([*inside, *words], capture_output=True, text=True, check=False)
    tally = Tally(fault)
    for end, what in json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else [(LOST, ran.stderr)]:
        tally.add(end, what)
    return tally


def _remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def _try_sizes(disk: Path, count: int, seed: int) -> list[End]:
    draw, ends = random.Random(seed), []
    whole, _ = make_run(disk / "whole")
    used = sum(path.stat().st_blocks * 512 for path in disk.rglob("*")) // 1024
    shutil.rmtree(disk / "whole")
    for _ in range(count):
        out = disk / "run"
        _remount(disk, f"size={draw.randrange(8, 2 * used)}k")
        code, said = run([*TRAIN, 2, "--out", out])
        wrong = judge_refusal(code, said, str(out)) if code else ""
        _remount(disk, "size=50m")
        words = train_or_resume(out)
        again, more = run(words)
        if wrong or again != 0 or files_of(out) != whole:
            ends.append((LOST, f"{wrong}; then {words[0]} ended with {again}: {more[-300:]}"))
        else:
            ends.append((DETECTED if code else SURVIVED, ""))
        shutil.rmtree(out)
    return ends


def _try_read_only(disk: Path, count: int, seed: int) -> list[End]:
    draw, ends, out = random.Random(seed), [], disk / "out"
    cases = list_writers(disk, out)
    for _ in range(count):
        words = draw.choice(cases)
        _remount(disk, "ro")
        code, said = run(words)
        wrong = judge_refusal(code, said, str(disk))
        _remount(disk, "rw")
        again, more = run(words)
        fine = not wrong and again == 0
        ends.append((DETECTED, "") if fine else (LOST, f"{words}: {wrong}; then {again}: {more[-300:]}"))
        _clear(out)
    return ends


def list_writers(folder: Path, out: Path) -> list[Sequence[object]]:
    """Commands that write to `out`, and what they read, in the folder."""
    make_run(folder / "run")
    sae, rows, harvest = (
        folder / "run" / "osae-seed0",
        write_rows(folder / "x.npy", 200, 12),
        prepare_harvest(folder, 100),
    )
    scores = folder / "c.json"
    code, said = run(["compare", folder / "run", "--json", scores])
    assert code == 0, said
    return [
        [*TRAIN, 2, "--out", out],
        harvest(out),
        ["compare", folder / "run", "--json", out.with_suffix(".json"), "--html", out.with_suffix(".html")],
        ["report", folder / "run", scores, "--out", out.with_suffix(".html")],
        ["order", sae, "--data", rows, "--out", out],
        ["evaluate", sae, "--data", rows, "--csv", out.with_suffix(".csv")],
        ["trust", sae, "--data", rows, "--runs", 2, "--tokens", 100, "--out", out, "--device", "cpu"],
        ["convert", sae, out, "--to", "saelens"],
    ]


def _clear(out: Path) -> None:
    for path in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def deny_permission(count: int, folder: Path, seed: int = 0) -> Tally:
    """A folder that may not be written to, or a file that may not be read."""
    tally, draw = Tally("permission denied, to write a folder or read a file"), random.Random(seed)
    writers = list_writers(folder, folder / "made" / "out")
    (folder / "made").mkdir()
    inputs = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".npy", ".json")]
    inputs += [*folder.glob("run/*/*.safetensors"), *folder.glob("lm/*"), folder / "t.jsonl"]
    for _ in range(count):
        words = draw.choice(writers)
        target = folder / "made" if draw.random() < 0.5 else draw.choice(inputs)
        target.chmod(0o555 if target.is_dir() else 0)
        code, said = run(words, before=give_up_override)
        wrong = judge_refusal(code, said, str(target)) if code else ""
        target.chmod(0o755)
        _clear(folder / "made" / "out")
        again, more = run(words, before=give_up_override)
        end = DETECTED if code else SURVIVED  # it did not need that file
        tally.add(LOST if wrong or again else end, f"{words}, {target}: {wrong}; then {again}: {more[-300:]}")
        _clear(folder / "made" / "out")
    return tally


def give_up_override() -> None:
    """Give up root's right to read and write any file, whatever its permissions say."""
    libc, header = ctypes.CDLL(None, use_errno=True), struct.pack("II", 0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities, twice
    assert libc.capget(header, held) == 0
    held[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, held) == 0


def change_inputs(count: int, folder: Path, seed: int = 0) -> Tally:
    """Activations that vanish, are cut or are replaced while a command reads them."""
    tally, draw = Tally("activations that vanish or change while they are read"), random.Random(seed)
    readers, out = list_readers(folder), folder / "out"
    wholes = []
    for words in readers:
        wholes.append(run_whole(lambda _, words=words: words, out))
        _clear(out)
    files = sorted((folder / "acts").iterdir())
    kept = {file: file.read_bytes() for file in files}
    for _ in range(count):
        number = draw.randrange(len(readers))
        whole, seconds = wholes[number]
        _clear(out)
        command, file = start(readers[number]), draw.choice(files)
        time.sleep(draw.uniform(0, seconds))
        draw.choice(CHANGES)(file)
        code, said = command.wait()
        wrong = judge_refusal(code, said, str(folder / "acts")) if code else ""
        same = code != 0 or _read_all(out) == _read_all_of(whole)
        file.write_bytes(kept[file])
        words = ["resume", out] if (out / "run.json").exists() and code else readers[number]
        if code:
            if words[0] != "resume":
                _clear(out)
            again, more = run(words)
            wrong = wrong or (f"then {again}: {more[-300:]}" if again else "")
            same = _read_all(out) == _read_all_of(whole)
        end = (DETECTED if code else SURVIVED) if same and not wrong else LOST
        tally.add(end, f"{readers[number][0]}, {file.name}: {wrong}, the same: {same}")
    return tally


def list_readers(folder: Path) -> list[list[object]]:
    """Commands that read activations in several shards for a while."""
    import torch

    rows = torch.randn(6000, 12, generator=torch.Generator().manual_seed(0))
    write_shards(folder / "acts", [rows], rows_per_shard=1000)
    make_run(folder / "run")
    sae, data = folder / "run" / "osae-seed0", ["--data", folder / "acts"]
    train = ["train", "topk", *data, "--units", 16, "--k", 2, "--batch", 100, "--checkpoint-seconds", 0]
    return [
        [*train, "--device", "cpu", "--out", folder / "out"],
        ["order", sae, *data, "--out", folder / "out"],
    ]


def _read_all(out: Path) -> dict[str, bytes]:
    return _read_all_of(files_of(out)) if out.exists() else {}


def _read_all_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith("sae.safetensors")}


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 3)


def _replace(file: Path) -> None:
    beside = file.with_name("new")
    beside.write_bytes(bytes(reversed(file.read_bytes())))
    os.replace(beside, file)


def _overwrite(file: Path) -> None:
    with open(file, "r+b") as held:
        held.seek(file.stat().st_size // 2)
        held.write(b"changed!")


CHANGES: list[Callable[[Path], None]] = [Path.unlink, _cut, _replace, _overwrite]


def slow_down(count: int, folder: Path, seed: int = 0) -> Tally:
    """Storage on which every flush and every new name takes a random time, up to a fifth of a second."""
    tally, draw = Tally("slow flushes and renames while training"), random.Random(seed)
    whole, _ = make_run(folder / "whole")
    for _ in range(count):
        out, most = folder / "run", draw.uniform(0.01, 0.2)
        shutil.rmtree(out, ignore_errors=True)
        pauses = random.Random(draw.random())
        wait = lambda most=most, pauses=pauses: time.sleep(pauses.uniform(0, most))  # noqa: E731
        code, said = run([*TRAIN, 2, "--out", out], before=lambda wait=wait: before_writes(wait))
        tally.add(SURVIVED if code == 0 and files_of(out) == whole else LOST, said[-300:])
    return tally


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        warm(Path(scratch))
    attempt = {"full": _try_sizes, "read-only": _try_read_only}[sys.argv[1]]
    print(json.dumps(attempt(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
