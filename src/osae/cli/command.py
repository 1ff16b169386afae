"""A command as data: its options are a dataclass, its work is a function of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from osae.options import Options


@dataclass(frozen=True)
class Command:
    """A command: what it is for, what may be chosen, and what it does.

    `run` takes the options and the command line as it was typed, and returns the exit code: 0 done, 1 stopped
    halfway, 2 the request cannot be met. It imports what is heavy only when called. A command is `resumable`
    if the same command line continues from what is on disk.
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
    """Commands under one name: the next word chooses one of those that `find` returns, called `member`s."""

    name: str
    help: str
    member: str
    find: Callable[[], "Mapping[str, Command | Group]"]
    examples: tuple[str, ...] = ()

    @property
    def prog(self) -> str:
        """The words that lead here."""
        return f"osae {self.name}".strip()
