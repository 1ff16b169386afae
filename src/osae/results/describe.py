"""Descriptions of a result's keys: its JSON Schema, and the tables in the documentation.

Both are generated from the types. `python -m osae.results` writes the schemas and the tables.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osae.measures import Measure, Scope, measures_of
from osae.results.codec import key_of, stored_fields

Definitions = dict[str, dict[str, Any]]


def schema_of(cls: Any, *, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a result, which allows additional keys."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    definitions: Definitions = {}
    body = _object_schema(cls, definitions)
    return head | body | ({"$defs": dict(sorted(definitions.items()))} if definitions else {})


def _schema(hint: Any, known: Definitions) -> dict[str, Any]:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(option, known) for option in inside]}
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if origin is tuple and (len(inside) != 2 or inside[1] is not Ellipsis):
        items = [_schema(item, known) for item in inside]
        return {"type": "array", "prefixItems": items, "minItems": len(inside), "maxItems": len(inside)}
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(inside[0], known)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(inside[1], known)}
    if dataclasses.is_dataclass(hint):
        return _reference(hint, known)
    plain = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
    return {"type": "null"} if hint is type(None) else {"type": plain[hint]}


def _reference(cls: Any, known: Definitions) -> dict[str, Any]:
    """Return a reference to the type's own schema, which is defined once."""
    if cls.__name__ not in known:
        known[cls.__name__] = {}  # registered before it is described, in case it contains itself
        known[cls.__name__] = _object_schema(cls, known)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _object_schema(cls: Any, known: Definitions) -> dict[str, Any]:
    hints, properties, required = typing.get_type_hints(cls), {}, []
    for field in stored_fields(cls):
        if field.metadata.get("flat"):
            inner = _schema(typing.get_args(hints[field.name])[1], known)
            properties |= {m.key: {"description": m.meaning} | inner for m in measures_in(field)}
            continue
        described = {"description": field.metadata["doc"]} if "doc" in field.metadata else {}
        properties[key_of(field)] = described | _schema(hints[field.name], known)
        if _is_required(field):
            required.append(key_of(field))
    properties |= getattr(cls, "JSON_EXTRA", {})
    about = {"description": describe_type(cls)}
    return {"type": "object", **about, "properties": properties, "required": required}


def describe_type(cls: Any) -> str:
    """Return the docstring of a type as one line."""
    return " ".join((cls.__doc__ or "").split())


def measures_in(field: dataclasses.Field) -> tuple[Measure, ...]:
    """Return the measures in a flat field."""
    of: Scope | None = field.metadata.get("of")
    return measures_of(of) if of else ()


def _is_required(field: dataclasses.Field) -> bool:
    """Return whether every file contains the field: one with a default may be missing in older files."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


# --- tables for the documentation -------------------------------------------------------------------


def field_tables(cls: Any) -> str:
    """Return a Markdown table of the keys of a result, then one for each type that occurs in it."""
    found: dict[str, Any] = {}
    _collect_types(cls, found)
    return "\n\n".join(_field_table(each) for each in found.values())


def _collect_types(hint: Any, found: dict[str, Any]) -> None:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint.__name__ not in found:
        found[hint.__name__] = hint
        inside = typing.get_type_hints(hint)
        for field in stored_fields(hint):
            _collect_types(inside[field.name], found)
    for inner in typing.get_args(hint):
        _collect_types(inner, found)


def _field_table(cls: Any) -> str:
    hints = typing.get_type_hints(cls)
    lines = [f"### {cls.__name__}", "", describe_type(cls), "", "| key | type | meaning |", "|---|---|---|"]
    if kind := getattr(cls, "KIND", ""):
        lines += [_table_line("schema", "integer", f"{cls.SCHEMA}"), _table_line("kind", "text", f'"{kind}"')]
    for field in stored_fields(cls):
        if field.metadata.get("flat"):
            kind = _words(typing.get_args(hints[field.name])[1])
            lines += [_table_line(entry.key, kind, entry.meaning) for entry in measures_in(field)]
        else:
            lines.append(_table_line(key_of(field), _words(hints[field.name]), field.metadata.get("doc", "")))
    for key, extra in getattr(cls, "JSON_EXTRA", {}).items():
        lines.append(_table_line(key, "object", extra.get("description", "")))
    return "\n".join(lines)


def _table_line(key: str, kind: str, meaning: str) -> str:
    escaped = meaning.replace("|", "\\|")
    return f"| `{key}` | {kind} | {escaped} |"


_PLURALS = {int: "integers", float: "numbers", str: "texts", type(None): "nulls"}


def _words(hint: Any) -> str:
    """Return the name of a type in the documentation."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _join_options(inside, [_words(option) for option in inside])
    if origin is typing.Literal:
        return " or ".join(f'"{option}"' for option in inside)
    if origin is tuple and (len(inside) != 2 or inside[1] is not Ellipsis):
        return f"[{', '.join(map(_words, inside))}]"
    if origin in (tuple, list):
        return f"list of {_plural(inside[0])}"
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        return f"[{name}](#{name.lower()})"
    if hint is Any or origin in (dict, Mapping):
        return "any" if hint is Any else "object"
    plain = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "text"}
    return "null" if hint is type(None) else plain[hint]


def _plural(hint: Any) -> str:
    """Return the name of the entries of a list."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_plural, typing.get_args(hint)))
    return _PLURALS.get(hint) or _words(hint)


def _join_options(options: Sequence[Any], words: Sequence[str]) -> str:
    """Return alternatives; a comma tells "or" between them from "or" inside them."""
    return (", or " if any(" or " in word for word in words) else " or ").join(words)
