"""Bootstrap over seeds."""

import itertools

import numpy as np
import pytest
import torch

from osae.metrics import Interval, cross_interval, mean_interval, pair_interval


def test_mean_interval_is_the_bootstrap_of_a_mean():
    values = np.random.default_rng(0).normal(size=200)
    found = mean_interval(values.tolist(), draws=4000)
    assert found.mean == pytest.approx(values.mean())
    assert found.std == pytest.approx(values.std(ddof=1))
    half = 1.96 * values.std() / 200**0.5
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert found == mean_interval(torch.tensor(values), draws=4000)
    assert found != mean_interval(values.tolist(), draws=4000, seed=1)
    wide = mean_interval(values.tolist(), draws=4000, level=0.99)
    assert wide.low < found.low < found.high < wide.high


def test_pair_interval_resamples_seeds_as_the_definition_does():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 9))
    pairs = {(i, j): float(matrix[i, j]) for i, j in itertools.combinations(range(9), 2)}
    found = pair_interval(pairs, draws=20_000)
    assert found.mean == pytest.approx(np.mean(list(pairs.values())))
    assert found.std == pytest.approx(np.std(list(pairs.values()), ddof=1))
    means = []
    for _ in range(20_000):
        drawn = np.sort(rng.integers(9, size=9))
        kept = [pairs[(i, j)] for i, j in itertools.combinations(drawn.tolist(), 2) if i != j]
        if kept:
            means.append(np.mean(kept))
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.03)
    assert found.high == pytest.approx(high, abs=0.03)
    assert found == pair_interval(torch.tensor(matrix), draws=20_000)


def test_pairs_may_come_in_any_order_of_names_and_with_gaps():
    pairs = {(3, 7): 1.0, (9, 3): 2.0, (7, 9): 4.0}
    assert pair_interval(pairs) == pair_interval({(7, 3): 1.0, (3, 9): 2.0, (9, 7): 4.0})
    found = pair_interval({(3, 7): 1.0, (9, 3): 2.0})
    assert found.mean == pytest.approx(1.5)
    assert (found.low, found.high) == (1.0, 2.0)


def test_intervals_over_seeds_are_wider_than_over_pairs_when_runs_differ():
    effect = np.random.default_rng(0).normal(size=10)
    pairs = {(i, j): float(effect[i] + effect[j]) for i, j in itertools.combinations(range(10), 2)}
    over_seeds, over_pairs = pair_interval(pairs), mean_interval(list(pairs.values()))
    assert over_seeds.high - over_seeds.low > 1.5 * (over_pairs.high - over_pairs.low)


def test_cross_interval_draws_both_sides():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    found = cross_interval(matrix)
    assert found.mean == pytest.approx(float(matrix.mean()))
    assert found.low < found.mean < found.high
    rows = torch.arange(6.0).double()[:, None].expand(6, 4)
    assert cross_interval(rows).low == pytest.approx(mean_interval(rows[:, 0]).low, abs=0.2)
    holes = matrix.clone()
    holes[0, 0] = float("nan")
    assert cross_interval(holes).mean == pytest.approx(float(holes[~holes.isnan()].mean()))


def test_one_value_has_neither_spread_nor_interval():
    assert mean_interval([2.0]) == Interval(2.0)
    assert pair_interval({(0, 1): 0.5}) == Interval(0.5)
    assert cross_interval([[0.5]]) == Interval(0.5)
    assert Interval(0.5) == Interval(0.5, None, None, None)
    two = mean_interval([1.0, 2.0])
    assert two.std == pytest.approx(0.5**0.5)
    assert two.ends() == (1.0, 2.0)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mean_interval([]), "no values"),
        (lambda: mean_interval([1.0, float("nan")]), "NaN"),
        (lambda: mean_interval([1.0], level=95), "level=95"),
        (lambda: mean_interval([1.0], draws=0), "draws=0"),
        (lambda: mean_interval(torch.ones(2, 2)), "one value per run"),
        (lambda: pair_interval({(1, 1): 0.5}), "with itself"),
        (lambda: pair_interval({(1, 2): 0.5, (2, 1): 0.4}), "twice"),
        (lambda: pair_interval({}), "no runs"),
        (lambda: pair_interval(torch.ones(2, 3)), "square"),
        (lambda: cross_interval(torch.ones(3)), "one row per run"),
    ],
)
def test_bad_values_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
