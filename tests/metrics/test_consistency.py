"""Laws of stability, orderedness and their prefix versions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from osae import metrics
from osae.interop import load
from osae.metrics.matching import unit_rows
from tests.oracles import best_total_by_every_matching
from tests.studies.saes import make_sae

shapes = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(2, 5), st.integers(0, 10_000))


def dictionary(units: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(units, width, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=50, deadline=None)
@given(shapes, st.booleans())
def test_stability_is_the_best_mean_over_every_matching(shape, absolute):
    ka, kb, d, seed = shape
    a, b = dictionary(ka, d, seed), dictionary(kb, d, seed + 1)
    best = best_total_by_every_matching(metrics.cosine(a, b, absolute=absolute)) / min(ka, kb)
    assert metrics.stability(a, b, absolute=absolute) == pytest.approx(best, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(shapes)
def test_both_measures_are_symmetric_and_free_of_the_rows_length(shape):
    ka, kb, d, seed = shape
    a, b = dictionary(ka, d, seed), dictionary(kb, d, seed + 1)
    forth, back = metrics.consistency(a, b), metrics.consistency(b, 3.0 * a)
    assert forth.stability == pytest.approx(back.stability, abs=1e-6)
    assert forth.orderedness == pytest.approx(back.orderedness, abs=1e-12)
    assert sorted(zip(forth.matching.left.tolist(), forth.matching.right.tolist(), strict=True)) == sorted(
        zip(back.matching.right.tolist(), back.matching.left.tolist(), strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(0, 1000))
def test_stability_is_unmoved_by_a_permutation_and_orderedness_reads_it(units, seed):
    a = dictionary(units, 16, seed)
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    result = metrics.consistency(a, a[order])
    assert result.stability == pytest.approx(1.0, abs=1e-12)
    assert result.orderedness == pytest.approx(spearmanr(range(units), order.argsort()).statistic)
    formula = 1 - 6 * float((order - torch.arange(units)).square().sum()) / (units * (units**2 - 1))
    assert result.orderedness == pytest.approx(formula)


def test_a_dictionary_agrees_with_itself_and_its_reverse_is_in_reverse_order():
    a = dictionary(30, 8, 0)
    assert metrics.stability(a, a) == pytest.approx(1.0)
    assert metrics.orderedness(a, a) == 1.0
    assert metrics.stability(a, a.flip(0)) == pytest.approx(1.0)
    assert metrics.orderedness(a, a.flip(0)) == pytest.approx(-1.0)


def test_absolute_forgives_a_sign():
    a = dictionary(20, 10, 0)
    assert metrics.stability(a, -a, absolute=True) == pytest.approx(1.0)
    assert metrics.stability(a, -a) < 0.9


def test_a_smaller_dictionary_is_matched_whole_and_ordered_by_rank():
    a = dictionary(40, 16, 0)
    inside = torch.tensor([3, 30, 7, 21])
    result = metrics.consistency(a, a[inside])
    assert result.stability == pytest.approx(1.0)
    assert result.matching.left.tolist() == [3, 7, 21, 30]
    assert result.matching.right.tolist() == [0, 2, 3, 1]
    assert result.orderedness == pytest.approx(spearmanr([0, 1, 2, 3], [0, 2, 3, 1]).statistic)


def test_one_pair_is_in_order():
    assert metrics.orderedness(torch.ones(1, 3), torch.ones(1, 3)) == 1.0


def test_prefixes_of_both_kinds_follow_their_definitions():
    a = dictionary(64, 12, 1)
    b = a[torch.randperm(64, generator=torch.Generator().manual_seed(2))] + 0.3 * dictionary(64, 12, 3)
    full = metrics.consistency(a, b)
    for row in metrics.prefix_consistency(a, b, [1, 5, 16, 64]):
        p = row.length
        assert row.stability == pytest.approx(metrics.stability(a[:p], b[:p]))
        assert row.orderedness == pytest.approx(metrics.orderedness(a[:p], b[:p]))
        found = full.matching
        left, right, similarity = (part.numpy() for part in (found.left, found.right, found.similarity))
        sides = [left < p, right < p]
        assert row.stability_of_full == pytest.approx(np.mean([similarity[side].mean() for side in sides]))
        if p > 1:
            orders = [spearmanr(left[side], right[side]).statistic for side in sides]
            assert row.orderedness_of_full == pytest.approx(np.mean(orders))
    assert row.stability == row.stability_of_full == full.stability
    assert row.orderedness == row.orderedness_of_full == full.orderedness


def test_prefixes_take_a_matching_that_is_there_and_default_to_powers_of_two():
    a, b = dictionary(40, 8, 0), dictionary(50, 8, 1)
    rows = metrics.prefix_consistency(a, b, full=metrics.match_atoms(a, b))
    assert [row.length for row in rows] == [16, 32, 40]
    assert rows == metrics.prefix_consistency(a, b)


def test_prefixes_do_not_depend_on_which_dictionary_comes_first():
    """A quarter of the atoms are alike, and stand first in one dictionary and last in the other."""
    a, b = dictionary(64, 12, 1), dictionary(64, 12, 3)
    b[48:] = a[:16]
    one, other = (metrics.prefix_consistency(*both, [16, 64]) for both in ((a, b), (b, a)))
    for row, same in zip(one, other, strict=True):
        assert row == pytest.approx(same)


def test_a_prefix_without_a_matched_unit_has_no_stability_of_full():
    matching = metrics.Matching(
        torch.tensor([3, 4]), torch.tensor([5, 2]), torch.tensor([0.5, 0.7]), optimal=True, gap=0.0
    )
    assert all(math.isnan(value) for value in metrics.measure_within_prefix(matching, 2))
    assert metrics.measure_within_prefix(matching, 3) == (
        pytest.approx(0.7),
        1.0,
    )


def test_default_prefixes():
    assert metrics.default_prefixes(1) == (1,)
    assert metrics.default_prefixes(16) == (16,)
    assert metrics.default_prefixes(100) == (16, 32, 64, 100)
    assert metrics.default_prefixes(128) == (16, 32, 64, 128)


@pytest.mark.parametrize("length", [0, 11, -3])
def test_a_prefix_outside_the_dictionary_is_refused(length):
    a = dictionary(10, 4, 0)
    with pytest.raises(ValueError, match=f"prefix length {length}"):
        metrics.prefix_consistency(a, a, [length])


def test_chance_level_is_fixed_by_its_seed_and_near_the_known_value():
    level = metrics.chance_level(128, 128, 32, draws=32, seed=3)
    assert level == metrics.chance_level(128, 128, 32, draws=32, seed=3)
    assert level != metrics.chance_level(128, 128, 32, seed=4)
    pairs = [
        metrics.consistency(dictionary(128, 32, 2 * i), dictionary(128, 32, 2 * i + 1))
        for i in range(200, 240)
    ]
    scores = torch.tensor([pair.stability for pair in pairs])
    assert level.stability == pytest.approx(float(scores.mean()), abs=6 * level.stability_std / 32**0.5)
    assert level.stability_std == pytest.approx(float(scores.std()), rel=0.6)
    orders = torch.tensor([pair.orderedness for pair in pairs])
    assert float(orders.std()) == pytest.approx(level.orderedness_std, rel=0.4)
    assert abs(float(orders.mean())) < 4 * level.orderedness_std / 40**0.5


def test_chance_level_of_one_unit_and_of_bad_shapes():
    assert metrics.chance_level(1, 1, 4, draws=1).orderedness == 1.0
    with pytest.raises(ValueError, match="at least 1"):
        metrics.chance_level(0, 4, 4)
    with pytest.raises(ValueError, match="draws=0"):
        metrics.chance_level(4, 4, 4, draws=0)


def test_more_units_leave_more_to_chance_and_absolute_still_more():
    small, large = metrics.chance_level(32, 32, 16), metrics.chance_level(256, 256, 16, draws=4)
    assert small.stability < large.stability
    assert small.stability < metrics.chance_level(32, 32, 16, absolute=True).stability


def test_saes_loaded_files_tensors_and_arrays_measure_the_same(tmp_path):
    atoms = unit_rows(dictionary(12, 8, 0)).float()
    sae, other = make_sae(atoms), dictionary(12, 8, 1)
    sae.save(tmp_path / "sae")
    expected = metrics.consistency(atoms, other)
    for form in (sae, load(tmp_path / "sae"), sae.decoder, atoms.numpy()):
        assert metrics.stability(form, other) == pytest.approx(expected.stability, abs=1e-6)
        assert metrics.orderedness(other, form) == pytest.approx(expected.orderedness)
        whole = metrics.prefix_consistency(form, other)[-1]
        assert whole.stability == pytest.approx(expected.stability, abs=1e-6)


@pytest.mark.parametrize("shared", ["spectrum", "mean"])
def test_the_fitted_chance_level_is_that_of_unrelated_atoms_of_the_same_shape(shared):
    """Atoms that share a mean or prefer some directions are more alike by chance than isotropic ones."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.arange(1, 65.0).rsqrt() if shared == "spectrum" else torch.ones(64)
    mean = torch.zeros(64) if shared == "spectrum" else 0.7 * torch.ones(64)
    a, b = (mean + scales * torch.randn(256, 64, generator=generator) for _ in range(2))
    found = metrics.stability(a, b)
    fitted = metrics.chance_level(256, 256, 64, like=metrics.fit_atoms(a, b), draws=4).stability
    isotropic = metrics.chance_level(256, 256, 64, draws=4).stability
    assert abs(fitted - found) < 0.02
    assert isotropic < found - 0.1
