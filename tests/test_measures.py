"""Laws of the table of measures: everything shown derives from it."""

import ast
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ROOT
from osae import measures
from osae.measures import (
    MEASURES,
    MISSING,
    Measure,
    added,
    base_key,
    fixed,
    legend,
    markdown_table,
    measure,
    significant,
)
from osae.results import read


@pytest.mark.parametrize("key", MEASURES)
def test_every_measure_says_what_it_is(key):
    entry = MEASURES[key]
    assert entry.key == key
    assert entry.title
    assert entry.phrase
    assert entry.meaning.endswith(".")
    assert entry.of, "a measure of nothing is shown nowhere"
    assert measure(key) is entry


def test_keys_derived_from_a_measure_are_written_like_it():
    truth, prefix, chance = (measure(f"stability_{suffix}") for suffix in ("truth", "64", "chance"))
    assert (truth.title, prefix.title, chance.title) == ("Stab truth", "Stab 64", "by chance")
    assert truth.better == prefix.better == "high"
    assert chance.better == ""  # no chance level is the best of a column
    assert not chance.chance
    assert {truth.digits, prefix.digits, chance.digits} == {MEASURES["stability"].digits}
    assert base_key("orderedness_chance") == base_key("orderedness_128") == "orderedness"
    assert base_key("above_0.5") == "above_0.5"
    assert base_key("stream_stability_pairs") == "stream_stability"


def test_an_unknown_key_gets_a_title():
    assert measure("my_new-measure").title == "My new measure"


@given(st.floats(-1e8, 1e8), st.integers(1, 4))
def test_written_numbers_read_back_within_their_digits(value, digits):
    assert float(measures.fixed(value, digits)) == pytest.approx(value, abs=0.5000001 * 10.0**-digits)
    assert float(measures.significant(value, digits)) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))
    assert not measures.fixed(value, digits).startswith("-0" + "." * (digits > 0) + "0" * digits)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_number_that_does_not_exist_is_a_dash(missing):
    assert MEASURES["mse"].text(missing) == MISSING
    assert MEASURES["mse"].spread(missing) == ""


def test_a_spread_that_rounds_to_zero_is_not_written_as_zero():
    assert MEASURES["stability"].spread(1e-6) == "<0.001"
    assert MEASURES["stability"].spread(0.0) == "0.000"


def test_ahead_follows_the_direction():
    assert MEASURES["mse"].ahead(1.0, 3.0) == 2.0
    assert MEASURES["stability"].ahead(1.0, 3.0) == -2.0


def test_an_added_measure_is_in_the_docs_table_and_the_legend_and_goes_again():
    entry = Measure("luck", "Luck", "luck", "How lucky the seed was.", of=("pair",))
    with added(entry):
        assert "| Luck | `luck` | How lucky the seed was. | – |" in markdown_table()
        assert list(legend(["luck", "stability", "stability_chance"])) == ["Luck", "Stab"]
        assert legend(["luck"]) == {"Luck": "How lucky the seed was."}
        assert entry in measures.measures_of("pair")
    assert "luck" not in MEASURES
    with (
        pytest.raises(AssertionError, match="two measures are called stability"),
        added(MEASURES["stability"]),
    ):
        pass


sane = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(sane, st.integers(0, 6))
def test_fixed_text_reads_back_within_half_of_its_last_place(value, digits):
    text = fixed(value, digits)
    assert abs(float(text) - value) <= 0.5001 * 10.0**-digits + 1e-15 * abs(value)
    assert not (text.startswith("-") and float(text) == 0)


@given(sane, st.integers(2, 6))
def test_significant_text_reads_back_within_half_of_its_last_digit(value, digits):
    assert math.isclose(float(significant(value, digits)), value, rel_tol=0.5001 * 10.0 ** (1 - digits))


@given(st.floats(1e-9, 1e4))
def test_a_positive_spread_is_never_written_as_zero(std):
    text = measure("stability_truth").spread(std)
    assert text == "<0.001" if std < 0.0005 else abs(float(text) - std) <= 0.000501


def test_numbers_are_written_as_in_the_paper():
    mse = measure("mse")
    texts = [mse.text(v) for v in (2.53e-4, 0.0257, 0.00725, 0.9999, 0.0, None, math.nan)]
    assert texts == ["2.53e-04", "0.0257", "0.00725", "1.00", "0", MISSING, MISSING]
    assert measure("stability_pairs").text(-0.0001) == "0.000"


def test_a_measure_at_a_prefix_is_judged_like_the_measure_itself():
    for name in ("stability", "orderedness"):
        at, whole = measure(f"{name}_64"), measure(name)
        assert (at.title, at.phrase) == (f"{whole.title} 64", f"{name} at 64 units")
        assert (at.better, at.format, at.digits) == (whole.better, whole.format, whole.digits)


def test_a_measure_that_is_not_in_the_table_is_named_after_its_key():
    new = measure("some_new-measure")
    assert (new.title, new.phrase) == ("Some new measure", "some new measure")


def test_the_legend_explains_each_measure_once_in_its_own_words():
    found = legend(["orderedness_pairs", "orderedness_truth", "mse", "stability_64", "not in the table"])
    entries = [MEASURES[key] for key in ("orderedness", "mse", "stability")]
    assert found == {entry.title: entry.meaning for entry in entries}


def test_measures_are_declared_in_the_table_alone():
    """No module makes a measure, with a title and a format, of its own."""
    modules = [path for path in (ROOT / "src").rglob("*.py") if path.name != "measures.py"]
    calls = [
        f"{path}:{node.lineno}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Measure"
    ]
    assert calls == []


STORED = sorted((ROOT / "evidence").glob("*/results.json"))


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.parent.name)
def test_every_column_of_a_stored_result_is_in_the_table(file):
    result = read(file)
    columns = {key for table in result.tables() for key in table.columns}
    assert columns
    assert {key for key in columns if base_key(key) not in MEASURES} == set()
