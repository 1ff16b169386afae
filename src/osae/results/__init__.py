"""Typed results of studies and experiments, with their files and tables. Does not need torch."""

from pathlib import Path
from typing import Any

from osae.files import read_json
from osae.results.base import Interval, Result, Row, Table, write_json
from osae.results.codec import from_json
from osae.results.comparison import Comparison
from osae.results.contexts import Contexts
from osae.results.describe import schema_of
from osae.results.evaluation import Evaluation
from osae.results.experiment import ExperimentResult
from osae.results.lm import LMResult
from osae.results.ordering import Ordering
from osae.results.pruning import Pruning
from osae.results.stitching import Stitching
from osae.results.sweep import Sweep

__all__ = [
    "KINDS",
    "AnyResult",
    "Comparison",
    "Contexts",
    "Evaluation",
    "ExperimentResult",
    "Interval",
    "LMResult",
    "Ordering",
    "Pruning",
    "Result",
    "Row",
    "Stitching",
    "Sweep",
    "Table",
    "parse",
    "read",
    "schema",
    "write_json",
]

LARGEST = 2**28  # bytes; larger files of results are not read
# an LMResult is an experiment
AnyResult = Comparison | Contexts | Evaluation | ExperimentResult | Ordering | Pruning | Stitching | Sweep
_TYPES = (Comparison, Contexts, Evaluation, Ordering, Pruning, Stitching, Sweep, ExperimentResult, LMResult)
KINDS: dict[str, type[AnyResult]] = {each.KIND: each for each in _TYPES}


def read(path: Path | str) -> AnyResult:
    """Return the result in a JSON file, whatever command wrote it."""
    held = read_json(path, largest=LARGEST)
    try:
        return parse(held)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse(data: Any) -> AnyResult:
    """Return the result that a JSON object describes."""
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}.")
    kind = data.get("kind") or _older_kind(data)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"results of kind {kind!r} are unknown: this release reads {', '.join(KINDS)}.")
    cls = KINDS[kind]
    if data.get("schema") != cls.SCHEMA:
        raise ValueError(f"it has schema {data.get('schema')!r}: this release reads {cls.SCHEMA}.")
    return from_json(cls, data)


def _older_kind(data: dict[str, Any]) -> str | None:
    """Return the kind of results that release 0.1.0 wrote without naming it."""
    if "experiment" not in data:
        return None
    return LMResult.KIND if data["experiment"] == "lm" else ExperimentResult.KIND


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of the results of a kind."""
    cls = KINDS[kind]
    found = schema_of(cls, title=f"osae {kind}, schema {cls.SCHEMA}")
    # release 0.1.0 wrote experiments without their kind
    required = ["schema"] if kind in (ExperimentResult.KIND, LMResult.KIND) else ["schema", "kind"]
    head = {"schema": {"const": cls.SCHEMA}, "kind": {"const": kind}}
    return found | {"properties": head | found["properties"], "required": required + found["required"]}
