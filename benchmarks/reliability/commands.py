"""Run commands in processes of their own, on SAEs and activations of any size, and keep tables about them."""

import io
import os
import select
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch

from osae.cli import main as osae
from osae.forecast import free_memory
from osae.model import SAE, SAEConfig
from osae.sparsify import ReLU, TopK

TABLE = "table.md"
PAUSE = 0.005  # seconds between two looks at what a process does
MOST_SAID = 60_000  # bytes: less than a pipe holds


def run_apart(action: Callable[[], str], look: Callable[[int], None] = lambda process: None) -> str:
    """Return what the action returns in a forked process.

    Raise `RuntimeError` with the traceback if it fails there, or with the signal that ended the process.
    `look` is called with the id of that process every few milliseconds until then.
    """
    said, written = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.write(written, action().encode()[:MOST_SAID])
            status = 0
        except BaseException:
            os.write(written, traceback.format_exc().encode()[-MOST_SAID:])
        finally:
            os._exit(status)
    os.close(written)
    while not select.select([said], [], [], PAUSE)[0]:
        look(child)
    with open(said, encoding="utf-8", errors="replace") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise RuntimeError(f"the process was ended by {_describe_signal(-code)}; it said {text[-600:]!r}")
    if code:
        raise RuntimeError(f"the process failed:\n{text}")
    return text


def _describe_signal(number: int) -> str:
    """Return the name of a signal, and how much memory is free if it may be why the process was killed."""
    name = signal.Signals(number).name
    return f"{name}, with {free_memory()} bytes of memory free" if number == signal.SIGKILL else name


def prepare(words: Sequence[object]) -> None:
    """Run a command that writes what another one reads, in a process of its own.

    Large arrays here would change what the allocator of this process, and of those forked from it, keeps.
    """
    if (said := run_apart(lambda: run_quietly(words))) != "0 ":
        raise RuntimeError(f"{words} ended with {said!r}")


def run_quietly(words: Sequence[object]) -> str:
    """Return the exit code of a command, and its messages."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as messages:
        code = osae([str(word) for word in words])
    return f"{code} {messages.getvalue() if code else ''}"


def warm(folder: Path) -> None:
    """Import and compile everything in this process, so that it is not counted for any command."""
    torch.set_num_threads(1)
    saes = [make_sae(folder, 1100, 8, 4, seed) for seed in (0, 1)]  # too many for dense matching
    data = make_rows(folder, 300, 8)
    run = ["--units", 16, "--k", 4, "--batch", 50, "--device", "cpu", "--out", folder / "warm"]
    for words in (
        ["train", "osae", "--data", data, *run],
        ["compare", *saes, "--data", data],
        ["evaluate", saes[0], "--data", data],
        ["order", saes[0], "--data", data, "--out", folder / "ordered"],
        ["stitch", *saes, "--data", data],
        ["prune", saes[0], "--others", saes[1], "--data", data, "--out", folder / "pruned"],
    ):
        assert run_quietly(words) == "0 ", words


def make_rows(folder: Path, rows: int, width: int) -> Path:
    """Write activations."""
    path = folder / f"{rows}x{width}.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32))
    return path


def make_sae(folder: Path, units: int, width: int, k: int, seed: int = 0) -> Path:
    """Write an SAE whose atoms resemble those of other seeds; with k 0, a ReLU SAE."""
    path = folder / f"{units}x{width}k{k}s{seed}"
    if not path.exists():
        shared, own = (
            torch.randn(units, width, generator=torch.Generator().manual_seed(s)) for s in (9, seed)
        )
        atoms = torch.nn.functional.normalize(shared + 0.3 * own, dim=-1)
        SAE(SAEConfig(width, units, TopK(k) if k else ReLU(0.1)), atoms=atoms).save(path)
    return path


def name_of(row: str) -> str:
    """Return the command that a row of a table is about."""
    return row.removeprefix("| ").split(" | ")[0]


def read_rows(out: Path) -> dict[str, str]:
    """Return the rows of the table in a folder, by command."""
    lines = (out / TABLE).read_text().splitlines()[4:] if (out / TABLE).exists() else []
    return {name_of(line): line for line in lines}


def write_rows(out: Path, title: str, head: str, rows: Mapping[str, str]) -> None:
    """Write the table."""
    out.mkdir(parents=True, exist_ok=True)
    align = f"| :-- |{' --: |' * (head.count(' | '))}"
    (out / TABLE).write_text("\n".join([f"# {title}", "", head, align, *rows.values()]) + "\n")
