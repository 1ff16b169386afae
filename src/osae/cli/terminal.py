"""What the commands share: progress on a terminal, and arguments that explain themselves."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

Writer = Callable[[dict[str, Any], Path], None]


class Progress:
    """A progress bar on a terminal, a line now and then elsewhere: called with (done, total, text).

    Where less is done than before, or of another total, something new has begun, and so has its time.
    """

    def __init__(self, title: str):
        self.title, self.bar, self.task, self.said = title, None, None, 0.0
        self.done, self.total, self.began, self.first = 0, -1, 0.0, 0

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
            self.task = self.bar.add_task(self.title, total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        anew = done < self.done or total != self.total
        if anew:
            self.began, self.first = time.monotonic(), done
        self.done, self.total = done, total
        if self.bar is not None and self.task is not None:
            if anew:
                self.bar.reset(self.task)
            self.bar.update(self.task, completed=done, total=total, description=f"{self.title}: {text}")
        elif time.monotonic() - self.said > 5 or done == total:
            self.said = time.monotonic()
            print(f"{self.title}: {done}/{total} {text}{self._left()}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """The time left, at the pace since this began; nothing where there is none, or no pace yet."""
        if not self.first < self.done < self.total:
            return ""
        pace = (time.monotonic() - self.began) / (self.done - self.first)
        return f", {timedelta(seconds=round(pace * (self.total - self.done)))} left"

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 1")
    return number


def counting(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 0")
    return number


def count(text: str) -> int:
    """A whole number of at least 1, also written like 2e6."""
    number = float(text)
    if not number.is_integer() or number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 1, such as 2e6")
    return int(number)


def integers(text: str) -> tuple[int, ...]:
    numbers = [float(part) for part in text.split(",")]
    if any(number != int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"{text}: give whole numbers, with commas between them")
    return tuple(int(number) for number in numbers)


def json_value(text: str, change: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--set {change}: {text!r} is not JSON ({error}); write PATH=JSON.") from None


def add_world(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("world", "the synthetic data (default: that of table 1)")
    group.add_argument("--width", type=positive, help="d, the data's dimensions (80)")
    group.add_argument("--units", type=positive, help="K, the true atoms (100)")
    group.add_argument("--active", type=positive, help="m, atoms active in a sample (5)")
    group.add_argument("--zipf", type=float, help="alpha: atom j occurs in proportion to j^-alpha (1.2)")
    group.add_argument("--samples", type=positive, help="N, training samples (100000)")
    group.add_argument("--world-seed", type=int, help="seed of dictionary and samples (0)")


def world(asked: argparse.Namespace) -> dict[str, Any]:
    """The fields of the world that the options choose."""
    fields = {name: name for name in ("width", "units", "active", "zipf", "samples")} | {"world_seed": "seed"}
    return {field: getattr(asked, name) for name, field in fields.items() if getattr(asked, name) is not None}


def check_writable(path: Path | None) -> None:
    """Nothing; a `ValueError` before the work is done rather than after it."""
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}, make it first.")


def asked_now(asked: argparse.Namespace) -> dict[str, str]:
    """The command and the time, for the provenance."""
    from datetime import UTC, datetime

    return {
        "command": shlex.join(["osae", *asked.words]),
        "date": datetime.now(UTC).isoformat("T", "seconds"),
    }


def write_json(result: dict[str, Any], path: Path) -> None:
    from osae.files import atomic_write

    with atomic_write(path) as part:
        part.write_text(json.dumps(result, allow_nan=False) + "\n", encoding="utf-8")


def console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def show(tables: Iterable[Any], notes: Iterable[str]) -> None:
    """The tables and the notes below them, on the terminal."""
    screen = console()
    for table in tables:
        screen.print(table)
    for note in notes:
        screen.print(f"- {note}", markup=False, highlight=False)


def write_results(result: dict[str, Any], asked: argparse.Namespace, *, csv: Writer, page: Writer) -> None:
    """The result in the files that --json, --csv and --html ask for, each then named."""
    for path, write in ((asked.json, write_json), (asked.csv, csv), (asked.html, page)):
        if path:
            write(result, path)
            print(path)
