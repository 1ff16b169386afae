"""Text from other people's files is shown, never obeyed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osae.report.text import describe_seeds, describe_world, visible


@given(st.text(st.characters()))
def test_visible_text_has_no_character_that_a_terminal_obeys(text):
    shown = visible(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")


@given(st.text("abc äß漢 –…()`<&$"))
def test_ordinary_text_stays_as_it_is(text):
    assert visible(text) == text


def test_escapes_name_the_character():
    assert visible("\x1b[2J\u202eab\ud800\U000e0001") == r"\x1b[2J\u202eab\ud800\U000e0001"
    assert visible("two\nlines") == "two lines"


def test_long_text_keeps_both_ends():
    shown = visible("start" + "x" * 1_000_000 + "end", 50)
    assert len(shown) <= 50
    assert shown.startswith("start")
    assert shown.endswith("end")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([], ""),
        ([4], "1 (seed 4)"),
        ([0, 1], "2 (seeds 0 to 1), 1 pair"),
        ([0, 7, 9], "3 (seeds 0, 7, 9), 3 pairs"),
    ],
)
def test_seeds_in_words(seeds, words):
    assert describe_seeds(seeds) == words


def test_world_in_words_keeps_what_is_nested():
    world = {"kind": "Mixture", "parts": {"kind": "PCAWorld", "width": 8}, "zipf": 1.2}
    assert describe_world(world) == "Mixture: parts (PCAWorld: width 8), zipf 1.2"
    assert (
        describe_world({"positive": True, "strengths": None, "ends": [8, 16]}) == "positive yes, ends (8, 16)"
    )
    assert describe_world({"strengths": [0.5 * i for i in range(20)]}) == "strengths (0, 0.5, ..., 9.5)"
    assert describe_world(None) == ""
