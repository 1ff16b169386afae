"""Coherence and what follows from it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import coherence, identifiability, restricted_isometry, spark_bound, unique_sparsity


def dictionary(units: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(units, width, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(1, 6), st.integers(0, 1000))
def test_coherence_is_the_largest_cosine_and_unique_sparsity_its_definition(units, width, seed):
    a = dictionary(units, width, seed)
    b = a / a.norm(dim=1, keepdim=True)
    mu = max(abs(float(b[i] @ b[j])) for i, j in itertools.combinations(range(units), 2))
    assert coherence(a) == pytest.approx(min(mu, 1.0), abs=1e-12)
    m = unique_sparsity(a)
    assert m == 0 or m == units or coherence(a) < 1 / (2 * m - 1)
    assert m == units or not coherence(a) < 1 / (2 * (m + 1) - 1)


def test_orthogonal_atoms_and_repeated_atoms():
    assert coherence(torch.eye(5)) == 0.0
    assert unique_sparsity(torch.eye(5)) == 5
    assert spark_bound(torch.eye(5)) == 6.0
    assert restricted_isometry(torch.eye(5), 3) == pytest.approx(0.0, abs=1e-12)
    twice = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    assert coherence(twice) == 1.0
    assert unique_sparsity(twice) == 0
    assert spark_bound(twice) == 2.0
    assert restricted_isometry(twice, 2) == pytest.approx(1.0)
    assert coherence(torch.ones(1, 3)) == 0.0


def test_coherence_holds_across_blocks_of_rows():
    a = dictionary(5000, 3, 0)
    a[4999] = a[0]
    assert coherence(a) == pytest.approx(1.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.integers(1, 3), st.integers(0, 100))
def test_sampled_isometry_lies_below_the_constant_and_below_its_bound_by_coherence(units, width, m, seed):
    a, m = dictionary(units, width, seed), min(m, units)
    sampled = restricted_isometry(a, m, samples=200)
    assert sampled <= (m - 1) * coherence(a) + 1e-9
    assert sampled >= restricted_isometry(a, m, samples=20) - 1e-12
    b = a / a.norm(dim=1, keepdim=True)
    every = [
        float((torch.linalg.eigvalsh(b[list(s)] @ b[list(s)].T) - 1).abs().max())
        for s in itertools.combinations(range(units), m)
    ]
    assert sampled == pytest.approx(max(every), abs=1e-9)  # at most 200 sets: every one was seen
    assert restricted_isometry(a, m, samples=1) <= max(every) + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(2, 6), st.integers(1, 3), st.integers(0, 100))
def test_identifiability_is_what_each_of_its_parts_says(units, width, m, seed):
    a, m = dictionary(units, width, seed), min(m, units)
    found = identifiability(a, m)
    assert found.coherence == coherence(a)
    assert (found.coherence < found.coherence_limit) == (unique_sparsity(a) >= m)
    assert found.spark_bound == spark_bound(a)
    assert found.general_spark == min(units, width) + 1
    assert found.isometry == restricted_isometry(a, m)
    assert found.isometry_double == restricted_isometry(a, min(2 * m, units))
    if found.isometry_double < 1 - 1e-9:  # dependent atoms have 1, up to rounding
        assert found.general_spark > min(2 * m, units)


def test_bad_orders_are_refused():
    with pytest.raises(ValueError, match="m=4: give 1 to 3"):
        restricted_isometry(torch.eye(3), 4)
    with pytest.raises(ValueError, match="samples=0"):
        restricted_isometry(torch.eye(3), 2, samples=0)
    with pytest.raises(ValueError, match="zero rows"):
        coherence(torch.zeros(2, 2))
