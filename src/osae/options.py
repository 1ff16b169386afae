"""Options as data: a command's options are the documented fields of a frozen dataclass.

Type, default, limits and help text of an option stand in its field and nowhere else. Every value is checked
when the dataclass is made, whether it comes from the command line, from a file or from Python.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSING = dataclasses.MISSING


def option(
    help: str,
    *,
    default: Any = MISSING,
    positional: bool = False,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    group: str = "",
    shown: str | None = None,
) -> Any:
    """Declare an option: its help text, and the limits of its value.

    `least` and `most` are inclusive, `above` is not; of a tuple they limit every entry. `shown` describes the
    default in the help text where the default itself would not.
    """
    metadata = {
        "help": help,
        "positional": positional,
        "metavar": metavar,
        "choices": choices,
        "least": least,
        "above": above,
        "most": most,
        "group": group,
        "shown": shown,
    }
    settings: dict[str, Any] = {} if default is MISSING else {"default": default}
    return dataclasses.field(metadata=metadata, **settings)


@dataclass(frozen=True)
class Options:
    """The options of a command; each value is checked against what its field declares."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))


def check_value(field: dataclasses.Field, value: Any) -> None:
    """Raise `ValueError` if the value is outside of what the field declares."""
    if value is None or "help" not in field.metadata:
        return
    for item in value if isinstance(value, tuple) else (value,):
        if wanted := _misfit(field, item):
            raise ValueError(f"{flag(field.name)} {_text(item)}: give {wanted}.")


def flag(name: str) -> str:
    """Return a field's name as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _misfit(field: dataclasses.Field, value: Any) -> str:
    """Return what would fit instead of this value; empty if it fits."""
    limits = field.metadata
    if limits["choices"] and value not in limits["choices"]:
        return f"one of {', '.join(map(str, limits['choices']))}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    kind = "a whole number" if isinstance(value, int) else "a number"
    if limits["least"] is not None and value < limits["least"]:
        return f"{kind} of at least {limits['least']:g}"
    if limits["above"] is not None and value <= limits["above"]:
        return f"{kind} above {limits['above']:g}"
    if limits["most"] is not None and value > limits["most"]:
        return f"{kind} of at most {limits['most']:g}"
    return ""


def parse_text(hint: Any, text: str) -> Any:
    """Return the value of a type that a word on the command line stands for.

    Whole numbers may be written as 2e6, tuples with commas: 0,1,2. Raise `ValueError` that says what to give.
    """
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in inside if one is not type(None)]
        if type(None) in inside and text.lower() == "none":
            return None
        return parse_text(rest[0], text)
    if origin is tuple:
        return tuple(parse_text(inside[0], part.strip()) for part in text.split(",") if part.strip())
    if origin is typing.Literal:
        return text
    if hint is bool:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise ValueError("give true or false")
        return text.lower() in ("true", "yes")
    if hint is int:
        return _whole(text)
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("give a number") from None
    return Path(text) if hint is Path else text


def _whole(text: str) -> int:
    """Return a whole number, also written like 2e6."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise ValueError("give a whole number, such as 2000 or 2e3") from None
    if not math.isfinite(number) or number != int(number) or abs(number) > 2**63:
        raise ValueError("give a whole number, such as 2000 or 2e3")
    return int(number)
