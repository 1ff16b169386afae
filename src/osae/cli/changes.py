"""Changes to a recipe on the command line, `--set PATH=JSON`, parsed and checked before torch is loaded."""

import dataclasses
import json
import math
import typing
from typing import Any

from osae.messages import list_choices
from osae.revival import Revival
from osae.schedule import KWarmup, LearningRate, Resort, Sweep

# The fields of `osae.recipes.Recipe`, which needs torch; a test compares the two. Fields inside one are
# looked up in its types; None where those need torch, and the recipe itself checks them.
FIELDS: dict[str, Any] = {
    "name": None,
    "sae": None,
    "samples": None,
    "batch": None,
    "lr": LearningRate,
    "prefix": None,
    "revival": Revival,
    "dictionary": None,
    "start": None,
    "k_warmup": KWarmup,
    "sweep": Sweep,
    "resort": Resort,
    "rescale": None,
    "adam": None,
    "extensions": None,
}


def parse_changes(changes: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of PATH=JSON by path; raise `ValueError` if a path or a value is invalid."""
    found = {}
    for change in changes:
        path, _, text = change.partition("=")
        try:
            _check_path(path)
            found[path] = _parse_json(text)
        except ValueError as error:
            raise ValueError(f"--set {change}: {error}") from None
    return found


def _check_path(path: str) -> None:
    """Raise `ValueError` if a recipe has no such field, as far as can be checked without torch."""
    name, *inside = path.split(".")
    if name not in FIELDS:
        raise ValueError(f"a recipe has no field {name!r}: {list_choices(name, FIELDS)}")
    kinds = typing.get_args(FIELDS[name]) or (FIELDS[name],)
    known = [
        field.name for kind in kinds if dataclasses.is_dataclass(kind) for field in dataclasses.fields(kind)
    ]
    if known and inside and inside[0] not in known:
        raise ValueError(
            f"{name} has no field {inside[0]!r}: {list_choices(inside[0], dict.fromkeys(known))}"
        )


def _parse_json(text: str) -> Any:
    if _is_not_finite(text):
        raise ValueError("give a finite number.")
    try:
        return json.loads(text, parse_float=_parse_number, parse_constant=_parse_number)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{text!r} is not JSON; write a number, true, null, or a quoted string.") from None


def _is_not_finite(text: str) -> bool:
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False


def _parse_number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite: give a finite number.")
    return number
