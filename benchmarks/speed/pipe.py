"""The parent's end of the pipe: a benchmark entry in its own process, which answers one request at a time.

osae is not installed in the peers' environment: this module needs only the standard library.
"""

import json
import subprocess
import tempfile
from typing import Any, NamedTuple

from benchmarks import ROOT


class Shape(NamedTuple):
    """B samples in a batch, d their width, K units in the dictionary, k active in a sample."""

    B: int
    d: int
    K: int
    k: int

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


class Worker:
    """The entry `name` of `module`, run by `python` in its own process.

    `clock` is "wall", or "cpu" for a busy machine: the CPU time of the entry, without waiting.
    """

    def __init__(self, python: str, module: str, name: str, shape: Shape, threads: int, clock: str = "wall"):
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the worker)
        self._process = subprocess.Popen(
            [python, "-m", module, name, json.dumps(shape), str(threads), clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
        )

    def ask(self, what: str) -> Any:
        """Send a request and return the entry's answer; raise `RuntimeError` with its log if it stopped."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"{self.name} stopped at {what!r}:\n{self._log.read()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process; it has nothing to save."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
