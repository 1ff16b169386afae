"""The reference of the command line, generated from the commands."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osae.cli.command import Command, Group
    from osae.options import Option


def describe_commands() -> str:
    """Return a section for each command: its purpose, options, notes and examples."""
    from osae.cli import COMMANDS

    return "\n".join(_describe_all(COMMANDS, level=2)).rstrip()


def _describe_all(commands: "Mapping[str, Command | Group]", level: int) -> Iterator[str]:
    from osae.cli.command import Group

    for command in commands.values():
        yield from (f"{'#' * level} osae {command.name}", "", command.help, "")
        if isinstance(command, Group):
            yield from _describe_all(command.find(), level + 1)
        else:
            yield from _describe_one(command)


def _describe_one(command: "Command") -> Iterator[str]:
    from osae.options import list_options

    declared = sorted(list_options(command.options), key=lambda option: not option.positional)
    if declared:
        yield from ("| option | meaning | default |", "|---|---|---|")
        yield from (_describe_option(option) for option in declared)
        yield ""
    if command.notes:
        block = ("```text", command.notes, "```") if "\n" in command.notes else (command.notes,)
        yield from (*block, "")
    if command.examples:
        yield from ("```sh", *command.examples, "```", "")


def _describe_option(option: "Option") -> str:
    """Return the option as a row of a table."""
    default = "required" if option.required else option.default_text
    name = option.label if option.positional else option.flag
    choices = f": {', '.join(f'`{choice}`' for choice in option.allowed)}" if option.allowed else ""
    meaning = f"{option.help}{choices}".replace("|", "\\|")
    shown = default.replace("|", "\\|")
    return f"| `{name}` | {meaning} | {shown} |"
