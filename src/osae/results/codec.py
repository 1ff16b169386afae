"""Results as JSON and back: one writer and one reader for every result.

A result is a frozen dataclass. Its JSON form has a key per field; a field declared with `flat` is a mapping
whose entries appear next to the other keys. Missing numbers are null, never NaN. Unknown keys are ignored, so
that newer files can be read.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from osae.measures import Scope

_T = TypeVar("_T")


def doc(text: str, *, key: str = "", **options: Any) -> Any:
    """Declare a dataclass field with the sentence that documents it; `key` renames it in JSON."""
    return dataclasses.field(metadata={"doc": text, "key": key}, **options)


def flat(text: str, of: Scope | None = None, **options: Any) -> Any:
    """Declare a mapping whose entries appear next to the other keys in JSON.

    `of` names the scope of its measures.
    """
    settings: dict[str, Any] = {"default_factory": dict} | options
    return dataclasses.field(metadata={"doc": text, "flat": True, "of": of}, **settings)


def aside(text: str) -> Any:
    """Declare a field that is not stored in JSON, for large objects that belong to the result."""
    return dataclasses.field(default=None, compare=False, metadata={"doc": text, "aside": True})


def key_of(field: dataclasses.Field) -> str:
    """Return the key of a field in JSON."""
    return field.metadata.get("key") or field.name


def stored_fields(cls: Any) -> list[dataclasses.Field]:
    """Return the fields of a dataclass that are stored in JSON."""
    return [field for field in dataclasses.fields(cls) if not field.metadata.get("aside")]


# --- writing ----------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return the value as JSON data; a dataclass becomes an object with one key per field.

    A dataclass with a method `json_extra` adds the keys that it returns. A field declared with `optional` is
    left out if it is None.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if listed := getattr(value, "tolist", None):  # a numpy or torch value
        return to_json(listed())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in stored_fields(value):
        item = getattr(value, field.name)
        if field.metadata.get("flat"):
            found |= to_json(item)
        elif not (item is None and field.metadata.get("optional")):
            found[key_of(field)] = to_json(item)
    extra: Callable[[], Mapping[str, Any]] | None = getattr(value, "json_extra", None)
    return found | to_json(extra()) if extra else found


def optional(text: str, *, kw_only: bool = False) -> Any:
    """Declare a field that may be None, in which case it is left out of the JSON."""
    return dataclasses.field(default=None, kw_only=kw_only, metadata={"doc": text, "optional": True})


# --- reading ----------------------------------------------------------------------------------------


def from_json(cls: type[_T], data: Any, where: str = "") -> _T:
    """Return the value of that type from the output of `to_json`.

    Raise `ValueError`, with the path to the value, if the data does not fit the type.
    """
    return _read(cls, data, where)


def _read(hint: Any, data: Any, where: str) -> Any:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _read_union(inside, data, where)
    if origin is typing.Literal:
        if data not in inside:
            raise _misfit(data, where, f"one of {', '.join(map(repr, inside))}")
        return data
    if origin in (tuple, list):
        return _read_sequence(origin, inside, data, where)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise _misfit(data, where, "an object")
        return {key: _read(inside[1], item, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(hint):
        return _read_object(hint, data, where)
    return _read_plain(hint, data, where)


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    for option in rest[:-1]:
        try:
            return _read(option, data, where)
        except ValueError:
            continue
    return _read(rest[-1], data, where)


def _read_sequence(origin: Any, inside: tuple[Any, ...], data: Any, where: str) -> Any:
    if not isinstance(data, list | tuple):
        raise _misfit(data, where, "a list")
    if origin is tuple and (len(inside) != 2 or inside[1] is not Ellipsis):  # of fixed length
        if len(data) != len(inside):
            raise _misfit(data, where, f"a list of {len(inside)}")
        pairs = zip(inside, data, strict=True)
        return tuple(_read(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(pairs))
    return origin(_read(inside[0], item, f"{where}[{i}]") for i, item in enumerate(data))


def _read_object(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _misfit(data, where, "an object")
    upgrade = getattr(cls, "json_upgrade", None)
    data = upgrade(data) if upgrade else data
    hints, known = typing.get_type_hints(cls), {}
    names = {key_of(field) for field in stored_fields(cls) if not field.metadata.get("flat")}
    for field in stored_fields(cls):
        key = key_of(field)
        if field.metadata.get("flat"):
            known[field.name] = _read_flat(hints[field.name], data, names)
        elif key in data:
            known[field.name] = _read(hints[field.name], data[key], f"{where}.{key}".lstrip("."))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(
                f"{where or cls.__name__} has no {key!r}: the file is damaged or of another kind."
            )
    return cls(**known)


def _read_flat(hint: Any, data: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the entries that are measures; others come from a newer release and are ignored."""
    found = {}
    for key, item in data.items():
        if key not in names:
            try:
                found[key] = _read(typing.get_args(hint)[1], item, key)
            except ValueError:
                continue
    return found


def _read_plain(hint: Any, data: Any, where: str) -> Any:
    if hint is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if hint is Path and isinstance(data, str):
        return Path(data)
    if not isinstance(data, hint) or (hint is int and isinstance(data, bool)):
        raise _misfit(
            data, where, {int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint))
        )
    return data


def _misfit(data: Any, where: str, wanted: str) -> ValueError:
    return ValueError(f"{where or 'the file'} is {repr(data)[:60]}: {wanted} is required.")
