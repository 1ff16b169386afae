"""Reconstruction measures, FIFR, energy, greedy order and stitching, each against its formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae import metrics
from tests.oracles import energy_by_its_formula, fifr_by_its_formula, greedy_order_by_trying_every_unit


def world(samples: int, units: int, width: int, k: int, seed: int):
    """A decoder, a sparse code (values, units), the same code dense, and data near what it stands for."""
    generator = torch.Generator().manual_seed(seed)
    decoder = torch.randn(units, width, generator=generator).double()
    chosen = torch.rand(samples, units, generator=generator).argsort(1)[:, :k]
    values = torch.randn(samples, k, generator=generator).double()
    values[torch.rand(samples, k, generator=generator) < 0.2] = 0
    dense = torch.zeros(samples, units, dtype=torch.float64).scatter_(1, chosen, values)
    x = dense @ decoder + 0.3 * torch.randn(samples, width, generator=generator).double()
    return decoder, values, chosen, dense, x


worlds = st.builds(
    lambda samples, units, width, k, seed: world(samples, units, width, min(k, units), seed),
    st.integers(2, 20),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 1000),
)


@settings(max_examples=30, deadline=None)
@given(worlds, st.integers(1, 7))
def test_streamed_reconstruction_equals_the_plain_functions(drawn, batch):
    decoder, values, units, dense, x = drawn
    x, rebuilt = x + 100.0, dense @ decoder + 100.0
    stream = metrics.Reconstruction(len(decoder))
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        stream.update(x[part], rebuilt[part], values[part], units[part])
    result = stream.result()
    assert result.mse == pytest.approx(metrics.mse(x, rebuilt))
    assert result.explained_variance == pytest.approx(metrics.explained_variance(x, rebuilt), rel=1e-9)
    assert result.l0 == pytest.approx(metrics.l0(values))
    assert result.l0 == pytest.approx(metrics.l0(dense))
    assert result.dead_share == pytest.approx(metrics.dead_share(values, units, len(decoder)))
    assert result.dead_share == pytest.approx(float((dense == 0).all(0).double().mean()))
    assert result.samples == len(x)


def test_explained_variance_is_one_for_perfect_zero_for_the_mean_and_a_ratio_of_sums():
    x = torch.randn(50, 6) + 5
    assert metrics.explained_variance(x, x) == 1.0
    assert metrics.explained_variance(x, x.mean(0).expand_as(x)) == pytest.approx(0.0, abs=1e-6)
    assert metrics.mse(x, x + 2) == pytest.approx(4.0)
    assert math.isnan(metrics.explained_variance(torch.ones(4, 2), torch.zeros(4, 2)))
    with pytest.raises(ValueError, match="no samples"):
        metrics.Reconstruction(3).result()


@settings(max_examples=40, deadline=None)
@given(worlds, st.integers(0, 100))
def test_fifr_is_its_formula_for_dense_and_sparse_codes(drawn, seed):
    truth, values, units, dense, _ = drawn
    generator = torch.Generator().manual_seed(seed)
    decoder = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    code = torch.randn(dense.shape, generator=generator, dtype=torch.float64)
    if not bool(values.any()):
        with pytest.raises(ValueError, match="no true feature"):
            metrics.fifr(truth, dense, decoder, code)
        return
    expected = fifr_by_its_formula(truth, dense, decoder, code)
    if truth.shape[1] == 1:  # every matching is best in one dimension: the partner is a matter of choice
        return
    assert metrics.fifr(truth, dense, decoder, code) == pytest.approx(expected, rel=1e-9)
    everyone = torch.arange(len(truth)).expand(len(code), -1)
    assert metrics.fifr(truth, (values, units), decoder, (code, everyone)) == pytest.approx(
        expected, rel=1e-9
    )


def test_fifr_of_the_truth_is_zero_of_silence_one_and_free_of_order_sign_and_scale():
    truth, _, _, dense, _ = world(100, 8, 16, 3, 0)
    order = torch.randperm(8)
    assert metrics.fifr(truth, dense, truth, dense) < 1e-12
    assert metrics.fifr(truth, dense, -2 * truth[order], -dense[:, order] / 2) < 1e-12
    assert metrics.fifr(truth, dense, truth, 0 * dense) == pytest.approx(1.0)
    assert metrics.fifr(truth, dense, truth[:4], dense[:, :4]) == pytest.approx(0.5)


@settings(max_examples=30, deadline=None)
@given(worlds, st.integers(1, 7))
def test_energy_and_frequency_are_their_formulas_in_any_batches(drawn, batch):
    decoder, values, units, dense, x = drawn
    activity = metrics.UnitActivity(decoder)
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        activity.update(values[part], units[part], x[part])
    expected = energy_by_its_formula(dense, decoder, x)
    torch.testing.assert_close(activity.energy(), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(metrics.explained_energy(values, units, decoder, x), activity.energy())
    torch.testing.assert_close(activity.frequency(), (dense != 0).double().mean(0))
    torch.testing.assert_close(metrics.frequency(values, units, len(decoder)), activity.frequency())


@settings(max_examples=40, deadline=None)
@given(worlds, st.integers(1, 7))
def test_greedy_order_is_the_one_found_by_trying_every_unit(drawn, batch):
    decoder, values, units, dense, x = drawn
    together = metrics.Coactivity(decoder)
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        together.update(values[part], units[part], x[part])
    order = together.greedy_order().tolist()
    assert sorted(order) == list(range(len(decoder)))
    # Equal gains may come out in another order by rounding, so the errors of the prefixes are compared.
    expected = greedy_order_by_trying_every_unit(dense, decoder, x)
    for length in range(len(order) + 1):
        errors = [
            float((x - dense[:, chosen] @ decoder[chosen]).square().sum())
            for chosen in (order[:length], expected[:length])
        ]
        assert errors[0] == pytest.approx(errors[1], rel=1e-9)
    assert metrics.greedy_order(values, units, decoder, x).tolist() == order


def test_greedy_order_puts_a_repeated_unit_behind():
    decoder = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
    values = torch.tensor([[1.0, 0.99, 0.5]]).double()
    x = torch.tensor([[1.0, 0.5]]).double()
    units = torch.tensor([[0, 1, 2]])
    assert metrics.greedy_order(values, units, decoder, x).tolist() == [0, 2, 1]
    assert metrics.explained_energy(values, units, decoder, x).argsort(descending=True).tolist() == [0, 1, 2]


def test_dead_units_keep_their_order_at_the_end_of_units_that_help():
    decoder, x = torch.eye(4).double(), torch.tensor([[0.0, 2.0, 0.0, 1.0]]).double()
    order = metrics.greedy_order(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[3, 1]]), decoder, x)
    assert order.tolist() == [1, 3, 0, 2]


@settings(max_examples=30, deadline=None)
@given(worlds, st.integers(1, 7), st.integers(0, 50))
def test_stitching_is_the_change_of_error_where_the_unit_speaks(drawn, batch, seed):
    decoder, values, units, dense, x = drawn
    residual = x - torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
    stitch = metrics.Stitching(decoder)
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        stitch.update(values[part], units[part], residual[part])
    result = stitch.result()
    for j in range(len(decoder)):
        speaks = dense[:, j] != 0
        e, z = residual[speaks], dense[speaks, j, None]
        change = float((e - z * decoder[j]).square().sum() - e.square().sum())
        assert float(result.change[j]) == pytest.approx(change, abs=1e-8)
    assert result.novel + result.reconstruction + result.unchanged == pytest.approx(1.0)
    assert result.unchanged == pytest.approx(float((dense == 0).all(0).double().mean()))
    once = metrics.stitching(values, units, decoder, residual)
    torch.testing.assert_close(once.change, result.change)


def test_stitching_tells_novel_from_repeated():
    decoder = torch.eye(3).double()
    residual = torch.tensor([[1.0, 0.0, 0.0]] * 5).double()
    result = metrics.stitching(torch.ones(5, 2).double(), torch.tensor([[0, 1]] * 5), decoder, residual)
    assert (result.novel, result.reconstruction, result.unchanged) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert result.change.tolist() == [-5.0, 5.0, 0.0]
    assert result.frequency.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.usefixtures("unchecked_shapes")
def test_codes_and_samples_must_agree():
    with pytest.raises(ValueError, match="2 codes for 3 samples"):
        metrics.explained_energy(
            torch.ones(2, 1), torch.zeros(2, 1).long(), torch.ones(1, 1), torch.ones(3, 1)
        )
    truth, _, _, dense, _ = world(100, 8, 16, 3, 0)
    with pytest.raises(ValueError, match="columns"):
        metrics.fifr(truth, dense, truth, dense[:, :4])
    with pytest.raises(ValueError, match="100 samples"):
        metrics.fifr(truth, dense, truth, dense[:4])
