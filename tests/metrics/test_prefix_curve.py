"""The prefix curve and the histogram of frequencies, against their slow definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae import metrics
from osae.metrics import prefix_curve
from tests.metrics.test_reconstruction import world, worlds


def in_batches(curve, values, units, x, batch):
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        curve.update(values[part], units[part], x[part])
    return curve


@settings(max_examples=60, deadline=None)
@given(worlds, st.integers(1, 7), st.sampled_from([0.0, 50.0]))
def test_every_prefix_is_measured_as_if_it_were_decoded_alone(drawn, batch, shift):
    decoder, values, units, dense, x = drawn
    x = x + shift
    curve = in_batches(metrics.PrefixCurve(decoder), values, units, x, batch)
    errors, explained = curve.mse(), curve.explained_variance()
    assert errors.shape == explained.shape == (len(decoder),)
    for length in range(1, len(decoder) + 1):
        rebuilt = dense[:, :length] @ decoder[:length]
        assert float(errors[length - 1]) == pytest.approx(metrics.mse(x, rebuilt), rel=1e-9, abs=1e-10)
        expected = metrics.explained_variance(x, rebuilt)
        assert float(explained[length - 1]) == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_codes_are_walked_in_parts_in_single_precision_and_nothing_given_is_changed(monkeypatch):
    decoder, values, units, dense, x = (
        part.float() if part.is_floating_point() else part for part in world(50, 12, 9, 4, 0)
    )
    kept = [part.clone() for part in (decoder, values, units, x)]
    monkeypatch.setattr(prefix_curve, "_ENTRIES", 4 * 7)
    curve = metrics.PrefixCurve(decoder)
    curve.update(values, units, x)
    x_double = x.double()
    in_double = metrics.PrefixCurve(decoder.double())
    in_double.update(values.double(), units, x_double)
    for before, now in zip([*kept, kept[-1].double()], (decoder, values, units, x, x_double), strict=True):
        assert torch.equal(before, now)
    slow = [metrics.mse(x, dense[:, :n].double() @ decoder[:n].double()) for n in range(1, 13)]
    torch.testing.assert_close(curve.mse(), torch.tensor(slow, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close(in_double.mse(), curve.mse())


def test_a_perfect_dictionary_falls_to_zero_and_never_below():
    decoder, _, _, dense, _ = world(40, 6, 30, 3, 1)
    everyone = torch.arange(6).expand(40, -1)
    curve = metrics.PrefixCurve(decoder)
    curve.update(dense, everyone, dense @ decoder)
    assert 0.0 <= float(curve.mse()[-1]) < 1e-12
    assert float(curve.explained_variance()[-1]) == pytest.approx(1.0)


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_measured_is_refused():
    curve = metrics.PrefixCurve(torch.ones(2, 3))
    for measure in (curve.mse, curve.explained_variance, metrics.FiringCounts(2).histogram):
        with pytest.raises(ValueError, match="no samples yet"):
            measure()
    zero = torch.zeros(1, 1).long()
    with pytest.raises(ValueError, match="2 codes for 3 samples"):
        curve.update(torch.ones(2, 1), torch.zeros(2, 1).long(), torch.ones(3, 3))
    with pytest.raises(ValueError, match="decoder width 3"):
        curve.update(torch.ones(1, 1), zero, torch.ones(1, 4))
    with pytest.raises(ValueError, match="there are only 2, numbered from 0"):
        curve.update(torch.ones(1, 1), zero + 2, torch.ones(1, 3))
    curve.update(torch.ones(2, 1), torch.zeros(2, 1).long(), torch.ones(2, 3))
    assert bool(curve.explained_variance().isnan().all())  # constant data have no variance


@settings(max_examples=40, deadline=None)
@given(worlds, st.integers(1, 7))
def test_the_histogram_counts_every_unit_once_between_the_right_edges(drawn, batch):
    decoder, values, units, dense, _ = drawn
    firing = metrics.FiringCounts(len(decoder))
    for start in range(0, len(values), batch):
        firing.update(values[start : start + batch], units[start : start + batch])
    shares = (dense != 0).double().mean(0)
    torch.testing.assert_close(firing.frequency(), shares)
    edges, counts, never = firing.histogram()
    assert sum(counts) + never == len(decoder)
    assert never == int((shares == 0).sum())
    assert edges[-1] == 0.0
    assert edges[0] <= np.log10(1 / len(values))
    for place, count in enumerate(counts):
        low, high = 10 ** edges[place], 10 ** edges[place + 1]
        last = place == len(counts) - 1
        inside = (shares >= low * (1 - 1e-12)) & ((shares < high * (1 - 1e-12)) | last) & (shares > 0)
        assert count == int(inside.sum())


def test_a_unit_in_one_sample_and_one_in_every_sample_are_at_the_ends():
    values = torch.zeros(1000, 2)
    values[:, 0], values[7, 1] = 1.0, -2.0
    firing = metrics.FiringCounts(3)
    firing.update(values, torch.tensor([[0, 2]]).expand(1000, -1))
    edges, units, never = firing.histogram()
    assert (edges[0], edges[1], edges[-1], never) == (-3.0, -2.75, 0.0, 1)
    assert (units[0], units[-1], sum(units)) == (1, 1, 2)
