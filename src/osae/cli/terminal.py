"""Progress and messages in a terminal."""

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from osae.progress import ProgressBar as Progress

__all__ = ["Progress", "Terminated", "plain_warnings", "report_stop", "say"]


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that unfinished files are removed before the process exits."""


def report_stop(stop: KeyboardInterrupt, remedy: str) -> int:
    """Print that the command was interrupted; return its exit code."""
    print(file=sys.stderr)  # the terminal has echoed ^C
    say(f"osae: interrupted. {remedy}")
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def say(message: str) -> None:
    """Print a one-line message to the user."""
    from osae.report.text import visible

    print(visible(message.strip()), file=sys.stderr, flush=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings for users in one line, without their location in the code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_plainly(message, category, filename, lineno, file=None, line=None):
            if category is UserWarning:
                say(f"osae: warning: {message}")
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_plainly
        yield
