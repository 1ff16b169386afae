"""The command line: each command is a dataclass of options and a function that takes them.

Nothing heavy is imported before a command runs: `osae --help`, completion and error messages do not need
torch.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import assert_never

from osae import __version__
from osae.cli import completion as completions
from osae.cli import config_file
from osae.cli.command import Command, Group
from osae.cli.commands import (
    compare,
    completion,
    contexts,
    convert,
    evaluate,
    harvest,
    inspect,
    order,
    prune,
    push,
    recipes,
    report,
    reproduce,
    resume,
    show,
    stitch,
    sweep,
    train,
    trust,
    watch,
)
from osae.cli.parsing import build_parser, format_epilog, parse
from osae.cli.terminal import Terminated, report_stop, say
from osae.launching import is_launched
from osae.messages import list_choices, suggest

MODULES = (
    *(reproduce, harvest, train, resume, watch, sweep, recipes, evaluate, compare, trust),
    *(contexts, report, show, prune, order, stitch, convert, push, inspect, completion),
)
COMMANDS: dict[str, Command | Group] = {module.COMMAND.name: module.COMMAND for module in MODULES}
OSAE = Group(
    "",
    "Ordered sparse autoencoders: train them exactly, and measure how consistent any SAEs are.",
    "command",
    lambda: COMMANDS,
    examples=("osae reproduce toy --quick --out runs/demo", "osae train --help"),
)
HELP = {"-h", "--help"}


def run() -> None:
    """Run the command that this process was started for, and end the process with its exit code.

    A thread that is still computing when the interpreter shuts down would abort the process: a daemon thread
    of an interrupted command, or a thread of the library through which ranks communicate.
    """
    code = main()
    if is_launched() or any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 2 the request cannot be met, 128 + N stopped by signal N.

    The code is 1 if the output pipe is closed early.
    """
    try:
        return _answer(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _answer(words: list[str]) -> int:
    """Run the command that the words ask for, or print help, the version or completions."""
    if words[:1] == [completions.ASK]:
        for word, meaning in completions.offer(COMMANDS, words[1:]).items():
            print(f"{word}\t{meaning}")
        return 0
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words[:1] == ["--version"]:
        print(f"osae {__version__}")
        return 0
    return _dispatch(OSAE, words, shlex.join(["osae", *words]))


def _dispatch(group: Group, words: Sequence[str], line: str) -> int:
    """Run the command named by the first word, or list the commands."""
    commands = group.find()
    if not words or words[0] in HELP:
        print(_format_list(group, commands))
        return 0
    name, *rest = words
    match commands.get(name):
        case Command() as command:
            return _run(command, rest, line)
        case Group() as inner:
            return _dispatch(inner, rest, line)
        case None:
            hint = suggest(name, commands) or list_choices(name, commands)
            return _refuse(group.prog, f"no {group.member} {name!r}: {hint}")
        case other:
            assert_never(other)


def _run(command: Command, words: Sequence[str], line: str) -> int:
    """Parse the words and run the command."""
    if HELP & set(words):
        print(build_parser(command).format_help(), end="")
        return 0
    try:
        request = parse(command, words)
        if request.print_config:
            print(config_file.write(command, request.options), end="")
            return 0
    except ValueError as error:
        return _refuse(f"osae {command.name}", str(error))
    return _report_errors(lambda: command.run(request.options, line), resumable=command.resumable)


def _report_errors(work: Callable[[], int], *, resumable: bool) -> int:
    """Do the work, and report errors that the user can fix in one line."""
    try:
        with _sigterm_raises():
            return work()
    except BrokenPipeError:  # the output pipe was closed, see `main`
        raise
    except (ValueError, OSError) as error:
        if os.environ.get("OSAE_TRACEBACK"):
            raise
        return _refuse("osae", str(error))
    except KeyboardInterrupt as stop:
        return report_stop(stop, "Run the same command again to resume." if resumable else "")


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C within the block."""

    def stop(number, frame):
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # signals can only be handled there
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse(prog: str, message: str) -> int:
    say(f"{prog}: {message.strip()}")
    return 2


def _format_list(group: Group, commands: Mapping[str, Command | Group]) -> str:
    """Return the help text of a list of commands."""
    width = max(map(len, commands), default=0)
    listed = "\n".join(f"  {name:{width}s}  {command.help}" for name, command in commands.items())
    usage = f"usage: {group.prog} {group.member.upper()} ..."
    return f"{usage}\n\n{group.help}\n\n{group.member}s:\n{listed}\n\n{format_epilog(group.examples, '')}"
