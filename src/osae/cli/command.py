"""A command as data: its options are a dataclass, and it runs a function of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from osae.options import Options


@dataclass(frozen=True)
class Command:
    """A command: its help text, its options and the function that it runs.

    `run` takes the options and the command line as it was typed, and returns the exit code: 0 done, 1 stopped
    halfway, 2 the request cannot be met. It imports heavy libraries only when called. A command is
    `resumable` if the same command line continues from what is on disk.
    """

    name: str
    help: str
    options: type[Options]
    run: Callable[[Any, str], int]
    examples: tuple[str, ...] = ()
    notes: str = ""
    resumable: bool = False


@dataclass(frozen=True)
class Group:
    """Commands under one name: the next word selects one of the `member`s returned by `find`."""

    name: str
    help: str
    member: str
    find: Callable[[], "Mapping[str, Command | Group]"]
    examples: tuple[str, ...] = ()

    @property
    def prog(self) -> str:
        """The words that select this group on the command line."""
        return f"osae {self.name}".strip()
