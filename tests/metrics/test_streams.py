"""Correlations of activations: dense, streamed, and with constant units."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import (
    StreamRecorder,
    activation_similarity,
    correlate,
    match,
    match_streams,
    stream_orderedness,
    stream_stability,
    streams,
)


def codes(samples: int, units: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and units of a sparse code, some of it padding, and the same code dense."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(samples, units, generator=generator).argsort(1)[:, :k]
    values = torch.rand(samples, k, generator=generator).double() + 0.1
    values[torch.rand(samples, k, generator=generator) < 0.2] = 0
    return values, chosen, torch.zeros(samples, units, dtype=torch.float64).scatter_(1, chosen, values)


def test_similarity_is_numpy_s_correlation():
    za, zb = torch.randn(50, 4).double(), torch.randn(50, 3).double()
    expected = np.corrcoef(za.T, zb.T)[:4, 4:]
    np.testing.assert_allclose(activation_similarity(za, zb), expected, atol=1e-12)


def test_constant_units_correlate_with_nothing():
    z = torch.randn(50, 3).double()
    z[:, 1] = 0.1
    similarity = activation_similarity(z, z)
    assert similarity[1].abs().max() == similarity[:, 1].abs().max() == 0
    assert stream_stability(z, z) == pytest.approx(2 / 3)


def test_streams_of_permuted_units():
    z = torch.randn(100, 12).double()
    assert stream_stability(z, z.flip(1) * 5 + 2) == pytest.approx(1.0)
    assert stream_orderedness(z, z.flip(1)) == pytest.approx(-1.0)
    assert stream_orderedness(z, z) == 1.0


def record(values, units, total, batch=1000):
    recorder = StreamRecorder(total)
    for start in range(0, len(values), batch):
        recorder.update(values[start : start + batch], units[start : start + batch])
    return recorder.stream()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 9), st.integers(1, 10), st.integers(0, 1000))
def test_recording_in_any_batches_equals_the_dense_correlation(samples, units_a, units_b, batch, seed):
    va, ua, za = codes(samples, units_a, min(3, units_a), seed)
    vb, ub, zb = codes(samples, units_b, min(4, units_b), seed + 1)
    a, b = record(va, ua, units_a, batch), record(vb, ub, units_b, batch)
    assert a.samples == samples
    torch.testing.assert_close(correlate(a, b), activation_similarity(za, zb), atol=1e-6, rtol=0)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 30), st.integers(0, 60), st.integers(0, 1000))
def test_shifting_moves_samples_round_and_selecting_leaves_units_out(samples, shift, seed):
    values, units, dense = codes(samples, 7, 3, seed)
    stream = record(values, units, 7)
    rolled = dense.roll(-shift, 0)
    torch.testing.assert_close(
        correlate(stream.shift(shift), stream), activation_similarity(rolled, dense), atol=1e-6, rtol=0
    )
    kept = torch.tensor([True, False, True, True, False, False, True])
    torch.testing.assert_close(
        correlate(stream.select(kept), stream),
        activation_similarity(dense[:, kept], dense),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.parametrize(
    ("units_a", "units_b", "dead"), [(90, 90, 0), (90, 120, 30), (120, 90, 30), (100, 100, 60)]
)
def test_the_sparse_matching_is_the_dense_one(monkeypatch, units_a, units_b, dead):
    """Also with units that never fire, which may go anywhere."""
    monkeypatch.setattr(streams, "DENSE_PAIRS", 0)
    va, ua, _ = codes(400, units_a - dead, 5, 0)
    vb, ub, _ = codes(400, units_b - dead // 2, 5, 1)
    a, b = record(va, ua, units_a), record(vb, ub, units_b)
    monkeypatch.setattr(streams, "FALLBACK_PAIRS", 0)
    found, expected = match_streams(a, b), match(correlate(a, b))
    assert found.optimal
    assert len(found) == min(units_a, units_b)
    assert found.left.tolist() == sorted(set(found.left.tolist()))
    assert len(set(found.right.tolist())) == len(found)
    assert float(found.similarity.sum()) == pytest.approx(float(expected.similarity.sum()), abs=1e-5)
    rough = match_streams(a, b, tolerance=0.05)
    assert float(rough.similarity.sum()) >= 0.94 * float(expected.similarity.sum())


def test_many_units_are_matched_without_the_matrix_of_all_pairs(monkeypatch):
    units, held = 1100, []
    compute = streams.correlate_rows

    def correlate_some(a, by_unit, b, chosen):
        held.append(len(chosen) * b.total)
        return compute(a, by_unit, b, chosen)

    monkeypatch.setattr(streams, "correlate_rows", correlate_some)
    values, places, _ = codes(3000, units, 5, 0)
    found = match_streams(record(values, places, units), record(values, places.flip(1), units))
    assert found.optimal
    assert 0 < max(held) < units * units / 2


def test_constant_units_take_better_places_where_that_helps(monkeypatch):
    """Two units that exclude each other: a constant partner is better than a negative correlation."""
    monkeypatch.setattr(streams, "DENSE_PAIRS", 0)
    fires = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    a = record(fires, torch.tensor([[0], [0], [1], [1]]), 3)
    b = record(fires, torch.tensor([[0], [0], [2], [2]]), 3)
    found = match_streams(a, b)
    assert float(found.similarity.sum()) == pytest.approx(2.0)
    b = record(fires[:, :0], torch.zeros(4, 0, dtype=torch.long), 3)
    assert float(match_streams(a, b).similarity.abs().sum()) == 0


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_stream_refuses_what_it_cannot_use():
    recorder = StreamRecorder(3)
    with pytest.raises(ValueError, match="no samples"):
        recorder.stream()
    ones, zeros = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="from 3 to 3: there are only 3"):
        recorder.update(ones, zeros + 3)
    with pytest.raises(ValueError, match="2 samples of A and 1 of B"):
        match_streams(record(ones, zeros, 3), record(ones[:1], zeros[:1], 3))
    with pytest.raises(ValueError, match="nonempty"):
        activation_similarity(torch.ones(0, 3), torch.ones(0, 3))
