"""What every result must satisfy, and the files of release 0.1.0 to hold results against."""

import json
from pathlib import Path

import jsonschema
import pytest

from osae import results

RELEASED = Path(__file__).parent.parent / "fixtures" / "release-0.1.0"


def check(result):
    """Return the result, after its schema has accepted it and JSON has held it without loss."""
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    jsonschema.Draft202012Validator(results.schema(result.KIND)).validate(data)
    assert results.parse(data) == result
    return result


def walk_missing(old, new, path=""):
    """Yield the keys and nestings of the old JSON that the new one lacks; numbers may differ."""
    if isinstance(old, dict):
        if not isinstance(new, dict):
            yield path
            return
        for key, value in old.items():
            if key not in new:
                yield f"{path}.{key}"
            else:
                yield from walk_missing(value, new[key], f"{path}.{key}")
    elif isinstance(old, list):
        if not isinstance(new, list) or len(new) != len(old):
            yield path
            return
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from walk_missing(one, other, f"{path}[{place}]")
    elif isinstance(old, float) and path.count("versions") == 0:
        if not isinstance(new, float) or new != pytest.approx(old, rel=1e-6, abs=1e-9):
            yield f"{path}: {new} instead of {old}"
    elif type(old) is not type(new):
        yield path
