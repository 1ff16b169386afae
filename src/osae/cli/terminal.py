"""Progress, as a terminal shows it."""

import sys
import time
from datetime import timedelta


class Progress:
    """A progress bar, or a line now and then when output is not a terminal: called with (done, total, text).

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
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
            )
            self.bar = progress.Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(f"{self.title}: starting", total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        new_stage = done < self.done or total != self.total
        if new_stage:
            self.started, self.first = time.monotonic(), done
        self.done, self.total = done, total
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
