"""Choices as data: frozen dataclasses that turn into JSON and back.

A choice with several variants (a sparsifier, a prefix distribution, a start) is a union of frozen
dataclasses. `@variant` registers one, so that its JSON form can name it: `{"kind": "TopK", "k": 5}`.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)
_D = TypeVar("_D")
_VARIANTS: dict[str, type] = {}


def variant(cls: _T) -> _T:
    """The class itself, known by its name to `from_json`."""
    assert cls.__name__ not in _VARIANTS, f"two variants are called {cls.__name__}"
    _VARIANTS[cls.__name__] = cls
    return cls


def to_json(value: Any) -> Any:
    """Plain lists, dicts, strings and numbers; a dataclass carries its name as `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form here: {value!r}")


def from_json(data: Any) -> Any:
    """The value that `to_json` was given, up to lists for tuples outside of dataclasses."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "kind" not in data:
        return {key: from_json(item) for key, item in data.items()}
    kind = data["kind"]
    if kind not in _VARIANTS:
        raise ValueError(f"unknown kind {kind!r}: this release knows {', '.join(sorted(_VARIANTS))}.")
    cls = _VARIANTS[kind]
    upgrade = getattr(cls, "upgrade_json", None)  # of what an earlier release wrote
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
    """A copy with some fields changed, each named by its path: `{"lr.peak": 0.01, "revival": None}`."""
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
        raise ValueError(f"no field {name!r} on the path {path!r}: there are {', '.join(fields)}.")
    changed = _with(getattr(value, name), rest, new, path)
    _check_field(type(value), name, changed)
    return dataclasses.replace(value, **{name: changed})


def _check_field(cls: type, name: str, value: Any) -> None:
    """Refuses a value that is not of the field's declared type."""
    hint = typing.get_type_hints(cls)[name]
    if not _fits(value, hint):
        wanted = getattr(hint, "__name__", str(hint)).replace("osae.", "")
        raise ValueError(f"{cls.__name__}.{name}={value!r} is of the wrong kind: give {wanted}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as our dataclasses declare them: unions, tuples, numbers, dataclasses."""
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
