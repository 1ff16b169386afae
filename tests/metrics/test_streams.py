"""Correlations of activations: dense, streamed, and with constant units."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import StreamCorrelation, activation_similarity, stream_orderedness, stream_stability


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


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 9), st.integers(1, 10), st.integers(0, 1000))
def test_streaming_in_any_batches_equals_the_dense_correlation(samples, units_a, units_b, batch, seed):
    va, ua, za = codes(samples, units_a, min(3, units_a), seed)
    vb, ub, zb = codes(samples, units_b, min(4, units_b), seed + 1)
    stream = StreamCorrelation(units_a, units_b)
    for start in range(0, samples, batch):
        part = slice(start, start + batch)
        stream.update(va[part], ua[part], vb[part], ub[part])
    assert stream.samples == samples
    torch.testing.assert_close(stream.similarity(), activation_similarity(za, zb), atol=1e-9, rtol=0)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_stream_refuses_what_it_cannot_use():
    stream = StreamCorrelation(3, 3)
    with pytest.raises(ValueError, match="no samples"):
        stream.similarity()
    ones, zeros = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="from 3 to 3: there are 3"):
        stream.update(ones, zeros, ones, zeros + 3)
    with pytest.raises(ValueError, match="2 samples of A and 1 of B"):
        stream.update(ones, zeros, ones[:1], zeros[:1])
    with pytest.raises(ValueError, match="nonempty"):
        activation_similarity(torch.ones(0, 3), torch.ones(0, 3))
