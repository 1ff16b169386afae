"""The options of a command as a YAML file: `--print-config` writes it, `--config` reads it.

A value in the file means what the same text means on the command line: 2e6 is a whole number, 0,1,2 a list.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osae.cli.command import Command
from osae.cli.suggestions import suggest_flag
from osae.options import Option, Options, list_options, parse_option

COMMAND = "command"  # the key that says which command the file is for
LARGEST = 2**20  # bytes of a file that is read
EMPTY = (None, (), False)
NULL = "tag:yaml.org,2002:null"


def write(command: Command, options: Options) -> str:
    """Return the file that stands for these options; what is empty by default and stays so is left out."""
    lines: dict[str, Any] = {COMMAND: command.name}
    for option in list_options(command.options):
        value = getattr(options, option.name)
        if value != option.default or value not in EMPTY:
            lines[option.key] = _plain(value)
    return f"# osae {command.name} --config FILE\n{_dump(lines)}"


def _dump(lines: dict[str, Any]) -> str:
    """Return the lines as YAML; with escapes if there are characters that YAML would take for line breaks."""
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
    """Return the values of the options that the file gives; raise `ValueError` that names file and line."""
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


def _check_command(name: str, command: Command) -> None:
    if name != command.name:
        raise ValueError(f"this file is for `osae {name}`, not for `osae {command.name}`.")


def _unknown(key: str, known: dict[str, Option], command: Command) -> str:
    hint = suggest_flag(f"--{key}", [f"--{name}" for name in known]).replace("--", "")
    return f"no option {key}: {hint or f'see `osae {command.name} --help`.'}"


def _value(option: Option, node: Any) -> Any:
    """Return the value that a node of the file stands for, read as on the command line."""
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
    """Return a node as JSON; a plain word that is not JSON is a text."""
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
    """Return what PyYAML found wrong, without the text that it quotes."""
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is nested too deeply"
    return " ".join(str(said).split())


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"{path} is larger than {LARGEST} bytes: this is not a file of options.")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: give a YAML file, as --print-config writes.") from None
    except OSError as error:
        raise ValueError(
            f"--config {path} cannot be read ({error.strerror or error}): --print-config prints such a file."
        ) from None


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("--config and --print-config need PyYAML: pip install pyyaml.") from None
    return yaml
