"""Options as data: a command's options are the documented fields of a frozen dataclass.

The type, default, limits and help text of an option are declared in its field and nowhere else. Every value
is checked when the dataclass is created, whether it comes from the command line, from a file or from Python.
The parser, the help text, the configuration file and shell completion are derived from the fields: see
`osae.cli`.

    @dataclass(frozen=True, kw_only=True)
    class TrainOptions(Options):
        out: Path = option("new folder for the run", metavar="RUN")
        epochs: float = option("passes over the samples", default=30.0, above=0)
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from osae.messages import list_choices
from osae.stores import is_remote

REQUIRED: Any = ...  # the default of a required option
LARGEST = 2**63 - 1
WHOLE = "a whole number, such as 2000 or 2e3"
NONE = ("auto", "none", "null")
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
DEVICES = r"auto|cpu|mps|meta|(cuda|xpu|hpu)(:\d+)?"

Entries = Literal["commas", "words", "repeated"]


@dataclass(frozen=True)
class Option:
    """What a field declares: help text, limits of the value, and how to write it on the command line."""

    help: str
    positional: bool = False
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    pattern: str = ""
    wanted: str = ""
    group: str = ""
    shown: str | None = None
    entries: Entries = "commas"
    name: str = ""
    hint: Any = None
    default: Any = REQUIRED

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return f"--{self.key}"

    @property
    def key(self) -> str:
        """The option as it is written in a file."""
        return self.name.rstrip("_").replace("_", "-")  # from_, since "from" is a Python keyword

    @property
    def label(self) -> str:
        """The name of the option in messages."""
        return (self.metavar.partition("[")[0] or self.name.upper()) if self.positional else self.flag

    @property
    def required(self) -> bool:
        """Whether a value must be given."""
        return self.default is REQUIRED

    @property
    def is_switch(self) -> bool:
        """Whether the option is given without a value."""
        return self.hint is bool

    @property
    def is_tuple(self) -> bool:
        """Whether the option takes several values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def kind(self) -> Any:
        """The type of a value that is not None."""
        if typing.get_origin(self.hint) in (typing.Union, types.UnionType):
            return next(one for one in typing.get_args(self.hint) if one is not type(None))
        return self.hint

    @property
    def allowed(self) -> tuple[str, ...]:
        """The allowed values, or entries of a tuple; empty unless there is a fixed set of names."""
        kind = typing.get_args(self.kind)[0] if self.is_tuple else self.kind
        return self.choices or (typing.get_args(kind) if typing.get_origin(kind) is Literal else ())

    @property
    def admits_none(self) -> bool:
        """Whether the value may be None."""
        return type(None) in typing.get_args(self.hint)

    @property
    def default_text(self) -> str:
        """The default as shown in the help text; empty if there is nothing to show."""
        if self.shown is not None or self.required:
            return self.shown or ""
        if self.is_switch or self.default is None or self.default in ((), ""):
            return ""
        return ",".join(map(_text, self.default)) if self.is_tuple else _text(self.default)


def option(
    help: str,
    *,
    default: Any = REQUIRED,
    positional: bool = False,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    pattern: str = "",
    wanted: str = "",
    group: str = "",
    shown: str | None = None,
    entries: Entries = "commas",
) -> Any:
    """Declare an option: its help text, and the limits of its value.

    `least` and `most` are inclusive, `above` and `below` are exclusive; a string must fully match `pattern`,
    and `wanted` describes the pattern in words. For tuples, the limits apply to every entry. `shown` replaces
    the default in the help text.

    `entries` says how the entries of a tuple are written: with commas (`--seeds 0,1`), as several words
    (`--text a.txt b.txt`), or by repeating the option (`--set a=1 --set b=2`).
    """
    declared = Option(
        help,
        positional=positional,
        metavar=metavar,
        choices=choices,
        least=least,
        above=above,
        most=most,
        below=below,
        pattern=pattern,
        wanted=wanted,
        group=group,
        shown=shown,
        entries=entries,
    )
    if default is REQUIRED:
        return dataclasses.field(metadata={"option": declared})
    return dataclasses.field(metadata={"option": declared}, default=default)


def device_option(use: str, *, several: bool = False) -> Any:
    """Declare an option for the device to use, or for `several`, separated by commas."""
    return option(
        f"where to {use}: auto, cpu, cuda, cuda:1, mps"
        + (", or cuda:0,cuda:1,... to distribute SAEs" if several else ""),
        default="auto",
        metavar="DEVICE",
        pattern=rf"({DEVICES})(,({DEVICES}))*" if several else DEVICES,
        wanted="auto, cpu, mps, cuda or cuda:N" + (", or several separated by commas" if several else ""),
    )


@dataclass(frozen=True)
class Options:
    """The options of a command; each value is checked against the declaration of its field."""

    def __post_init__(self) -> None:
        for declared in list_options(type(self)):
            check_value(declared, getattr(self, declared.name))


@cache
def list_options(options: type[Options]) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in order."""
    hints = typing.get_type_hints(options)
    found = []
    for field in dataclasses.fields(options):
        if declared := field.metadata.get("option"):
            default = REQUIRED if field.default is dataclasses.MISSING else field.default
            found.append(
                dataclasses.replace(declared, name=field.name, hint=hints[field.name], default=default)
            )
    return tuple(found)


def find_given(options: Options, names: Iterable[str]) -> list[Option]:
    """Return the named options whose value differs from the default."""
    named = set(names)
    return [
        declared
        for declared in list_options(type(options))
        if declared.name in named and getattr(options, declared.name) != declared.default
    ]


def refuse(options: Options, names: Iterable[str], why: str) -> None:
    """Raise `ValueError` if one of the named options, which would be ignored, was given."""
    for declared in find_given(options, names):
        raise ValueError(f"{declared.flag} {why}")


def check_value(declared: Option, value: Any) -> None:
    """Raise `ValueError` if the value is not one that the option allows."""
    if value is None and (declared.admits_none or declared.default is None):
        return
    entries = value if declared.is_tuple else (value,)
    if not isinstance(entries, tuple) or (not entries and declared.default != ()):
        raise ValueError(f"{declared.label}: give at least one value.")
    for entry in entries:
        if remedy := _misfit(declared, entry):
            raise ValueError(f"{declared.label} {_text(entry)}: {remedy}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _misfit(declared: Option, value: Any) -> str:
    """Return what to give instead of this value; empty if it is valid."""
    kind = typing.get_args(declared.kind)[0] if declared.is_tuple else declared.kind
    if wrong := _wrong_type(kind, value):
        return f"give {wrong}."
    if declared.allowed and value not in declared.allowed:
        return list_choices(value, declared.allowed, "give one of")
    if declared.pattern and not re.fullmatch(declared.pattern, str(value)):
        return f"give {declared.wanted or f'a string that matches {declared.pattern}'}."
    wrong = _out_of_range(declared, kind, value) if kind in (int, float) else ""
    return wrong and f"give {wrong}."


def _wrong_type(kind: Any, value: Any) -> str:
    """Return the expected type if the value does not have it, else an empty string."""
    if kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
        return "" if fits and abs(value) <= LARGEST else WHOLE
    if kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if fits and math.isfinite(value) else "a finite number"
    if kind is bool:
        return "" if isinstance(value, bool) else "true or false"
    if kind is Path:
        return "" if isinstance(value, Path | str) else "a path"
    return "" if kind is not str or isinstance(value, str) else "a string"


def _out_of_range(declared: Option, kind: Any, value: float) -> str:
    name = "a whole number" if kind is int else "a number"
    if declared.least is not None and value < declared.least:
        return f"{name} of at least {declared.least:g}"
    if declared.above is not None and value <= declared.above:
        return f"{name} above {declared.above:g}"
    if declared.most is not None and value > declared.most:
        return f"{name} of at most {declared.most:g}"
    if declared.below is not None and value >= declared.below:
        return f"{name} below {declared.below:g}"
    return ""


def parse_option(declared: Option, words: str | list[str]) -> Any:
    """Return the value of a word, or of a list with the entries of a tuple.

    Raise a `ValueError` that names the option, the word and what to give instead.
    """
    if declared.is_tuple and declared.admits_none and isinstance(words, str) and words.lower() in NONE:
        return None
    if not declared.is_tuple:
        if not isinstance(words, str):
            raise ValueError(f"{declared.label}: give one value, not {len(words)}.")
        return _parse_word(declared, declared.hint, words)
    if isinstance(words, str):
        words = _split_commas(words) if declared.entries == "commas" else [words]
    inside = typing.get_args(declared.kind)[0]
    return tuple(_parse_word(declared, inside, word) for word in words)


def _split_commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_word(declared: Option, hint: Any, word: str) -> Any:
    try:
        return parse_text(hint, word)
    except ValueError as error:
        raise ValueError(f"{declared.label} {word}: {error}.") from None


def parse_text(hint: Any, text: str) -> Any:
    """Return the value of a word, parsed as a type.

    Integers may be written as 2e6, tuples with commas: 0,1,2. If None is allowed, "auto" and "none" mean
    None, except for strings and paths. Raise a `ValueError` that says what to give.
    """
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in inside if one is not type(None)]
        if type(None) in inside and rest[0] not in (str, Path) and text.lower() in NONE:
            return None
        if str in rest and is_remote(text):
            return text
        return parse_text(rest[0], text)
    if origin is tuple:
        return tuple(parse_text(inside[0], part) for part in _split_commas(text))
    if hint is bool:
        if text.lower() not in (*TRUE, *FALSE):
            raise ValueError("give true or false")
        return text.lower() in TRUE
    if hint is int:
        return _whole(text)
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("give a number") from None
    return Path(text) if hint is Path else text


def _whole(text: str) -> int:
    """Return an integer, which may be written like 2e6."""
    try:
        number = int(text)
    except ValueError:
        try:
            exact = float(text)
        except ValueError:
            raise ValueError(f"give {WHOLE}") from None
        if not math.isfinite(exact) or exact != int(exact):
            raise ValueError(f"give {WHOLE}") from None
        number = int(exact)
    if abs(number) > LARGEST:
        raise ValueError(f"give a whole number of at most {LARGEST:.1e}")
    return number
