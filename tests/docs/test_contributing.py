"""The table of places to touch in CONTRIBUTING.md is true: files and tests exist, and places are few."""

import re

import pytest

from benchmarks import ROOT

KINDS = {
    "measure",
    "sparsifier",
    "prefix distribution",
    "dictionary",
    "recipe",
    "format to read",
    "format to write",
    "experiment",
    "command",
}
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
LINES = re.findall(r"^\| (an? .+?) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
PLACES = {kind: re.findall(r"`([\w/]+\.py)`", touch) for kind, touch, _ in LINES}
TESTS = {kind: re.findall(r"`(tests/[\w/.]+?)::(\w+)`", shown) for kind, _, shown in LINES}


def test_every_kind_of_change_has_a_line():
    assert {kind.removeprefix("a ").removeprefix("an ") for kind in PLACES} == KINDS


@pytest.mark.parametrize("kind", PLACES)
def test_at_most_three_places_are_touched_and_exist(kind):
    assert 1 <= len(PLACES[kind]) <= 3
    for place in PLACES[kind]:
        assert (ROOT / "src" / "osae" / place).exists() or place.endswith("/new.py"), place


@pytest.mark.parametrize("kind", TESTS)
def test_every_line_names_a_test_that_exists(kind):
    assert TESTS[kind]
    for file, name in TESTS[kind]:
        assert f"def {name}(" in (ROOT / file).read_text(), (file, name)
