"""Worker processes whose current tasks are known, and which do not outlive their parent process.

A worker reads tasks from its standard input and writes results to its standard output. If a worker dies, its
output ends, and the others are stopped at once. If the parent dies, the worker's input ends, and it exits.
"""

import os
import pickle
import queue
import selectors
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_SERVE = "from osae.experiments.workers import serve; serve()"
_LENGTH = struct.Struct("<Q")  # length of a task in bytes, before the task itself
_PATIENCE = 5.0  # seconds for a worker to exit on its own


def run_locally(
    function: Callable[[T], R],
    tasks: Sequence[T],
    *,
    workers: int,
    describe: Callable[[T], str],
    lost: Callable[[T, str], R] | None = None,
) -> Iterator[R]:
    """Yield function(task) for every task as it finishes, in any order.

    With a single worker and no `lost`, tasks run in this process.

    If a worker dies, `lost` provides the result of its task, and a new worker replaces it; without `lost`, a
    `ChildProcessError` names the task.
    """
    if workers == 1 and lost is None:
        yield from map(function, tasks)
        return
    waiting = list(reversed(tasks))
    team: list[_Worker[T, R]] = []
    try:
        with selectors.DefaultSelector() as selector:

            def hire() -> None:
                team.append(_Worker(function, describe))
                selector.register(team[-1].answers, selectors.EVENT_READ, team[-1])
                team[-1].give(waiting.pop())

            for _ in range(min(workers, len(tasks))):
                hire()
            for _ in tasks:
                worker = selector.select()[0][0].data
                try:
                    answer, alive = worker.take(), True
                except ChildProcessError as error:
                    if lost is None:
                        raise
                    answer, alive = lost(worker.task, str(error)), False
                if alive and waiting:
                    worker.give(waiting.pop())
                else:
                    selector.unregister(worker.answers)
                    if waiting:
                        hire()
                yield answer
    finally:
        for worker in team:
            worker.stop()


class _Worker(Generic[T, R]):
    """A process and its current task."""

    def __init__(self, function: Callable[[T], R], describe: Callable[[T], str]):
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.function, self.describe, self.task = function, describe, None

    def give(self, task: T) -> None:
        """Start the worker on a task."""
        self.task = task
        with suppress(BrokenPipeError):  # it died, which `take` reports
            request = pickle.dumps((self.function, task))
            self.requests.write(_LENGTH.pack(len(request)) + request)
            self.requests.flush()

    def take(self) -> R:
        """Return the worker's result; raise the exception of its task."""
        assert self.task is not None
        try:
            kind, answer = pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError):
            raise ChildProcessError(
                f"the worker process for {self.describe(self.task)} died ({_describe_end(self.process)}): "
                "run the same command again to resume."
            ) from None
        match kind:
            case "done":
                return answer
            case "ValueError":
                raise ValueError(answer)
            case "OSError":
                raise OSError(answer)
            case _:
                raise RuntimeError(f"{self.describe(self.task)} failed:\n{answer}")

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        for pipe in (self.requests, self.answers):
            with suppress(OSError):  # nobody reads what is left in its buffer
                pipe.close()
        self.process.kill()
        self.process.wait()


def _describe_end(process: subprocess.Popen) -> str:
    try:
        code = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        return "it closed its output"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, perhaps for lack of memory"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def serve() -> None:
    """Run tasks from the standard input until it ends, then exit at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output printed by a task is not its result
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_tasks, args=(tasks,), daemon=True).start()
    while True:
        pickle.dump(_answer(tasks.get()), answers)
        answers.flush()


def _read_tasks(tasks: "queue.SimpleQueue[bytes]") -> None:
    """Pass tasks on as bytes: unpickling may take time, and the end of the input must be noticed at once."""
    while length := sys.stdin.buffer.read(_LENGTH.size):
        tasks.put(sys.stdin.buffer.read(*_LENGTH.unpack(length)))
    os._exit(1)  # the parent process has ended


def _answer(request: bytes) -> tuple[str, Any]:
    try:
        function, task = pickle.loads(request)
        return "done", function(task)
    except ValueError as error:
        return "ValueError", str(error)
    except OSError as error:
        return "OSError", str(error)
    except Exception:
        return "another", traceback.format_exc()
