"""Requests that make no sense, and files that nobody should trust: one line and code 2, or they are met."""

import gzip
import io
import json
import lzma
import os
import random
import re
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from safetensors.numpy import save as save_arrays

from osae.cli import COMMANDS, main
from osae.cli.command import Command, Group
from osae.files import CHECKSUM
from osae.options import list_options
from tests.faults.damage import change_bytes
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally
from tests.interop.fuzz import FOLDERS, GOLDEN, bombs, damaged_folder, hostile_files
from tests.peaks import is_within_bound, resident

VALUES = [
    "0",
    "1",
    "-1",
    "1e3",
    "2e18",
    "1e30",
    "nan",
    "inf",
    "-inf",
    "a,b",
    "0,1",
    ",",
    "",
    "--",
    "-",
    "x" * 5000,
]
VALUES += [
    "\n",
    "\x1b[2J",
    "[bold]",
    "\\input{x}",
    "=1+1",
    "é",
    "\u202e",
    "{}",
    "[]",
    "null",
    "true",
    "/dev/null",
]


def list_commands() -> list[Command]:
    found = []
    for command in COMMANDS.values():
        found += list(command.find().values()) if isinstance(command, Group) else [command]
    return found


def ask(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and messages of a command in this process; a crash has the code 70."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        try:
            code = main(words)
        except BaseException as crash:
            return 70, "", f"{type(crash).__name__}: {crash}"
    return code, out.getvalue(), error.getvalue()


# lines about what a command does before it finds the fault
STAGE = re.compile(r"osae: (compiling|splitting)|osae harvest: (needs|\d)")


def judge(code: int, out: str, error: str) -> str:
    """How the request ended."""
    lines = [line for line in error.splitlines() if not STAGE.match(line)]
    clean = not any(char in out + error for char in "\x1b\u202e\x07")
    if code == 0 and clean:
        return SURVIVED
    fine = code == 2 and clean and len(lines) == 1 and lines[0].startswith("osae") and len(lines[0]) < 3000
    return DETECTED if fine else LOST


def draw_line(draw: random.Random) -> list[str]:
    """A command with random options and values; with --print-config, it is checked to the end and not run."""
    command = draw.choice(list_commands())
    options = list_options(command.options)
    words = [*command.name.split(), *(draw.choice(VALUES) for _ in range(draw.randrange(3)))]
    for _ in range(draw.randrange(6)):
        flag = draw.choice(options).flag
        if draw.random() < 0.1:
            flag = flag[: draw.randrange(2, len(flag))] + draw.choice("abc-")
        words.append(flag)
        if draw.random() < 0.8:
            words.append(draw.choice(VALUES) if draw.random() < 0.8 else str(draw.gauss(0, 1e6)))
    return [*words, "--print-config"]


def send_lines(count: int, folder: Path, seed: int = 0) -> Tally:
    tally, draw = Tally("generated command lines"), random.Random(seed)
    for _ in range(count):
        words = draw_line(draw)
        code, out, error = ask(words)
        tally.add(judge(code, "" if code == 0 else out, error), f"{words}: {code} {error[-300:]}")
    return tally


def send_configs(count: int, folder: Path, seed: int = 0) -> Tally:
    """Configuration files, changed in their bytes or with another value."""
    tally, draw = Tally("changed configuration files"), random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "run.yaml"
    lines = ask(["train", "osae", "--out", "x", "--print-config"])[1].splitlines()
    lines += ["seeds: [0, 1]", "set: [lr.peak=0.01]", "data: acts"]
    for _ in range(count):
        text = "\n".join(draw.sample(lines, draw.randrange(1, len(lines))))
        if draw.random() < 0.5:
            key, _, _ = draw.choice(lines).partition(":")
            text += f"\n{key}: {json.dumps(draw.choice(VALUES))}\n"
        file.write_bytes(change_bytes(text.encode(), draw) if draw.random() < 0.7 else text.encode())
        code, _, error = ask(["train", "--config", str(file), "--print-config"])
        tally.add(judge(code, "", error), f"{file.read_bytes()!r}: {code} {error[-300:]}")
    return tally


ROWS = ("x.npy", "a.safetensors")  # read as activations


def make_originals() -> dict[str, bytes]:
    """Files of the formats that are read besides those of SAE libraries, by name."""
    rows = np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, rows)
    np.savez(npz, decoder=rows)
    text = b"".join(json.dumps({"text": f"word {i}"}).encode() + b"\n" for i in range(20))
    arrays = save_arrays({"activations": rows}), save_arrays({"decoder": rows})
    packed = {"t.jsonl": text, "t.jsonl.gz": gzip.compress(text), "t.jsonl.xz": lzma.compress(text)}
    return {"x.npy": npy.getvalue(), "d.npy": npy.getvalue(), "x.npz": npz.getvalue()} | {
        "a.safetensors": arrays[0],
        "d.safetensors": arrays[1],
        "t.txt": b"some words\n",
        **packed,
    }


def inspect(path: Path) -> tuple[int, str, str]:
    """What `osae inspect` ends with; too much memory counts as a crash."""
    before = resident("VmRSS", anew=True)
    end = ask(["inspect", str(path)])
    return end if is_within_bound(path, before) else (70, "", "more memory than is promised")


def send_files(count: int, folder: Path, seed: int = 0) -> Tally:
    """Changed files of every format, through a command that reads it."""
    tally, draw = Tally("changed files of every format"), random.Random(seed)
    originals, work = make_originals(), make_work(folder / "work")
    _read_whole_files()
    for case in range(count):
        match case % 4:
            case 0 | 1:
                damaged_folder(draw.choice(FOLDERS), f"faults {seed} {case}", folder / "damaged")
                words = ["inspect", str(folder / "damaged")]
            case 2:
                name = draw.choice(sorted(originals))
                (folder / name).write_bytes(change_bytes(originals[name], draw))
                words = ["inspect", str(folder / name)]
                if name in ROWS:
                    words = ["evaluate", str(folder / "work" / "sae"), "--data", str(folder / name)]
                if name.startswith("t."):
                    words = ["harvest", "--model", str(folder / "work" / "text" / "lm"), "--layer", "1"]
                    words += ["--text", str(folder / name), "--tokens", "30", "--context", "8"]
                    words += ["--device", "cpu", "--out", str(folder / "made")]
            case _:
                file = draw.choice(sorted(work))
                file.write_bytes(change_bytes(work[file], draw))
                words = draw.choice(list_readers(folder / "work", folder / "made"))
        end = inspect(Path(words[1])) if words[0] == "inspect" else ask(words)
        tally.add(judge(*end), f"{words}: {end}")
        shutil.rmtree(folder / "made", ignore_errors=True)
        if case % 4 == 3:
            file.write_bytes(work[file])
    return tally


def _read_whole_files() -> None:
    """Read a file of every format, so that what is imported for it does not count as memory of another."""
    for name in FOLDERS:
        assert ask(["inspect", str(GOLDEN / name)])[0] == 0


def make_work(folder: Path) -> dict[Path, bytes]:
    """The files of a run, a comparison and contexts, without the checksums that would notice any change."""
    from tests.faults.kills import TRAIN, prepare_harvest

    for words in (
        [*TRAIN, "1", "--out", folder / "run"],
        ["compare", folder / "run", "--json", folder / "c.json"],
        prepare_harvest(folder / "text", tokens=60)(folder / "acts"),
        ["contexts", *_sae_for_text(folder), "--data", folder / "acts", "--out", folder / "contexts"],
    ):
        code, _, error = ask([str(word) for word in words])
        assert code == 0, error
    names = ["run/run.json", "run/log.jsonl", "run/osae-seed0/sae.json", "run/osae-seed0/sae.safetensors"]
    names += ["c.json", "contexts/sae/contexts.json", "contexts/sae/contexts.safetensors"]
    names += ["acts/manifest.json", "acts/contexts.safetensors", "sae/sae.json"]
    for name in names:
        if name.endswith(".json"):
            held = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({k: v for k, v in held.items() if k != CHECKSUM}))
    return {folder / name: (folder / name).read_bytes() for name in names}


def _sae_for_text(folder: Path) -> list[Path]:
    from tests.studies.saes import noise, save_sae

    return [save_sae(folder / "sae", noise(8, 16, 0))]


def list_readers(work: Path, made: Path) -> list[list[str]]:
    """Commands that read what others have written."""
    run, scores, contexts, sae, acts = (
        str(work / name) for name in ("run", "c.json", "contexts/sae", "sae", "acts")
    )
    one, page = str(work / "run" / "osae-seed0"), str(made / "page.html")
    made.mkdir(exist_ok=True)
    return [
        ["show", run],
        ["show", scores],
        ["show", contexts],
        ["watch", run, "--once", "--html", page],
        ["report", run, scores, contexts, "--out", page],
        ["contexts", sae, "--data", acts, "--out", str(work / "contexts"), "--model", "none"],
        ["prune", one, "--scores", scores, "--data", acts, "--model", "none", "--out", str(made / "less")],
        ["trust", sae, "--data", acts, "--runs", "2", "--tokens", "20", "--out", str(made / "twins")],
        ["evaluate", sae, "--data", acts],
        ["compare", run],
        ["order", sae, "--data", acts, "--out", str(made / "ordered")],
        ["stitch", sae, sae, "--data", acts],
        ["convert", one, str(made / "other"), "--to", "saelens"],
    ]


def send_bombs(count: int, folder: Path, seed: int = 0) -> Tally:
    """Pickles that would run code, archives that unfold, headers that claim terabytes."""
    folder.mkdir(parents=True, exist_ok=True)
    canary = folder / "ran"
    _read_whole_files()
    cases = [*hostile_files(str(canary)), *bombs()]
    tally, draw = Tally("hostile pickles, bombs and false headers"), random.Random(seed)
    for name, data in draw.sample(cases, min(count, len(cases))):
        (folder / name).write_bytes(data)
        end = judge(*(said := inspect(folder / name)))
        tally.add(LOST if canary.exists() or end == SURVIVED else end, f"{name}: {said}")
        os.unlink(folder / name)
    return tally
