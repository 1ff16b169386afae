"""Statements are weighed by their parts, and those that hold somewhere by their best case."""

import pytest

from osae.experiments.claims import Somewhere, Statement, weigh_statements
from osae.metrics.statistics import estimate_runs


def around(mean):
    return estimate_runs([mean - 0.1, mean, mean + 0.1])


def weigh(mean):
    return Statement(str(mean), {"": around(mean)})


def test_a_statement_about_a_place_is_corrected_for_the_places_that_were_looked_at():
    above, _ = weigh(1.0).weigh()
    assert Somewhere("", [weigh(1.0)]).weigh()[0] == above
    assert Somewhere("", [weigh(1.0), weigh(0.2), weigh(-1.0)]).weigh()[0] == pytest.approx(3 * above)
    (few,) = weigh_statements([Somewhere("", [weigh(1.0)] * 2)])
    (many,) = weigh_statements([Somewhere("", [weigh(1.0)] * 20)])
    assert (few.outcome, many.outcome) == ("true", "undecided")


def test_it_is_false_only_if_it_is_false_everywhere():
    (nowhere,) = weigh_statements([Somewhere("", [weigh(-1.0), weigh(-2.0)])])
    (unknown,) = weigh_statements([Somewhere("", [weigh(-1.0), weigh(-0.01)])])
    (unmeasured,) = weigh_statements([Somewhere("", [weigh(-1.0), Statement("", {"": None})])])
    assert [one.outcome for one in (nowhere, unknown, unmeasured)] == ["false", "undecided", "undecided"]


def test_the_best_case_is_quoted_by_its_weakest_part():
    good = Statement("good", {"early": around(1.0), "late": around(0.5)})
    (found,) = weigh_statements([Somewhere("somewhere", [weigh(0.2), good, weigh(-1.0)])])
    assert (found.about, found.part, found.mean) == ("somewhere", "good, late", pytest.approx(0.5))


def test_stored_p_values_are_those_that_are_corrected_for_the_number_of_statements():
    late = Statement("", {"early": around(1.0), "middle": around(2.0), "late": around(-1.0)})
    (found,) = weigh_statements([late])
    assert found.outcome == "false"
    assert found.p_value == pytest.approx(3 * around(-1.0).p_value())
    assert weigh_statements([weigh(1.0)])[0].p_value == pytest.approx(around(1.0).p_value())
