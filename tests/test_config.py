import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.config import alter, from_json, to_json
from osae.prefix import Mixed, Piecewise, Uniform
from osae.recipes import WORLD_RECIPES, Task, world_recipe
from osae.sparsify import TopK

TASK = Task(width=8, units=12, k=3, samples=10_000, batch=100)


@pytest.mark.parametrize("name", WORLD_RECIPES)
def test_every_recipe_survives_json(name):
    made = world_recipe(name, TASK)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


def test_alter_changes_one_field_on_a_path():
    made = world_recipe("osae", TASK)
    other = alter(made, {"lr.peak": 0.5, "revival": None, "prefix": Uniform()})
    assert (other.lr.peak, other.revival, other.prefix) == (0.5, None, Uniform())
    back = {"lr.peak": made.lr.peak, "revival": made.revival, "prefix": made.prefix}
    assert alter(other, back) == made


@pytest.mark.parametrize("path", ["nonsense", "lr.nonsense", "lr.peak.deeper", "sweep.burn_in"])
def test_alter_refuses_a_path_that_leads_nowhere(path):
    with pytest.raises(ValueError, match="no field"):
        alter(world_recipe("topk", TASK), {path: 1})


def test_unknown_kinds_and_fields_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'Nonsense'"):
        from_json({"kind": "Nonsense"})
    with pytest.raises(ValueError, match="unknown kind"):
        from_json({"kind": ["Uniform"]})
    with pytest.raises(ValueError, match="Uniform has no field speed"):
        from_json({"kind": "Uniform", "speed": 3})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
@settings(deadline=None)
def test_plain_values_survive(value):
    assert from_json(to_json(value)) == value


def test_nested_variants_survive():
    spec = Mixed(Piecewise((2, 5), (0.5, 0.5)), 0.25)
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "TopK"}, "TopK needs k"),
        ({"kind": "TopK", "k": "five"}, "TopK.k='five' has the wrong type"),
        ({"kind": "Mixed", "base": {"kind": "TopK", "k": 3}, "full": 0.5}, "Mixed.base"),
        ({"kind": "Zipf", "alpha": True}, "Zipf.alpha=True"),
    ],
)
def test_unfit_fields_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        from_json(data)


@pytest.mark.parametrize(("path", "value"), [("lr.peak", "fast"), ("prefix", TopK(3)), ("batch", 1.5)])
def test_alter_refuses_values_of_another_kind(path, value):
    with pytest.raises(ValueError, match="wrong type"):
        alter(world_recipe("topk", TASK), {path: value})
