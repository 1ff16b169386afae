"""Progress of long work, reported the same way everywhere."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Progress = Callable[[int, int, str], None]
"""Called after each step with the number of steps done, their total, and a word for what is being done."""

Item = TypeVar("Item")


@dataclass
class Steps:
    """A counter of steps that reports each one; `total` may grow as more becomes known."""

    progress: Progress | None
    total: int = 0
    done: int = 0

    def __call__(self, text: str) -> None:
        """Count one step and report it."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done), text)

    def each(self, items: Iterable[Item], text: str) -> Iterator[Item]:
        """Yield the items, and count a step after each has been used."""
        for item in items:
            yield item
            self(text)
