"""Choices as data: frozen dataclasses that can be converted to JSON and back.

A choice with several variants (a sparsifier, a prefix distribution, a start) is a union of frozen
dataclasses. `@variant` registers one, so that its JSON form can name it: `{"kind": "TopK", "k": 5}`.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from osae.messages import list_choices

_T = TypeVar("_T", bound=type)
_D = TypeVar("_D")
_VARIANTS: dict[str, type] = {}


def variant(cls: _T) -> _T:
    """Register the class by its name, for `from_json`, and return it."""
    assert cls.__name__ not in _VARIANTS, f"two variants are called {cls.__name__}"
    _VARIANTS[cls.__name__] = cls
    return cls


def later(default: Any) -> Any:
    """Declare a field that earlier releases do not have; its default value is left out of the JSON form.

    Files stored before the field existed then still equal what would be stored today.
    """
    return dataclasses.field(default=default, metadata={"later": True})


def to_json(value: Any) -> Any:
    """Return plain lists, dicts, strings and numbers; a dataclass carries its name as `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: to_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not (f.metadata.get("later") and getattr(value, f.name) == f.default)
        }
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form here: {value!r}")


def from_json(data: Any) -> Any:
    """Return the value that was passed to `to_json`; tuples outside of dataclasses become lists."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "kind" not in data:
        return {key: from_json(item) for key, item in data.items()}
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in _VARIANTS:
        known = ", ".join(sorted(_VARIANTS))
        raise ValueError(f"unknown kind {repr(kind)[:60]}: this release supports {known}.")
    cls = _VARIANTS[kind]
    upgrade = getattr(cls, "upgrade_json", None)  # for files written by an earlier release
    data = upgrade(data) if upgrade else data
    fields = {key: from_json(item) for key, item in data.items() if key != "kind"}
    known = {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(fields) - known):
        raise ValueError(f"{kind} has no field {', '.join(unknown)}: it has {', '.join(sorted(known))}.")
    needed = {f.name for f in dataclasses.fields(cls) if f.default is f.default_factory}
    if missing := sorted(needed - set(fields)):
        raise ValueError(f"{kind} needs {', '.join(missing)}.")
    fields = {key: tuple(item) if isinstance(item, list) else item for key, item in fields.items()}
    for key, item in fields.items():
        _check_field(cls, key, item)
    return cls(**fields)


def alter(value: _D, changes: Mapping[str, Any]) -> _D:
    """Return a copy with some fields changed, each named by its path: `{"lr.peak": 0.01}`."""
    for path, new in changes.items():
        value = _with(value, path.split("."), new, path)
    return value


def _with(value: Any, names: list[str], new: Any, path: str) -> Any:
    if not names:
        return new
    name, *rest = names
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise ValueError(f"no field {name!r} on the path {path!r}: {value!r} has no fields.")
    fields = [f.name for f in dataclasses.fields(value)]
    if name not in fields:
        raise ValueError(f"no field {name!r} on the path {path!r}: {list_choices(name, fields)}")
    changed = _with(getattr(value, name), rest, new, path)
    _check_field(type(value), name, changed)
    return dataclasses.replace(value, **{name: changed})


def _check_field(cls: type, name: str, value: Any) -> None:
    """Raise `ValueError` if the value does not have the declared type of the field."""
    hint = typing.get_type_hints(cls)[name]
    if not _fits(value, hint):
        wanted = getattr(hint, "__name__", str(hint)).replace("osae.", "")
        raise ValueError(f"{cls.__name__}.{name}={repr(value)[:60]} has the wrong type: give {wanted}.")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether the value matches a type used in our dataclasses: union, tuple, number, dataclass."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inside[0]) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)
