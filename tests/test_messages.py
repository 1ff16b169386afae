"""Messages fit on one line, and an unknown word gets the nearest known one as a question."""

import pytest

from osae.cli.suggestions import RENAMED, suggest_flag
from osae.messages import list_choices, one_line, shorten, suggest

KNOWN = ("topk", "osae", "osae-paper")


def test_a_message_of_several_lines_becomes_one():
    assert one_line(ValueError("a\n  b\tc ")) == "a b c"
    assert one_line("x" * 1000) == "x" * 1000


def test_a_long_message_of_another_library_is_cut_off():
    assert shorten(OSError("a\nb")) == "a b"
    assert len(shorten("words " * 1000)) == 300


@pytest.mark.parametrize(
    ("word", "hint"), [("osea", "did you mean osae?"), ("tokp", "did you mean topk?"), ("zzz", ""), (7, "")]
)
def test_the_nearest_word_is_suggested(word, hint):
    assert suggest(word, KNOWN) == hint


def test_all_choices_follow_the_suggestion():
    assert list_choices("osea", KNOWN) == "did you mean osae? Choose from topk, osae, osae-paper."
    assert list_choices("zzz", KNOWN, "give one of") == "give one of topk, osae, osae-paper."


@pytest.mark.parametrize("flag", RENAMED)
def test_an_option_of_release_0_1_0_is_suggested_by_its_new_name(flag):
    assert suggest_flag(flag, [RENAMED[flag], "--other"]) == f"did you mean {RENAMED[flag]}?"
    assert RENAMED[flag] not in suggest_flag(flag, ["--other"])
