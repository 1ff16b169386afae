"""The dense matching and the border checks of the cosine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import cosine, match
from tests.oracles import best_total_by_every_matching


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))
def test_matching_is_one_to_one_sorted_and_best(ka, kb, seed):
    similarity = torch.randn(ka, kb, generator=torch.Generator().manual_seed(seed))
    found = match(similarity)
    assert len(found) == min(ka, kb)
    assert found.left.tolist() == sorted(set(found.left.tolist()))
    assert len(set(found.right.tolist())) == len(found)
    assert torch.equal(found.similarity, similarity.double()[found.left, found.right])
    assert float(found.similarity.sum()) == pytest.approx(best_total_by_every_matching(similarity))
    assert found.optimal
    assert found.gap == 0.0


def test_cosine_is_free_of_length_even_of_extreme_ones():
    a = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(cosine(a, a * 1e-200), expected)
    torch.testing.assert_close(cosine(a * 1e200, -a), -expected)
    torch.testing.assert_close(cosine(a, -a, absolute=True), expected)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (torch.ones(3, 4), torch.ones(3, 5), "width 4 and b has width 5"),
        (torch.ones(3), torch.ones(3, 5), r"a has shape \(3,\)"),
        (torch.ones(0, 4), torch.ones(3, 4), r"a has shape \(0, 4\)"),
        (
            torch.ones(3, 4),
            torch.tensor([[1.0] * 4, [0] * 4, [0] * 4]),
            r"b has 2 zero rows \(the first is row 1\)",
        ),
        (torch.tensor([[1.0], [float("nan")]]), torch.ones(3, 1), "a has 1 rows with NaN .* row 1"),
        (torch.tensor([[1.0], [float("inf")]]), torch.ones(3, 1), "a has 1 rows with NaN or infinite"),
    ],
)
def test_rows_without_a_direction_are_refused(a, b, says):
    with pytest.raises(ValueError, match=says):
        cosine(a, b)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_similarity_that_is_not_a_finite_matrix_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        match(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="nonempty"):
        match(torch.ones(0, 3))
    with pytest.raises(ValueError, match="nonempty matrix"):
        match(torch.ones(3))


def test_the_solver_loaded_alone_is_that_of_scipy_and_does_not_disturb_it():
    from scipy.optimize import linear_sum_assignment

    from osae.metrics.matching import _load_solver

    costs = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)).double().numpy()
    for ours, theirs in zip(_load_solver()(costs), linear_sum_assignment(costs), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_the_solver_is_found_where_its_file_is_elsewhere(monkeypatch):
    from scipy.optimize import linear_sum_assignment

    from osae.metrics import matching

    matching._load_solver.cache_clear()
    monkeypatch.setattr(matching.PathFinder, "find_spec", lambda name, folders: None)
    assert matching._load_solver() is linear_sum_assignment
    matching._load_solver.cache_clear()
