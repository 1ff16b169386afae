"""Requests that make no sense, and files that nobody should trust: one line and code 2, or they are met."""

import gzip
import io
import json
import lzma
import os
import random
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from safetensors.numpy import save as save_arrays

from osae.cli import COMMANDS, main
from osae.cli.command import Command, Group
from osae.options import list_options
from tests.faults.damage import change_bytes
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally
from tests.interop.fuzz import FOLDERS, bombs, damaged_folder, hostile_files

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


def judge(code: int, out: str, error: str) -> str:
    """How the request ended."""
    lines = [line for line in error.splitlines() if not line.startswith("osae: compiling")]
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


def make_originals() -> dict[str, bytes]:
    """Files of the formats that are read besides those of SAE libraries, by name."""
    rows = np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, rows)
    np.savez(npz, decoder=rows)
    text = b"".join(json.dumps({"text": f"word {i}"}).encode() + b"\n" for i in range(20))
    arrays = save_arrays({"activations": rows}), save_arrays({"decoder": rows})
    packed = {"t.jsonl": text, "t.jsonl.gz": gzip.compress(text), "t.jsonl.xz": lzma.compress(text)}
    return {"x.npy": npy.getvalue(), "x.npz": npz.getvalue(), "a.safetensors": arrays[0]} | {
        "d.safetensors": arrays[1],
        "t.txt": b"some words\n",
        **packed,
    }


def send_files(count: int, folder: Path, seed: int = 0) -> Tally:
    """Changed files of every format, through a command that reads it."""
    tally, draw = Tally("changed files of every format"), random.Random(seed)
    originals = make_originals()
    folder.mkdir(parents=True, exist_ok=True)
    for case in range(count):
        if case % 2:
            damaged_folder(draw.choice(FOLDERS), f"faults {seed} {case}", folder / "damaged")
            words = ["inspect", str(folder / "damaged")]
        else:
            name = draw.choice(sorted(originals))
            (folder / name).write_bytes(change_bytes(originals[name], draw))
            words = ["inspect", str(folder / name)]
            if name.startswith("t."):
                words = ["harvest", "--model", str(folder / "no-model"), "--layer", "1", "--text"]
                words += [str(folder / name), "--tokens", "9", "--out", str(folder / "acts")]
        tally.add(judge(*(end := ask(words))), f"{words}: {end}")
    return tally


def send_bombs(count: int, folder: Path, seed: int = 0) -> Tally:
    """Pickles that would run code, archives that unfold, headers that claim terabytes."""
    folder.mkdir(parents=True, exist_ok=True)
    canary = folder / "ran"
    cases = [*hostile_files(str(canary)), *bombs()]
    tally, draw = Tally("hostile pickles, bombs and false headers"), random.Random(seed)
    for name, data in draw.sample(cases, min(count, len(cases))):
        (folder / name).write_bytes(data)
        end = judge(*(said := ask(["inspect", str(folder / name)])))
        tally.add(LOST if canary.exists() or end == SURVIVED else end, f"{name}: {said}")
        os.unlink(folder / name)
    return tally
