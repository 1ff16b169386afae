"""The exact matcher that never holds all pairs: equal to the dense one, with a certificate that holds."""

import threading
import time
import tracemalloc
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import Matching, assignment, cosine, match, match_atoms, matching_loops, stability


def gaussian(units: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(units, width, generator=torch.Generator().manual_seed(seed))


def related(units: int, width: int, share: float, seed: int, others: int | None = None):
    """Two dictionaries of which a share of atoms is common up to noise (cosine 0.5 to 0.95) and order."""
    generator = torch.Generator().manual_seed(seed)
    others = others or units
    a = torch.nn.functional.normalize(torch.randn(units, width, generator=generator), dim=1)
    b = torch.nn.functional.normalize(torch.randn(others, width, generator=generator), dim=1)
    common = int(share * min(units, others))
    cosines = 0.5 + 0.45 * torch.rand(common, 1, generator=generator)
    here, there = (torch.randperm(size, generator=generator)[:common] for size in (units, others))
    b[there] = cosines * a[here] + (1 - cosines**2).sqrt() * b[there]
    return a, b


def assert_same_as_dense(a: torch.Tensor, b: torch.Tensor, *, absolute: bool = False) -> Matching:
    found = match_atoms(a, b, absolute=absolute, method="sparse")
    similarity = cosine(a, b, absolute=absolute)
    best = float(match(similarity).similarity.sum())
    assert len(found) == min(len(a), len(b))
    assert found.left.tolist() == sorted(set(found.left.tolist()))
    assert len(set(found.right.tolist())) == len(found)
    torch.testing.assert_close(found.similarity, similarity[found.left, found.right], atol=1e-12, rtol=0)
    assert float(found.similarity.sum()) == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert found.optimal
    assert found.gap <= 1e-9
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(2, 6), st.integers(0, 10_000), st.booleans())
def test_sparse_equals_dense_on_random_dictionaries(ka, kb, d, seed, absolute):
    assert_same_as_dense(gaussian(ka, d, seed), gaussian(kb, d, seed + 1), absolute=absolute)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 3), st.integers(0, 10_000), st.booleans())
def test_sparse_equals_dense_when_ties_abound(ka, kb, d, seed, absolute):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-1, 2, (units, d), generator=generator).float() for units in (ka, kb))
    a[(a == 0).all(1)] = 1.0
    b[(b == 0).all(1)] = 1.0
    assert_same_as_dense(a, b, absolute=absolute)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (gaussian(1, 16, 0).expand(300, 16), gaussian(300, 16, 1)),
        (gaussian(200, 16, 0), gaussian(1, 16, 1).expand(300, 16)),
        (torch.ones(300, 4), torch.ones(300, 4)),
        (gaussian(60, 16, 0).repeat(5, 1), gaussian(60, 16, 0).repeat(5, 1).flip(0)),
        (gaussian(6, 16, 0).repeat(50, 1) + 0.1 * gaussian(300, 16, 1), gaussian(6, 16, 0).repeat(50, 1)),
        (gaussian(400, 2, 0), gaussian(400, 2, 1)),
        (gaussian(400, 8, 0), -gaussian(400, 8, 0)),
        (gaussian(399, 8, 0), gaussian(400, 8, 1)),
        (gaussian(40, 8, 0), gaussian(900, 8, 1)),
        (gaussian(300, 8, 0) * 1e-30, gaussian(300, 8, 1) * 1e30),
        (gaussian(300, 8, 0).bfloat16(), gaussian(300, 8, 1).double()),
    ],
    ids=[
        "alike-rows",
        "alike-columns",
        "all-alike",
        "repeated",
        "clusters",
        "plane",
        "opposite",
        "one-over",
        "few",
        "scaled",
        "dtypes",
    ],
)
def test_sparse_equals_dense_on_hard_dictionaries(a, b):
    assert_same_as_dense(a, b)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("units", "others"), [(1024, 1024), (700, 1300)])
def test_sparse_equals_dense_on_related_dictionaries(units, others, share):
    assert_same_as_dense(*related(units, 64, share, 0, others))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("units", [1024, 2048, 4096])
def test_sparse_equals_dense_at_size(units, share):
    assert_same_as_dense(*related(units, 512, share, 0))


def test_swapping_the_sides_swaps_the_pairs():
    a, b = related(300, 32, 0.5, 0, 500)
    forth, back = (match_atoms(*sides, method="sparse") for sides in ((a, b), (b, a)))
    order = back.right.argsort()
    assert torch.equal(forth.left, back.right[order])
    assert torch.equal(forth.right, back.left[order])


@settings(max_examples=30, deadline=None)
@given(st.integers(40, 200), st.integers(0, 60), st.integers(2, 8), st.integers(0, 1000))
def test_the_certificate_of_an_unfinished_matching_still_holds(units, more, d, seed):
    a, b = gaussian(units, d, seed).double().numpy(), gaussian(units + more, d, seed + 1).double().numpy()
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    problem = matching_loops.make_problem(a, b, 4, absolute=False)
    for start in range(0, units, 16):
        block = np.arange(start, min(start + 16, units))
        matching_loops.place_rows(problem, block, a[block] @ b.T, 1e-12)
    found = assignment._certify(problem, swapped=False)
    best = float(match(torch.from_numpy(a @ b.T)).similarity.sum())
    total = float(found.similarity.sum())
    assert total <= best + 1e-9
    assert best <= total + found.gap * max(1.0, abs(total)) + 1e-9
    assert found.optimal == (found.gap <= 1e-6)


def test_atoms_that_are_all_ties_are_matched_by_the_dense_solver(monkeypatch):
    """In one dimension every cosine is 1 or -1, which the sparse solver may not settle."""
    a, b = gaussian(63, 1, 261), gaussian(77, 1, 262)
    assert not match_atoms(a, b, method="sparse").optimal
    monkeypatch.setattr(assignment, "DENSE_PAIRS", 0)  # as for large dictionaries
    found = match_atoms(a, b)
    assert found.optimal
    assert float(found.similarity.sum()) == 63


def test_a_matching_stopped_short_is_not_called_optimal(monkeypatch):
    a, b = gaussian(600, 2, 0), gaussian(600, 2, 1)
    monkeypatch.setattr(assignment, "_ROUNDS", 1)
    found = match_atoms(a, b, method="sparse")
    assert not found.optimal
    assert found.gap > 1e-6
    assert len(set(found.right.tolist())) == 600


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 600), st.integers(0, 1000))
def test_the_error_of_single_precision_products_is_within_its_bound(d, seed):
    a, b = (gaussian(20, d, seed + i).double().abs().numpy() for i in (0, 1))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    single = assignment._Cosines(a, b, False, np.float32)
    assert np.abs(single(np.arange(20)) - a @ b.T).max() <= single.error


def test_the_matrix_of_all_pairs_is_never_held():
    a, b = related(3000, 16, 0.6, 0)
    match_atoms(a[:50], b[:50], method="sparse")
    tracemalloc.start()
    found = match_atoms(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.optimal
    assert peak < 3000 * 3000 * 4 / 2


def test_large_dictionaries_go_the_sparse_way_by_themselves(monkeypatch):
    a, b = related(1100, 16, 0.6, 0)
    dense = match_atoms(a, b, method="dense")
    monkeypatch.setattr(assignment, "match", None)
    assert stability(a, b) == pytest.approx(float(dense.similarity.mean()), abs=1e-12)


def test_threads_that_need_the_loops_at_the_same_time_load_them_once(monkeypatch):
    loaded = []

    @cache
    def load() -> None:
        time.sleep(0.05)
        loaded.append(threading.current_thread())

    monkeypatch.setattr(assignment, "_compile_loops", load)
    threads = [threading.Thread(target=assignment.prepare_matching, args=(2048, 2048)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 1


def test_progress_rises_to_one_in_every_round():
    calls = []
    match_atoms(*related(600, 8, 0.5, 0), method="sparse", progress=lambda *call: calls.append(call))
    rounds = sorted({number for number, _ in calls})
    assert rounds == list(range(len(rounds)))
    for number in rounds:
        shares = [share for at, share in calls if at == number]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="zero rows"):
        match_atoms(torch.zeros(3, 2), torch.ones(3, 2), method="sparse")
    with pytest.raises(ValueError, match="method='greedy'"):
        match_atoms(torch.ones(3, 2), torch.ones(3, 2), method="greedy")  # type: ignore[arg-type]
