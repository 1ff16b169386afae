"""Progress reports for long-running work."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, TypeVar

Progress = Callable[[int, int, str], None]
"""Called after each step with the number of steps done, their total, and a description of the work."""

Item = TypeVar("Item")
LONGEST_TEXT = 300  # next to a progress bar
SECONDS = 5  # between two lines
BAR_SECONDS = 0.2  # between two updates of the text next to a bar


@dataclass
class Steps:
    """A thread-safe counter that reports each step; `total` may grow as more work becomes known."""

    progress: Progress | None
    total: int = 0
    done: int = 0
    _turn: Any = field(default_factory=threading.Lock, repr=False)

    def __call__(self, text: str) -> None:
        """Count one step and report it."""
        with self._turn:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, max(self.total, self.done), text)

    def each(self, items: Iterable[Item], text: str) -> Iterator[Item]:
        """Yield the items, counting one step after each has been used."""
        for item in items:
            yield item
            self(text)


class ProgressBar:
    """A progress bar in a terminal or notebook, otherwise an occasional line; called like `Progress`.

    If `done` decreases or `total` changes, a new stage has started, and timing starts again.
    """

    def __init__(self, title: str):
        self.title, self.bar, self.task, self.said = title, None, None, 0.0
        self.done, self.total, self.started, self.first = 0, -1, 0.0, 0

    def __enter__(self) -> "ProgressBar":
        if shows_bars():
            self.bar = _make_bar()
            self.task = self.bar.add_task(f"{self.title}: starting", total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int, text: str | Callable[[], str]) -> None:
        """Show the progress.

        A text that is slow to compute can be a function, called only when it is shown.
        """
        from osae.report.text import visible

        new_stage = done < self.done or total != self.total
        if new_stage:
            self.started, self.first = time.monotonic(), done
        self.done, self.total, quiet = done, total, time.monotonic() - self.said
        if self.bar is not None and self.task is not None:
            if new_stage:
                self.bar.reset(self.task)
            self.bar.update(self.task, completed=done, total=total)
            if isinstance(text, str) or quiet > BAR_SECONDS or done == total:
                self.said = time.monotonic()
                words = visible(text if isinstance(text, str) else text(), LONGEST_TEXT)
                self.bar.update(self.task, description=f"{self.title}: {words}")
        elif quiet > SECONDS or done == total:
            self.said = time.monotonic()
            words = visible(text if isinstance(text, str) else text(), LONGEST_TEXT)
            print(f"{self.title}: {done}/{total} {words}{self._left()}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """Return the time left at the pace of this stage; empty if the pace is not known yet."""
        if not self.first < self.done < self.total:
            return ""
        pace = (time.monotonic() - self.started) / (self.done - self.first)
        try:
            return f", {timedelta(seconds=round(pace * (self.total - self.done)))} left"
        except OverflowError:
            return ", years left"

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def shows_bars() -> bool:
    """Return whether a progress bar can be drawn: on a terminal, or in a notebook that has ipywidgets."""
    if sys.stderr.isatty():
        return True
    if "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter


def _make_bar() -> Any:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True))
