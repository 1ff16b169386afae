"""From words to options: an argparse parser with its help text and errors, generated from the dataclass.

argparse splits the words and formats the help text. Values come from the file given by `--config` and from
the command line, which overrides it; `osae.options` parses and checks both. Errors are `ValueError`s with a
one-line message.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osae.cli import config_file
from osae.cli.command import Command
from osae.cli.suggestions import suggest_flag
from osae.options import Option, Options, list_options, parse_option

_LONG = 40  # characters; longer lists of defaults are written with spaces
ALWAYS = ("--config", "--print-config", "--help")  # options of every command


@dataclass(frozen=True)
class Request:
    """A parsed command line: run with these options, or only print them as a file."""

    options: Options
    print_config: bool = False


def parse(command: Command, words: Sequence[str]) -> Request:
    """Return the request given by the words after the command's name.

    Raise `ValueError` if they are invalid.
    """
    given = _split(command, words)
    values: dict[str, Any] = config_file.read(given["config"], command) if "config" in given else {}
    options = list_options(command.options)
    for option in options:
        if option.name in given:
            words_of = given[option.name]
            values[option.name] = words_of if isinstance(words_of, bool) else parse_option(option, words_of)
    _refuse_missing(command, [option for option in options if option.required and option.name not in values])
    return Request(command.options(**values), "print_config" in given)


def _refuse_missing(command: Command, missing: Sequence[Option]) -> None:
    """Raise a `ValueError` that names the required options that were not given."""
    if missing:
        names = " and ".join(option.label for option in missing)
        raise ValueError(f"{names} must be given: see `osae {command.name} --help`.")


def _split(command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Return the words given for each option; True or False for a switch."""
    parser = build_parser(command, positional=False)
    end = words.index("--") if "--" in words else len(words)
    try:
        found, rest = parser.parse_known_args(list(words[:end]))
    except argparse.ArgumentError as error:
        raise ValueError(_reword(error)) from None
    if unknown := [word for word in rest if word.startswith("-") and word != "-"]:
        flag = unknown[0].partition("=")[0]
        hint = suggest_flag(flag, list_flags(command)) or f"see `osae {command.name} --help`."
        raise ValueError(f"no option {flag}: {hint}")
    return vars(found) | _assign(command, [*rest, *words[end + 1 :]])


def _assign(command: Command, words: list[str]) -> dict[str, Any]:
    """Return the positional words, by the argument that each belongs to."""
    found: dict[str, Any] = {}
    for option in list_options(command.options):
        if option.positional and words:
            several = option.is_tuple and option.entries != "commas"
            found[option.name], words = (words, []) if several else (words[0], words[1:])
    if words:
        raise ValueError(f"{words[0]!r} is an unexpected argument: {_explain_rest(command, words)}")
    return found


def _explain_rest(command: Command, words: Sequence[str]) -> str:
    """Return what to do about words that no argument accepts: lists are written with commas."""
    for option in list_options(command.options):
        if option.positional and option.entries == "commas" and words[0] in option.allowed:
            return f"separate several with commas, without spaces, such as {','.join(option.allowed[:2])}."
    return f"see `osae {command.name} --help`."


def _reword(error: argparse.ArgumentError) -> str:
    """Return an argparse error, reworded."""
    name = error.argument_name or ""
    if error.message.startswith("expected"):
        return f"{name} needs a value."
    if error.message.startswith("ignored explicit argument"):
        return f"{name} takes no value: leave out {error.message.removeprefix('ignored explicit argument ')}."
    return f"{name}: {error.message}."


def list_flags(command: Command) -> list[str]:
    """Return the options of a command as they are written on the command line."""
    return [*(option.flag for option in list_options(command.options) if not option.positional), *ALWAYS]


# --- the parser and its help text --------------------------------------------------------------------


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """The standard help formatter, except that names such as matryoshka-fixed are not broken."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def build_parser(command: Command, *, positional: bool = True) -> argparse.ArgumentParser:
    """Return the parser of a command; nothing is required, since a file may supply what is missing.

    Its positional arguments are for the help text only: argparse does not allow options between them.
    """
    options = list_options(command.options)
    parser = argparse.ArgumentParser(
        prog=f"osae {command.name}",
        usage=_usage(command, options),
        description=command.help,
        epilog=format_epilog(command.examples, command.notes),
        formatter_class=_Formatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
        add_help=False,
    )
    arguments, plain = parser.add_argument_group("arguments"), parser.add_argument_group("options")
    titles = dict.fromkeys(option.group for option in options if option.group)
    groups = {title: parser.add_argument_group(title) for title in titles}
    for option in options:
        if option.positional and positional:
            _add_positional(arguments, option)
        elif not option.positional:
            _add_option(groups.get(option.group, plain), option)
    plain.add_argument(
        "--config",
        metavar="FILE",
        help="read options from this YAML file; options on the command line override it",
    )
    plain.add_argument(
        "--print-config", action="store_true", help="print the options as a YAML file for --config, and exit"
    )
    plain.add_argument("-h", "--help", action="store_true", help="show this help")
    return parser


def _add_positional(group: Any, option: Option) -> None:
    several = option.is_tuple and option.entries != "commas"
    group.add_argument(
        option.name,
        nargs="*" if several else "?",
        metavar=option.metavar or option.label,
        help=_describe(option),
    )


def _add_option(group: Any, option: Option) -> None:
    how: dict[str, Any] = {"dest": option.name, "help": _describe(option)}
    if option.is_switch:
        group.add_argument(option.flag, action="store_true", **how)
        off = f"--no-{option.key}"  # overrides a file
        group.add_argument(off, action="store_false", dest=option.name, help=argparse.SUPPRESS)
        return
    if option.is_tuple and option.entries == "words":
        how["nargs"] = "+"
    if option.is_tuple and option.entries == "repeated":
        how["action"] = "append"
    group.add_argument(option.flag, metavar=_metavar(option), **how)


def _metavar(option: Option) -> str:
    """Return the placeholder for the value in the help text."""
    if option.metavar:
        return option.metavar
    listed = option.is_tuple and option.entries == "commas"
    if option.allowed and not listed:
        return "{" + ",".join(option.allowed) + "}"
    kind = str(option.kind)
    one = "N" if "int" in kind else "X" if "float" in kind else "PATH" if "Path" in kind else "NAME"
    return f"{one},..." if listed else one


def _describe(option: Option) -> str:
    """Return the help text of an option, followed by its default."""
    text = option.help.replace("%", "%%")
    default = option.default_text.replace("%", "%%")
    if option.is_tuple and len(default) > _LONG:  # so that it can be wrapped between entries
        default = default.replace(",", ", ")
    return f"{text} (default: {default})" if default else text


def _usage(command: Command, options: Sequence[Option]) -> str:
    """Return the command with its required arguments; the help text lists the rest."""
    positional = [_argument(option) for option in options if option.positional]
    required = [f"{o.flag} {_metavar(o)}" for o in options if o.required and not o.positional]
    return " ".join(["osae", command.name, *positional, *required, "[options]"]).replace("%", "%%")


def _argument(option: Option) -> str:
    name = option.metavar or option.label
    several = f"{name} ..." if option.is_tuple and option.entries != "commas" else name
    return several if option.required else f"[{several}]"


def format_epilog(examples: Sequence[str], notes: str) -> str:
    """Return the notes and the examples below the options."""
    shown = "\n".join(f"  {example}" for example in examples)
    return "\n\n".join(part for part in (notes, f"examples:\n{shown}" if examples else "") if part)
