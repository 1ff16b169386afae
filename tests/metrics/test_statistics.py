"""Intervals cover, tests hold their level, and both follow from the definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.documentation.statistics import (
    EFFECTS,
    cover_crossed,
    cover_pairs,
    cover_runs,
    tell_apart,
    tell_sides_apart,
)
from osae.metrics.statistics import (
    Decision,
    Estimate,
    contrast,
    crossed_interval,
    decide,
    difference,
    estimate,
    estimate_crossed,
    estimate_pairs,
    estimate_runs,
    pairs_interval,
    runs_interval,
    to_matrix,
)

FEW = 1500  # simulated studies; a coverage of 95 % then has a standard error of 0.6 %


def pairs_of(runs):
    return list(itertools.combinations(range(runs), 2))


# --- laws -------------------------------------------------------------------------------------------


def test_a_mean_over_runs_has_a_student_interval():
    values = [0.1, 0.5, 0.3, 0.9]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = runs_interval(dict(enumerate(values)))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.values == {"0": 0.1, "1": 0.5, "2": 0.3, "3": 0.9}
    assert estimate_runs(values).p_value() == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_variance_components_of_pairs_are_those_of_least_squares():
    """With run effects alone, the mean over pairs is that of the runs, doubled, and so is its error."""
    effects = np.array([0.3, -0.1, 0.25, 0.0, 0.4])
    values = {(i, j): effects[i] + effects[j] for i, j in pairs_of(5)}
    found = estimate(pairs_interval(values))
    single = estimate_runs(2 * effects)
    assert found.mean == pytest.approx(single.mean)
    assert found.error == pytest.approx(single.error)
    assert found.freedom == pytest.approx(4)


@given(st.lists(st.floats(-5, 5), min_size=10, max_size=10), st.floats(-3, 3), st.floats(0.1, 4))
def test_intervals_move_and_stretch_with_their_values(values, shift, scale):
    pairs = dict(zip(pairs_of(5), values, strict=True))
    plain, moved = pairs_interval(pairs), pairs_interval({k: scale * v + shift for k, v in pairs.items()})
    assert moved.low == pytest.approx(scale * plain.low + shift, abs=1e-6)
    assert moved.high == pytest.approx(scale * plain.high + shift, abs=1e-6)


@given(st.permutations(range(6)), st.lists(st.floats(-5, 5), min_size=15, max_size=15))
def test_intervals_do_not_depend_on_the_names_of_runs(names, values):
    pairs = dict(zip(pairs_of(6), values, strict=True))
    renamed = {(names[a], names[b]): value for (a, b), value in pairs.items()}
    assert pairs_interval(renamed).low == pytest.approx(pairs_interval(pairs).low, abs=1e-9)


def test_few_values_have_no_interval():
    for one in (runs_interval({0: 1.0}), pairs_interval({(0, 1): 1.0}), crossed_interval({(0, 1): 1.0})):
        assert (one.std, one.low, one.high) == (None, None, None)
        assert estimate(one) is None
    assert estimate_pairs(np.full((2, 2), 0.5)) is None
    assert estimate_crossed(np.ones((1, 4))) is None


def test_missing_pairs_widen_the_interval_of_the_others():
    values = {pair: 0.1 * sum(pair) + 0.01 * (-1) ** i for i, pair in enumerate(pairs_of(6))}
    whole = pairs_interval(values)
    del values[0, 1]
    part = pairs_interval(values)
    assert part.mean == pytest.approx(np.mean(list(values.values())))
    assert part.high - part.low > 0.5 * (whole.high - whole.low)


def test_runs_crossed_with_runs_have_the_error_of_both_sides():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=6), rng.normal(size=8)
    found = estimate_crossed(left[:, None] + right)
    assert found.error == pytest.approx(np.hypot(stats.sem(left), stats.sem(right)), rel=1e-6)
    holes = left[:6, None] + right[:6]
    np.fill_diagonal(holes, np.nan)
    assert estimate_crossed(holes).error == pytest.approx(
        np.hypot(stats.sem(left), stats.sem(right[:6])), rel=0.05
    )


def test_shared_seeds_cancel_in_differences():
    effects = {seed: 10.0 * seed for seed in range(5)}
    a = runs_interval({seed: value + 0.5 + 0.01 * (-1) ** seed for seed, value in effects.items()})
    b = runs_interval(effects)
    found = difference(a, b)
    assert found.mean == pytest.approx(0.502, abs=1e-9)
    assert found.p_value() < 1e-6
    apart = runs_interval({seed + 100: value for seed, value in effects.items()})
    assert difference(a, apart).p_value() > 0.5  # other seeds: nothing cancels


def test_differences_need_an_error_on_both_sides():
    known = runs_interval({0: 1.0, 1: 2.0, 2: 4.0})
    assert difference(known, runs_interval({7: 1.0})) is None
    assert difference(pairs_interval({(0, 1): 1.0}), pairs_interval({(0, 1): 0.5})) is None


def test_the_difference_of_unrelated_means_is_welchs():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=5), rng.normal(1, 3, size=9)
    found = difference(
        runs_interval(dict(enumerate(a))), runs_interval({seed + 50: value for seed, value in enumerate(b)})
    )
    assert found.p_value() == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_effects_of_runs_cancel_in_contrasts():
    """Pairs within either side, and runs with themselves, agree by 0.1 more than runs across the sides."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 5))
    inside = [
        (0.5, pairs_interval({(i, j): side[i] + side[j] + 0.02 * (i == 0) for i, j in pairs_of(5)}))
        for side in (left, right)
    ]
    across = crossed_interval(
        {(i, j): left[i] + right[j] - 0.1 for i, j in itertools.permutations(range(5), 2)}
    )
    found = contrast([*inside, (-1.0, across)])
    assert found.mean == pytest.approx(0.1 + 0.02 * 4 / 10)
    assert found.error < 0.01
    itself = runs_interval({i: left[i] + right[i] for i in range(5)})
    gain = contrast([(1.0, itself), (-1.0, across)])
    assert (gain.mean, gain.error) == pytest.approx((0.1, 0.0), abs=1e-12)
    assert contrast([(1.0, across), (-1.0, pairs_interval({(0, 1): 1.0}))]) is None
    assert contrast([(1.0, across), (-1.0, runs_interval({7: 1.0, 8: 2.0, 9: 1.0}))]) is None


def test_shifts_and_signs():
    found = Estimate(1.0, 0.5, 4, 5)
    assert found.shifted(-1).p_value() == pytest.approx(1.0)
    assert found.reversed().mean == -1
    assert found.reversed().p_value() == found.p_value()
    assert Estimate(0.0, 0.0, 4, 5).p_value() == 1.0
    assert Estimate(0.1, 0.0, 4, 5).p_value() == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_decides_as_its_definition_says(p_values):
    adjusted, highest = {}, 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = highest
    found = decide(p_values, [1.0] * len(p_values))
    assert [one.above for one in found] == [adjusted[i] <= 0.05 + 1e-12 for i in range(len(p_values))]


def test_decisions_have_a_direction():
    assert decide([0.001, 0.001, 0.9], [1.0, -1.0, 1.0]) == [
        Decision(True, False),
        Decision(False, True),
        Decision(False, False),
    ]


def test_matrices_of_pairs():
    found = to_matrix({(7, 3): 1.0, (3, 9): 2.0}, symmetric=True)
    assert found[0, 1] == 1.0
    assert found[0, 2] == 2.0
    assert np.isnan(found[1, 2])
    with pytest.raises(ValueError, match="with itself"):
        to_matrix({(3, 3): 1.0}, symmetric=True)
    with pytest.raises(ValueError, match="twice"):
        to_matrix({(3, 4): 1.0, (4, 3): 1.0}, symmetric=True)


# --- coverage and false alarms ----------------------------------------------------------------------


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_intervals_of_means_over_runs_cover(runs):
    assert 0.93 <= cover_runs(runs, studies=FEW) <= 0.98


SLACK = 0.008  # two standard errors of the simulation


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("runs", [4, 5, 10])
def test_intervals_of_means_over_pairs_cover(runs, effects):
    assert 0.93 - SLACK <= cover_pairs(runs, effects, studies=FEW) <= 0.98 + SLACK


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize(("runs", "studies", "slack"), [(3, 10_000, 0.003), (5, FEW, SLACK)])
def test_intervals_of_crossed_runs_cover(runs, studies, slack, effects):
    assert 0.93 - slack <= cover_crossed(runs, effects, studies=studies) <= 0.98 + slack


@pytest.mark.parametrize("effects", EFFECTS)
def test_intervals_of_two_runs_crossed_with_two_cover(effects):
    assert 0.93 - SLACK <= cover_crossed(2, effects, itself=True, studies=FEW) <= 0.98 + SLACK
    assert crossed_interval({(0, 1): 1.0, (1, 0): 2.0}).low is None  # two seeds, not with themselves


def cover_three(ratio, runs, pairs):
    """Exact coverage of the mean of three runs' pairs ± ratio * S, by the variance of runs and of pairs."""
    error = ((4 * runs + pairs) / (3 * (runs + pairs))) ** 0.5  # of the mean, in units of S
    return 1 - 2 * stats.t.sf(ratio / error, 2)


def three_runs_ratio(values):
    found = pairs_interval(dict(zip(pairs_of(3), values, strict=True)))
    return (found.high - found.low) / 2 / np.std(values, ddof=1)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_three_runs_have_an_interval_of_constant_width_in_units_of_the_deviation(values):
    if np.std(values) > 1e-3:
        assert three_runs_ratio(values) == pytest.approx(three_runs_ratio([0.0, 1.0, 3.0]))


def test_exact_coverage_of_three_runs():
    ratio = three_runs_ratio([0.0, 1.0, 3.0])
    assert cover_three(ratio, runs=1, pairs=0) == pytest.approx(0.9312, abs=5e-5)
    assert cover_three(ratio, runs=1, pairs=1) == pytest.approx(0.9553, abs=5e-5)
    assert cover_three(ratio, runs=0, pairs=1) == pytest.approx(0.9814, abs=5e-5)
    for effects, exact in (("runs", 0.9312), ("both", 0.9553), ("pairs", 0.9814)):
        assert cover_pairs(3, effects, studies=FEW) == pytest.approx(exact, abs=0.015)


def test_no_interval_of_three_runs_covers_between_93_and_98_percent_in_both_cases():
    least = stats.t.isf(0.035, 2) * (4 / 3) ** 0.5  # the narrowest that covers 93 % if only runs vary
    assert cover_three(least, runs=1, pairs=0) == pytest.approx(0.93)
    assert cover_three(least, runs=0, pairs=1) == pytest.approx(0.9810, abs=5e-5)
    widest = stats.t.isf(0.01, 2) / 3**0.5  # the widest that covers 98 % if only pairs vary
    assert cover_three(widest, runs=0, pairs=1) == pytest.approx(0.98)
    assert cover_three(widest, runs=1, pairs=0) == pytest.approx(0.9265, abs=5e-5)
    assert widest < least < three_runs_ratio([0.0, 1.0, 3.0])


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize("over", ["runs", "pairs"])
def test_equal_methods_are_seldom_told_apart(runs, over):
    assert tell_apart(runs, over, rivals=1, studies=FEW) <= 0.05 + 0.01
    assert tell_apart(runs, over, rivals=4, studies=FEW // 2) <= 0.05 + 0.016


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_agreement_within_and_across_sides_is_seldom_told_apart(runs):
    assert tell_sides_apart(runs, studies=FEW // 2) <= 0.05 + 0.016
