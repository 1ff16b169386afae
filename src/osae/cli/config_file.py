"""The options of a command as a YAML file: `--print-config` writes it, `--config` reads it.

A value has the same meaning in the file as on the command line: 2e6 is an integer, 0,1,2 a list.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osae.cli.command import Command
from osae.cli.suggestions import suggest_flag
from osae.files import check_regular, is_handed_over
from osae.messages import one_line
from osae.options import Option, Options, list_options, parse_option

COMMAND = "command"  # the key that names the command the file is for
LARGEST = 2**20  # bytes; larger files are not read
EMPTY = (None, (), False)
VARY, KEPT = (
    "vary",
    ("out", "device"),
)  # in a sweep: the options that differ, and those that the sweep sets itself
NULL = "tag:yaml.org,2002:null"


def write(command: Command, options: Options) -> str:
    """Return the options as the text of a file.

    Options that are empty by default and unchanged are left out.
    """
    lines: dict[str, Any] = {COMMAND: command.name}
    for option in list_options(command.options):
        value = getattr(options, option.name)
        if value != option.default or value not in EMPTY:
            lines[option.key] = _plain(value)
    return f"# osae {command.name} --config FILE\n{_dump(lines)}"


def _dump(lines: dict[str, Any]) -> str:
    """Return the lines as YAML, escaping characters that YAML would treat as line breaks."""
    yaml = _yaml()
    style: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 110}
    text = yaml.safe_dump(lines, allow_unicode=True, **style)
    if all(c.isprintable() for line in text.split("\n") for c in line):
        return text
    return yaml.safe_dump(lines, allow_unicode=False, **style)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def read(path: str, command: Command) -> dict[str, Any]:
    """Return the values of the options in the file; raise a `ValueError` that names the file and line."""
    known = {option.key: option for option in list_options(command.options)}
    found: dict[str, Any] = {}
    for line, key, node in _pairs(path):
        try:
            if key == COMMAND:
                _check_command(str(node.value), command)
            elif key not in known:
                raise ValueError(_unknown(key, known, command))
            elif known[key].name in found:
                raise ValueError(f"{key} is given twice.")
            else:
                found[known[key].name] = _value(known[key], node)
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return found


@dataclass(frozen=True)
class Combination:
    """The options of one run of a sweep, and those that vary as text."""

    values: dict[str, Any]
    settings: dict[str, str]


def read_sweep(path: str, command: Command) -> list[Combination]:
    """Return every combination of the varied values in a file, together with the shared ones."""
    known = {option.key: option for option in list_options(command.options)}
    shared: dict[str, Any] = {}
    varied: list[list[tuple[Option, str, Any]]] = []
    for line, key, node in _pairs(path):
        try:
            if key == VARY:
                varied = [_list_values(known, name, inside, command) for name, inside in _inside(node)]
            elif key == COMMAND:
                _check_command(str(node.value), command)
            else:
                option = _find_option(key, known, command)
                shared[option.name] = _value(option, node)
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return [_combine(shared, chosen) for chosen in itertools.product(*varied)]


def _combine(shared: dict[str, Any], chosen: Sequence[tuple[Option, str, Any]]) -> Combination:
    values = dict(shared)
    for option, _, value in chosen:
        before = shared.get(option.name, ()) if option.entries == "repeated" else ()
        values[option.name] = (*before, *value) if before else value
    return Combination(values, {option.key: text for option, text, _ in chosen})


def _inside(node: Any) -> list[tuple[str, Any]]:
    if node.id != "mapping":
        raise ValueError(f"{VARY}: give lists of values by option, such as `seeds: [0, 1]`.")
    return [(str(key.value).replace("_", "-"), value) for key, value in node.value]


def _list_values(
    known: dict[str, Option], key: str, node: Any, command: Command
) -> list[tuple[Option, str, Any]]:
    """Return the values that an option takes, each with its text."""
    option = _find_option(key, known, command)
    if node.id != "sequence" or not node.value:
        raise ValueError(f"{VARY}: {key}: give a list of values.")
    return [(option, _text_of(entry), _value(option, entry)) for entry in node.value]


def _text_of(node: Any) -> str:
    return str(node.value) if node.id == "scalar" else ",".join(str(entry.value) for entry in node.value)


def _find_option(key: str, known: dict[str, Option], command: Command) -> Option:
    if key not in known or key in KEPT:
        raise ValueError(
            _unknown(key, {name: one for name, one in known.items() if name not in KEPT}, command)
        )
    return known[key]


def _check_command(name: str, command: Command) -> None:
    if name != command.name:
        raise ValueError(f"this file is for `osae {name}`, not for `osae {command.name}`.")


def _unknown(key: str, known: dict[str, Option], command: Command) -> str:
    hint = suggest_flag(f"--{key}", [f"--{name}" for name in known]).replace("--", "")
    return f"no option {key}: {hint or f'see `osae {command.name} --help`.'}"


def _value(option: Option, node: Any) -> Any:
    """Return the value of a node of the file, parsed as on the command line."""
    if node.id == "scalar":
        if node.tag == NULL and option.admits_none:
            return None
        return parse_option(option, node.value)
    if node.id == "sequence" and all(entry.id == "scalar" for entry in node.value):
        return parse_option(option, [entry.value for entry in node.value])
    if node.id == "mapping" and "=" in option.metavar:  # one entry per line instead of NAME=VALUE
        as_text = _json_text if option.metavar.endswith("=JSON") else _plain_text
        return parse_option(option, [f"{key.value}={as_text(value)}" for key, value in node.value])
    raise ValueError(f"{option.key}: give a value, or a list of values.")


def _json_text(node: Any) -> str:
    """Return a node as JSON; a plain word that is not valid JSON becomes a string."""
    if node.id == "sequence":
        return f"[{', '.join(map(_json_text, node.value))}]"
    if node.id == "mapping":
        inside = (f"{json.dumps(key.value)}: {_json_text(value)}" for key, value in node.value)
        return f"{{{', '.join(inside)}}}"
    try:
        json.loads(node.value)
    except ValueError:
        return json.dumps(node.value)
    return json.dumps(node.value) if node.style else node.value


def _plain_text(node: Any) -> str:
    if node.id != "scalar":
        raise ValueError("give one value for each name.")
    return node.value


def _pairs(path: str) -> Iterator[tuple[int, str, Any]]:
    """Yield each key of the file with its line and the node of its value."""
    yaml = _yaml()
    try:
        root = yaml.compose(_text(path), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}{_where(error)} is not valid YAML: {_reason(error)}.") from None
    if root is None:
        return
    if root.id != "mapping":
        raise ValueError(f"{path} is not a list of options: write one on each line, such as `seeds: 0,1`.")
    for key, node in root.value:
        yield key.start_mark.line + 1, str(key.value).replace("_", "-"), node


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}:"


def _reason(error: Exception) -> str:
    """Return the problem reported by PyYAML, without the text that it quotes."""
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is nested too deeply"
    return one_line(said)


def _text(path: str) -> str:
    try:
        if not is_handed_over(Path(path)):
            check_regular(Path(path))
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"{path} is larger than {LARGEST} bytes: give a file of options.")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not a text file: give a YAML file, as printed by --print-config."
        ) from None
    except OSError as error:
        raise ValueError(
            f"--config {path} cannot be read ({error.strerror or error}): print one with --print-config."
        ) from None


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("--config and --print-config need PyYAML: pip install pyyaml.") from None
    return yaml
