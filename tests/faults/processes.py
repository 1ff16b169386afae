"""Commands in forked processes, killed after a time or at a write; the parent has imported everything."""

import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import jaxtyping
import torch

LONGEST = 120  # seconds; a command that takes longer hangs
CRASHED = 70
MEMORY = Path("/dev/shm")  # where flushing a file takes no time; a process that is killed loses nothing there


def warm(folder: Path) -> None:
    """Import and compile everything here, once, so that commands in forked processes take no time for it."""
    from osae.cli import main

    torch.set_num_threads(1)
    world = ["--world-width", "6", "--world-units", "8", "--world-active", "2", "--world-samples", "100"]
    words = ["train", "osae,batchtopk", "--seeds", "0,1", "--batch", "50", *world, "--epochs", "2"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main([*words, "--device", "cpu", "--out", str(folder / "warm")]) == 0
        one, two = (str(folder / "warm" / f"osae-seed{seed}") for seed in (0, 1))
        assert main(["compare", one, two]) == 0
        assert main(["convert", one, str(folder / "converted"), "--to", "saelens"]) == 0


def run(words: Sequence[object], *, after: float | None = None, at: int | None = None, number: int = 9):
    """Exit code and output of `osae WORDS`; signalled after so many seconds, or at the so manieth write."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            _command([str(word) for word in words], said.fileno(), at, number)
        if after is not None:
            time.sleep(after)
            os.kill(pid, number)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")


def run_both(first: Sequence[object], second: Sequence[object]) -> list[tuple[int, str]]:
    """What two commands that are started together end with."""
    outputs = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
    pids = []
    for words, said in zip((first, second), outputs, strict=True):
        if (pid := os.fork()) == 0:
            _command([str(word) for word in words], said.fileno(), None, 9)
        pids.append(pid)
    ends = []
    for pid, said in zip(pids, outputs, strict=True):
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        ends.append((os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")))
        said.close()
    return ends


def _command(words: list[str], said: int, at: int | None, number: int) -> None:
    """Run the command and end this process, whatever happens."""
    code = CRASHED
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.alarm(LONGEST)
        if at is not None:
            _signal_at(at, number)
        jaxtyping.config.update("jaxtyping_disable", True)  # shapes are not checked for a user
        from osae.cli import main

        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _signal_at(count: int, number: int) -> None:
    """Signal this process when a file is about to be flushed, renamed or removed for the so manieth time."""
    left = count

    def deadly(real):
        def called(*args, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)
            return real(*args, **options)

        return called

    for name in ("fsync", "replace", "rename", "link", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
