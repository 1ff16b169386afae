"""Results survive JSON, and what does not fit is refused with the place where it stands."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osae.results.codec import aside, doc, flat, from_json, optional, to_json
from osae.results.describe import field_tables, schema_of


@dataclass(frozen=True)
class Inner:
    """An inner object."""

    number: float | None = doc("a number")
    measures: Mapping[str, float | None] = flat("numbers by measure", of="pair")


@dataclass(frozen=True)
class Outer:
    """An outer object."""

    name: str = doc("a name")
    inside: tuple[Inner, ...] = doc("several", key="list")
    triple: tuple[int, int, float] = doc("of fixed length")
    kind: Literal["a", "b"] | int = doc("one of two words, or a number")
    extra: Mapping[str, Any] | None = optional("left out if absent")
    heavy: Any = aside("not written")


numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
inners = st.builds(
    Inner, numbers, st.dictionaries(st.sampled_from(["stability", "worst", "above_0.5"]), numbers)
)
outers = st.builds(
    Outer,
    st.text(),
    st.lists(inners, max_size=3).map(tuple),
    st.tuples(st.integers(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    st.one_of(st.sampled_from(["a", "b"]), st.integers()),
    st.one_of(st.none(), st.dictionaries(st.text(), st.integers())),
)


@given(outers)
def test_what_is_written_is_read_back(value):
    assert from_json(Outer, json.loads(json.dumps(to_json(value), allow_nan=False))) == value


def test_flat_renamed_optional_and_aside_fields():
    value = Outer("x", (Inner(1.0, {"stability": 0.5}),), (1, 2, 3.0), "a", heavy=object())
    assert to_json(value) == {
        "name": "x",
        "list": [{"number": 1.0, "stability": 0.5}],
        "triple": [1, 2, 3.0],
        "kind": "a",
    }
    assert from_json(Outer, to_json(value)).heavy is None
    assert from_json(Outer, to_json(value)) == value  # what stands aside does not count


def test_numbers_that_do_not_exist_are_null_and_arrays_are_lists():
    assert to_json(Inner(math.nan, {"stability": math.inf})) == {"number": None, "stability": None}
    assert to_json({"a": np.float32(0.5), "b": np.arange(3)}) == {"a": 0.5, "b": [0, 1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name is 3: text is required"),
        ({"list": {}}, r"list is \{\}: a list is required"),
        ({"list": [{"number": "x"}]}, r"list\[0\].number is 'x': a number is required"),
        ({"triple": [1, 2]}, "a list of 3 is required"),
        ({"triple": [1.5, 2, 3.0]}, r"triple\[0\] is 1.5: a whole number"),
        ({"triple": [True, 2, 3.0]}, r"triple\[0\] is True"),
        ({"kind": "c"}, "kind is 'c'"),
        ({"name": None}, "name is None"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    good = {"name": "x", "list": [], "triple": [1, 2, 3.0], "kind": "a"}
    assert from_json(Outer, good).inside == ()
    with pytest.raises(ValueError, match=message):
        from_json(Outer, good | change)


def test_a_missing_key_is_named_and_an_unknown_one_ignored():
    with pytest.raises(ValueError, match="Outer has no 'list'"):
        from_json(Outer, {"name": "x"})
    good = {
        "name": "x",
        "list": [{"number": 1, "later": {"x": 1}}],
        "triple": [1, 2, 3.0],
        "kind": 4,
        "new": 1,
    }
    assert from_json(Outer, good).inside == (Inner(1.0, {}),)


def test_the_schema_and_the_docs_have_every_key():
    schema = schema_of(Outer, title="outer")
    assert set(schema["properties"]) == {"name", "list", "triple", "kind", "extra"}
    assert schema["required"] == ["name", "list", "triple", "kind"]
    inner = schema["$defs"]["Inner"]["properties"]
    assert inner["number"]["description"] == "a number"
    assert inner["stability"]["description"].startswith("Mean cosine")
    table = field_tables(Outer)
    assert "| `list` | list of [Inner](#inner) | several |" in table
    assert "| `stability` | number or null | Mean cosine of matched units" in table
    assert "heavy" not in table
