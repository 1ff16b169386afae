"""Intervals from lists, arrays and matrices are those of `statistics`."""

import numpy as np
import pytest
import torch

from osae.metrics import Interval, cross_interval, mean_interval, pair_interval
from osae.metrics.statistics import crossed_interval, pairs_interval, runs_interval


def test_every_form_of_values_gives_the_same_interval():
    values = [0.2, 0.7, 0.4, 0.9]
    found = mean_interval(values)
    assert (
        found == mean_interval(np.array(values)) == mean_interval(torch.tensor(values, dtype=torch.float64))
    )
    kept = runs_interval(dict(enumerate(values)))
    assert (found.mean, found.std, found.low, found.high) == (kept.mean, kept.std, kept.low, kept.high)
    assert found.values is None


def test_pairs_are_a_mapping_or_the_upper_part_of_a_matrix():
    matrix = np.array([[9.0, 1.0, 2.0, 4.0], [9, 9, 3, 5], [9, 9, 9, 7], [9, 9, 9, 9]])
    pairs = {(0, 1): 1.0, (0, 2): 2.0, (0, 3): 4.0, (1, 2): 3.0, (1, 3): 5.0, (2, 3): 7.0}
    assert pair_interval(matrix) == pair_interval(pairs)
    assert pair_interval(matrix).low == pairs_interval(pairs).low
    renamed = {(7, 3): 1.0, (3, 9): 2.0, (9, 7): 4.0}
    assert pair_interval({(3, 7): 1.0, (3, 9): 2.0, (7, 9): 4.0}).mean == pair_interval(renamed).mean
    matrix[0, 1] = np.nan
    assert pair_interval(matrix).mean == pytest.approx(np.mean([2, 4, 3, 5, 7]))


def test_runs_crossed_with_runs():
    matrix = np.array([[0.1, 0.4, 0.2], [0.5, 0.9, 0.4], [0.3, 0.6, 0.3]])
    values = {(i, j): matrix[i, j] for i in range(3) for j in range(3)}
    assert cross_interval(matrix).high == crossed_interval(values).high
    matrix[0, 0] = np.nan
    assert cross_interval(matrix).mean == pytest.approx(np.nanmean(matrix), abs=0.1)


def test_single_values_have_no_interval():
    assert mean_interval([2.0]) == Interval(2.0)
    assert pair_interval({(0, 1): 0.5}) == Interval(0.5)
    assert cross_interval([[0.5]]) == Interval(0.5)
    two = mean_interval([1.0, 2.0])
    assert two.low < 1.0
    assert two.high > 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([]), "no values"),
        (lambda: mean_interval([1.0, float("nan")]), "NaN"),
        (lambda: mean_interval(torch.ones(2, 2)), "one value per run"),
        (lambda: pair_interval({(1, 1): 0.5}), "with itself"),
        (lambda: pair_interval({(1, 2): 0.5, (2, 1): 0.4}), "twice"),
        (lambda: pair_interval({}), "no values"),
        (lambda: pair_interval(torch.ones(2, 3)), "square"),
        (lambda: cross_interval(torch.ones(3)), "one row per run"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
