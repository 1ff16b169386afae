"""Commands in forked processes, killed after a time or at a write; the parent has imported everything."""

import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, NamedTuple

import jaxtyping
import torch

LONGEST = 300  # seconds; a command that takes longer hangs
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


def run(
    words: Sequence[object],
    *,
    after: float | None = None,
    at: int | None = None,
    number: int = 9,
    before: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Exit code and output of `osae WORDS`; signalled after so many seconds, or at the so manieth write."""
    command = start(words, at=at, number=number, before=before)
    if after is not None:
        time.sleep(after)
        os.kill(command.pid, number)
    return command.wait()


def run_both(first: Sequence[object], second: Sequence[object]) -> list[tuple[int, str]]:
    """What two commands that are started together end with."""
    return [command.wait() for command in [start(first), start(second)]]


class Started(NamedTuple):
    """A command in a process of its own, and the file that receives what it says."""

    pid: int
    said: IO[bytes]

    def wait(self) -> tuple[int, str]:
        """The exit code, and what was said."""
        _, status = os.waitpid(self.pid, 0)
        with self.said:
            self.said.seek(0)
            return os.waitstatus_to_exitcode(status), self.said.read().decode(errors="replace")


def start(
    words: Sequence[object],
    *,
    at: int | None = None,
    number: int = 9,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] = lambda: None,
) -> Started:
    """Begin `osae WORDS` in a forked process; it is signalled at the so manieth write, if that is given.

    `before` is called in that process first.
    """
    said = tempfile.TemporaryFile()  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment or {})
        before()
        _command([str(word) for word in words], said.fileno(), at, number)
    return Started(pid, said)


def _command(words: list[str], said: int, at: int | None, number: int) -> None:
    """Run the command and end this process, whatever happens."""
    code = CRASHED
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the test runner's handler is inherited
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

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    before_writes(count_down)


def before_writes(action: Callable[[], None]) -> None:
    """Do something in this process whenever a file is about to be flushed, renamed or removed."""

    def wrap(real):
        def called(*args, **options):
            action()
            return real(*args, **options)

        return called

    for name in ("fsync", "replace", "rename", "link", "unlink"):
        setattr(os, name, wrap(getattr(os, name)))
