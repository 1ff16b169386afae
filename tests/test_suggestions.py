"""An unknown word gets the nearest known one as a question, and all of them where that helps."""

import pytest

from osae.cli.suggestions import RENAMED, suggest_flag
from osae.suggestions import list_choices, suggest

KNOWN = ("topk", "osae", "osae-paper")


@pytest.mark.parametrize(
    ("word", "hint"), [("osea", "did you mean osae?"), ("tokp", "did you mean topk?"), ("zzz", ""), (7, "")]
)
def test_the_nearest_word_is_suggested(word, hint):
    assert suggest(word, KNOWN) == hint


def test_all_choices_follow_the_suggestion():
    assert list_choices("osea", KNOWN) == "did you mean osae? There are topk, osae, osae-paper."
    assert list_choices("zzz", KNOWN, "give one of") == "give one of topk, osae, osae-paper."


@pytest.mark.parametrize("flag", RENAMED)
def test_an_option_of_release_0_1_0_is_suggested_by_its_new_name(flag):
    assert suggest_flag(flag, [RENAMED[flag], "--other"]) == f"did you mean {RENAMED[flag]}?"
    assert RENAMED[flag] not in suggest_flag(flag, ["--other"])
