"""What studies and experiments find, as types: read, written, printed and tabulated. Needs no torch."""

import json
from pathlib import Path
from typing import Any

from osae.results.base import Interval, Result, Row, Table, write_json
from osae.results.codec import from_json, schema_of
from osae.results.experiment import ExperimentResult

__all__ = [
    "KINDS",
    "ExperimentResult",
    "Interval",
    "Result",
    "Row",
    "Table",
    "parse",
    "read",
    "schema",
    "write_json",
]

KINDS: dict[str, type[Result]] = {kind.KIND: kind for kind in (ExperimentResult,)}


def read(path: Path | str) -> Result:
    """Return the result in a JSON file, whatever command wrote it."""
    try:
        return parse(json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def parse(data: Any) -> Result:
    """Return the result that a JSON object holds."""
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__}: a JSON object is needed.")
    kind = data.get("kind") or ("experiment" if "experiment" in data else None)
    if kind not in KINDS:
        raise ValueError(f"it holds results of kind {kind!r}: this release reads {', '.join(KINDS)}.")
    cls = KINDS[kind]
    if data.get("schema") != cls.SCHEMA:
        raise ValueError(f"it has schema {data.get('schema')!r}: this release reads {cls.SCHEMA}.")
    return from_json(cls, data)


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of the results of a kind."""
    return schema_of(KINDS[kind], title=f"osae {kind}, schema {KINDS[kind].SCHEMA}")
