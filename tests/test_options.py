"""Options as data: every value is checked where it is declared, wherever it comes from."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osae.options import Options, find_given, list_options, option, parse_option, parse_text, refuse


@dataclass(frozen=True, kw_only=True)
class Sample(Options):
    out: Path = option("a folder")
    units: int = option("a number of units", default=8, least=1, most=100)
    rate: float = option("a rate", default=0.1, above=0)
    seeds: tuple[int, ...] = option("seeds", default=(0,), least=0)
    lengths: tuple[int, ...] | None = option("lengths", default=None, shown="auto", least=1)
    by: str = option("an order", default="gain", choices=("gain", "energy"))
    device: str = option("a device", default="auto", pattern=r"auto|cuda(:\d+)?", wanted="auto or cuda:N")
    names: tuple[str, ...] = option("names", default=(), entries="words")
    quick: bool = option("hurry", default=False)
    plain: int = 3


OPTIONS = {declared.name: declared for declared in list_options(Sample)}
FIRST = Sample(out=Path("x"))


def test_only_declared_fields_are_options():
    assert list(OPTIONS) == [
        *("out", "units", "rate", "seeds", "lengths", "by", "device", "names", "quick"),
    ]
    assert [name for name, declared in OPTIONS.items() if declared.required] == ["out"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 0}, "--units 0: give a whole number of at least 1."),
        ({"units": 101}, "--units 101: give a whole number of at most 100."),
        ({"units": 2.5}, "--units 2.5: give a whole number, such as 2000 or 2e3."),
        ({"units": True}, "--units True: give a whole number, such as 2000 or 2e3."),
        ({"units": "8"}, "--units 8: give a whole number, such as 2000 or 2e3."),
        ({"units": None}, "--units None: give a whole number, such as 2000 or 2e3."),
        ({"rate": 0}, "--rate 0: give a number above 0."),
        ({"rate": math.nan}, "--rate nan: give a finite number."),
        ({"rate": math.inf}, "--rate inf: give a finite number."),
        ({"seeds": (0, -1)}, "--seeds -1: give a whole number of at least 0."),
        ({"seeds": ()}, "--seeds: give at least one value."),
        ({"seeds": 3}, "--seeds: give at least one value."),
        ({"by": "size"}, "--by size: give one of gain, energy."),
        ({"device": "toaster"}, "--device toaster: give auto or cuda:N."),
        ({"quick": "yes"}, "--quick yes: give true or false."),
        ({"out": 7}, "--out 7: give a path."),
        ({"names": (7,)}, "--names 7: give a string."),
    ],
    ids=str,
)
def test_a_value_outside_of_its_limits_is_refused_from_python_too(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(FIRST, **change)


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("units", "1e1", 10),
        ("rate", "1e-3", 0.001),
        ("seeds", "0,1, 2", (0, 1, 2)),
        ("seeds", ["0", "1e1"], (0, 10)),
        ("lengths", "auto", None),
        ("lengths", "4,8", (4, 8)),
        ("names", "a,b", ("a,b",)),
        ("names", ["a", "b c"], ("a", "b c")),
        ("quick", "yes", True),
        ("quick", "off", False),
        ("out", "runs/x", Path("runs/x")),
    ],
)
def test_words_stand_for_values(name, words, value):
    assert parse_option(OPTIONS[name], words) == value


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("units", "ten", "--units ten: give a whole number, such as 2000 or 2e3."),
        ("units", "2.5", "--units 2.5: give a whole number, such as 2000 or 2e3."),
        ("units", "inf", "--units inf: give a whole number, such as 2000 or 2e3."),
        ("units", "1e30", "--units 1e30: give a whole number of at most 9.2e+18."),
        ("units", "9" * 5000, "such as 2000 or 2e3."),
        ("rate", "fast", "--rate fast: give a number."),
        ("seeds", "0,x", "--seeds x: give a whole number, such as 2000 or 2e3."),
        ("quick", "maybe", "--quick maybe: give true or false."),
        ("out", ["a", "b"], "--out: give one value, not 2."),
    ],
)
def test_words_that_stand_for_nothing_are_refused(name, words, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        parse_option(OPTIONS[name], words)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_whole_numbers_are_read_as_python_writes_them(number):
    assert parse_text(int, str(number)) == number


@given(st.floats(allow_nan=False))
def test_numbers_are_read_as_python_writes_them(number):
    assert parse_text(float, repr(number)) == number


@given(st.text())
def test_any_text_is_a_number_or_refused(text):
    for hint in (int, float, bool):
        try:
            value, refusal = parse_text(hint, text), ""
        except ValueError as error:
            value, refusal = None, str(error)
        assert isinstance(value, hint) or refusal.startswith("give ")


def test_an_option_that_would_be_ignored_is_refused_by_name():
    asked = replace(FIRST, units=9, names=("a",))
    assert [each.name for each in find_given(asked, ("names", "units", "rate"))] == ["units", "names"]
    refuse(asked, ("rate", "seeds"), "is not for this.")
    with pytest.raises(ValueError, match="--names is not for this"):
        refuse(asked, ("rate", "names"), "is not for this.")


def test_the_default_is_shown_in_words():
    shown = {name: declared.default_text for name, declared in OPTIONS.items()}
    assert shown == {
        "out": "",
        "units": "8",
        "rate": "0.1",
        "seeds": "0",
        "lengths": "auto",
        "by": "gain",
        "device": "auto",
        "names": "",
        "quick": "",
    }
