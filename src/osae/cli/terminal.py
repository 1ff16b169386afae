"""Progress and messages, as a terminal shows them."""

import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

LONGEST_TEXT = 300  # beside a progress bar


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, so that files that are being written are removed on the way out."""


def report_stop(stop: KeyboardInterrupt, remedy: str) -> int:
    """Say that the command was interrupted; return its exit code."""
    print(file=sys.stderr)  # the terminal has echoed ^C
    say(f"osae: interrupted. {remedy}")
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def say(message: str) -> None:
    """Print a message to the user, in one line."""
    from osae.report.text import visible

    print(visible(message.strip()), file=sys.stderr, flush=True)


class Progress:
    """A progress bar on a terminal, a line now and then elsewhere: called with (done, total, text).

    If `done` falls or `total` changes, a new stage has started, and its time is measured anew.
    """

    def __init__(self, title: str):
        self.title, self.bar, self.task, self.said = title, None, None, 0.0
        self.done, self.total, self.started, self.first = 0, -1, 0.0, 0

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
            )
            self.bar = progress.Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(f"{self.title}: starting", total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        from osae.report.text import visible

        new_stage = done < self.done or total != self.total
        if new_stage:
            self.started, self.first = time.monotonic(), done
        self.done, self.total, text = done, total, visible(text, LONGEST_TEXT)
        if self.bar is not None and self.task is not None:
            if new_stage:
                self.bar.reset(self.task)
            self.bar.update(self.task, completed=done, total=total, description=f"{self.title}: {text}")
        elif time.monotonic() - self.said > 5 or done == total:
            self.said = time.monotonic()
            print(f"{self.title}: {done}/{total} {text}{self._left()}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """Return the time left, at the pace of this stage; empty if there is no pace yet."""
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


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings for users in one line, without the place in the code that gave them."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_plainly(message, category, filename, lineno, file=None, line=None):
            if category is UserWarning:
                say(f"osae: warning: {message}")
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_plainly
        yield
