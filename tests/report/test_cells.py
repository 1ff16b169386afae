"""What a cell says is what was measured: no spread of one value, nothing bold that cannot be told apart."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osae.measures import MISSING, measure
from osae.report.cells import explain, lay_out, lay_out_all
from osae.results import Interval, Row, Table
from tests.report.conftest import interval


def table(*values, key="stability", head="Method", **options):
    rows = tuple(Row(f"row {place}", {key: value}, **options) for place, value in enumerate(values))
    return Table("A table", head, (key,), rows)


def bold(table):
    return [line.cells[0].best for line in lay_out(table).lines]


# --- cells ---


def test_cells_hold_ours_with_the_published_number_beside(experiment):
    lines = {line.label: line for line in lay_out_all(experiment)[0].body}
    cell = lines["matryoshka-fixed"].cells[0]
    assert str(cell) == "0.880 (0.010) · paper 0.538 (0.011)"
    assert cell.interval == "0.875 to 0.885"
    assert lines["matryoshka-fixed"].paper_label == "Fixed MSAE <1>"
    assert str(lines["osae"].cells[1]) == "0.967 (<0.001)"
    assert str(lines["osae"].cells[4]) == "2.61e-04 (1.2e-05)"


def test_missing_values_are_en_dashes():
    texts = [str(line.cells[0]) for line in lay_out(table(None, math.nan, 0.5)).body]
    assert texts == [MISSING, MISSING, "0.500"]


def test_a_column_of_chance_levels_is_written_like_what_it_stands_beside():
    row = Row("a", {"stability": 0.9, "stability_chance": 0.25})
    grid = lay_out(Table("", "SAEs", ("stability", "stability_chance"), (row,)))
    assert [column.title for column in grid.columns] == ["Stab", "by chance"]
    assert [cell.mean for cell in grid.body[0].cells] == ["0.900", "0.250"]
    assert list(explain([grid])) == ["Stab", "by chance"]


def test_the_chance_level_stands_in_the_columns_that_have_one(experiment):
    grid = lay_out_all(experiment)[0]
    ((name, texts),) = grid.chance
    assert name == "chance level"
    levels = dict(zip((column.key for column in grid.columns), texts, strict=True))
    assert levels["stability_pairs"] == "0.312"
    assert levels["orderedness_truth"] == "0.000 ± 0.101"  # of 100 matched pairs
    assert levels["mse"] == ""
    assert lay_out(table(0.1, 0.2)).chance == ()


def test_summary_rows_stand_at_the_foot_wherever_they_come():
    rows = (Row("mean", {"mse": 1.0}, summary=True), Row("a", {"mse": 2.0}), Row("b", {"mse": 3.0}))
    grid = lay_out(Table("", "SAE", ("mse",), rows))
    assert [line.label for line in grid.body] == ["a", "b"]
    assert [line.label for line in grid.foot] == ["mean"]


def test_labels_that_differ_in_a_number_sort_by_it():
    def numbers(*labels):
        grid = lay_out(Table("", "Units", ("mse",), tuple(Row(label, {}) for label in labels)))
        return [line.number for line in grid.body]

    assert numbers("first 16", "first 128", "first 32") == [16, 128, 32]
    assert numbers("16", "128") == [16, 128]
    assert numbers("first 16", "last 128") == [None, None]
    assert numbers("0 – 1", "0 – 2") == [None, None]
    assert numbers("topk", "osae") == [None, None]


def test_the_mean_at_the_foot_does_not_keep_prefixes_from_sorting_by_number():
    rows = (Row("first 16", {}), Row("first 128", {}), Row("mean", {}, summary=True))
    grid = lay_out(Table("", "Units", ("mse",), rows))
    assert [line.number for line in grid.body] == [16, 128]


# --- what stands out ---


def test_the_best_stand_out_with_those_whose_intervals_overlap_theirs():
    assert bold(table(interval(0.9), interval(0.8), interval(0.7))) == [True, False, False]
    assert bold(table(interval(0.9), Interval(0.8, 0.1, 0.7, 0.99), interval(0.7))) == [True, True, False]
    assert bold(table(interval(0.9), interval(0.8), key="mse")) == [False, True]  # lower is better
    assert bold(table(interval(9.0), interval(8.0), key="seconds")) == [False, False]  # neither end is good
    assert bold(table(interval(0.9))) == [False]


def test_means_that_print_the_same_are_not_told_apart():
    narrow = [Interval(mean, 1e-6, mean - 1e-6, mean + 1e-6) for mean in (0.99967, 0.99956, 0.9)]
    assert bold(table(*narrow)) == [True, True, False]
    assert bold(table(0.99967, 0.99956, 0.9)) == [True, True, False]


def test_nearly_equal_errors_are_told_apart_only_if_their_intervals_are():
    apart = [Interval(5.97e-4, 1e-6, 5.965e-4, 5.974e-4), Interval(5.98e-4, 1e-6, 5.976e-4, 5.985e-4)]
    close = [replace(one, low=5.9e-4, high=6.0e-4) for one in apart]
    assert bold(table(*apart, 1.0, key="mse")) == [True, False, False]
    assert bold(table(*close, 1.0, key="mse")) == [True, True, False]


def test_nothing_stands_out_where_all_would():
    assert bold(table(0.5, 0.5)) == [False, False]
    assert bold(table(Interval(0.5, 0.1, 0.4, 0.6), Interval(0.55, 0.1, 0.4, 0.7))) == [False, False]


def test_rows_for_reference_and_means_take_no_part():
    rows = (
        Row("untrained", {"stability": 0.99}, reference=True),
        Row("a", {"stability": 0.9}),
        Row("b", {"stability": 0.8}),
        Row("mean", {"stability": 0.95}, summary=True),
    )
    assert bold(Table("", "Method", ("stability",), rows)) == [False, True, False, False]


def test_rows_that_are_no_alternatives_do_not_compete():
    assert bold(table(0.9, 0.8, head="Units")) == [False, False]


numbers = st.floats(0, 1).flatmap(
    lambda mean: st.one_of(
        st.just(mean),
        st.floats(0, 0.3).map(lambda half: Interval(mean, half, mean - half, mean + half)),
    )
)


@given(st.lists(numbers, min_size=2, max_size=8), st.sampled_from(["stability", "mse"]))
def test_bold_never_divides_what_prints_the_same_and_always_holds_the_best(values, key):
    lines = lay_out(table(*values, key=key)).body
    by_text = {}
    for line in lines:
        by_text.setdefault(line.cells[0].mean, set()).add(line.cells[0].best)
    assert all(len(kinds) == 1 for kinds in by_text.values())
    if any(line.cells[0].best for line in lines):
        top = max(lines, key=lambda line: measure(key).ahead(line.cells[0].value, 0.0))
        assert top.cells[0].best


# --- one pair has no spread ---


def single_pair(experiment, seeds):
    alone = {"stability_pairs": Interval(0.89, 0.0, 0.89, 0.89), "stability_truth": interval(0.9)}
    return replace(
        experiment, seeds=seeds, rows=tuple(replace(row, measures=alone) for row in experiment.rows)
    )


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_single_pair_has_neither_spread_nor_interval(experiment, seeds):
    cells = [line.cells[0] for line in lay_out_all(single_pair(experiment, seeds))[0].body]
    assert {str(cell).split(" · ")[0] for cell in cells} == {"0.890"}
    assert {cell.interval for cell in cells} == {""}


def test_spreads_over_seeds_stay_beside_a_single_pair(experiment):
    cells = [line.cells[1] for line in lay_out_all(single_pair(experiment, (0, 1)))[0].body]
    assert {str(cell) for cell in cells} == {"0.900 (0.010)"}


def test_many_seeds_that_agree_exactly_keep_their_spread_of_zero(experiment):
    cells = [line.cells[0] for line in lay_out_all(single_pair(experiment, (0, 1, 2)))[0].body]
    assert str(cells[0]) == "0.890 (0.000)"
    assert cells[0].interval == "0.890 to 0.890"


def test_an_interval_without_ends_is_not_written():
    cell = lay_out(table(Interval(0.611))).body[0].cells[0]
    assert (str(cell), cell.interval) == ("0.611", "")
