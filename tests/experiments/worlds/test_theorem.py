"""What docs/theory.md proves, step by step on numbers; and the search that it is compared with."""

import itertools
import re

import numpy as np
import pytest

from benchmarks import ROOT
from osae.experiments.worlds.minimisers import (
    Point,
    Problem,
    best_codes,
    descend,
    measure_losses,
    prefix_errors,
)
from osae.experiments.worlds.theorem import (
    POWERS,
    TINY_WORLDS,
    candidate_orders,
    improving_swaps,
    measure_tiny_world,
    search_orders,
)
from osae.experiments.worlds.theory_claims import Atoms
from osae.experiments.worlds.truths import (
    decorrelate_pairs,
    draw_truth,
    energies,
    frequencies,
    scale_to_energies,
)
from osae.prefix import Geometric, Uniform, prefix_weights

BY_NAME = {str(tiny.case): tiny for tiny in TINY_WORLDS}
ORTHONORMAL = [tiny for tiny in TINY_WORLDS if tiny.case.kind is Atoms.ORTHONORMAL]
COHERENT = BY_NAME["Gaussian, d = 4, the rarer the stronger"]


def test_the_mass_of_prefixes_decreases_strictly_if_every_prefix_has_weight():
    for weights in (Uniform(), Geometric(0.5), Geometric(1.2)):
        problem = Problem(np.ones((1, 2)), prefix_weights(weights, 9).numpy(), 1)
        assert (np.diff(problem.mass) < 0).all()
        assert problem.mass[0] == pytest.approx(1)


@pytest.mark.parametrize("tiny", TINY_WORLDS, ids=lambda tiny: str(tiny.case))
def test_tiny_worlds_are_what_they_are_called(tiny):
    atoms, codes = tiny.truth(0)
    assert ((codes != 0).sum(1) == 2).all()
    np.testing.assert_allclose(energies(codes), frequencies(codes) ** tiny.power, atol=1e-12)
    gram = atoms @ atoms.T
    np.testing.assert_allclose(np.diag(gram), 1)
    assert (np.abs(gram - np.eye(5)).max() < 1e-12) == (tiny.case.kind is Atoms.ORTHONORMAL)
    cosines = tiny.world(0).dictionary().double()
    if tiny.case.kind is not Atoms.ORTHONORMAL:  # coordinates in the span: the same inner products
        spectra = (np.linalg.eigvalsh(m) for m in (gram, (cosines @ cosines.T).numpy()))
        np.testing.assert_allclose(*spectra, atol=1e-6)
    for four in itertools.combinations(range(5), 4):  # spark above 2m
        assert np.linalg.svd(atoms[list(four)], compute_uv=False)[-1] > 1e-3


@pytest.mark.parametrize("tiny", ORTHONORMAL, ids=lambda tiny: str(tiny.case))
def test_with_orthonormal_atoms_every_order_has_the_true_codes_and_loses_by_energy_alone(tiny):
    truth = tiny.truth(1)
    search = search_orders(truth)
    np.testing.assert_allclose(search.with_best_codes, search.with_true_codes, atol=1e-12)
    share = energies(truth.codes) / search.problem.energy
    expected = [1 - search.problem.mass @ share[list(order)] for order in search.orders]
    np.testing.assert_allclose(search.with_best_codes, expected, atol=1e-12)
    assert share[list(search.best)] == pytest.approx(sorted(share, reverse=True))


def test_orthonormality_on_pairs_that_are_active_together_is_enough_if_supports_are_known():
    """Atoms 0 and 2 have a cosine of 0.8, and no sample has both."""
    atoms = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.8, 0.0, 0.6]])
    codes = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 2.0, 0.5]])
    problem = Problem(codes @ atoms, prefix_weights(Uniform(), 3).numpy(), 2)
    found = best_codes(problem, atoms, allowed=codes != 0)
    np.testing.assert_allclose(found, codes, atol=1e-12)
    free = best_codes(problem, atoms)  # with supports free, an early unit stands in for a late one
    assert (
        measure_losses(problem, Point(atoms, free)).nested
        < measure_losses(problem, Point(atoms, codes)).nested
    )


def test_with_coherent_atoms_no_order_of_the_truth_is_a_minimiser():
    found = [measure_tiny_world(COHERENT, seed) for seed in range(2)]
    for each in found:
        assert (
            each["nested_loss_codes"] < each["nested_loss_truth"] - 0.01
        )  # below all 120 orders of the truth
        assert each["full_loss_codes"] > 0.01
        assert each["swaps"] == 0
        assert each["best_order_frequency"] == 0


def test_with_fixed_codes_the_order_by_gain_is_no_worse_than_any_but_swaps_may_end_elsewhere():
    """The order by gain cannot be improved by a swap; nor can another order, which is worse."""
    truth = COHERENT.truth(3)
    search, gain = search_orders(truth), candidate_orders(COHERENT, truth)["gain"]
    assert search.is_best_with_true_codes(gain)
    ends = [o for o in search.orders if improving_swaps(search.problem, truth.reorder(np.array(o))) == 0]
    assert gain in ends
    assert len(ends) == 2
    assert sum(search.is_best_with_true_codes(order) for order in ends) == 1


def test_equal_energies_of_orthonormal_atoms_leave_the_order_open():
    found = measure_tiny_world(BY_NAME["orthonormal, equal energies"], 0)
    assert found["tied_orders"] == 120
    assert "orderedness_frequency" not in found
    assert "best_order_energy" not in found


def test_orders_are_by_what_their_names_say():
    tiny = BY_NAME["orthonormal, the rarer the stronger"]
    truth = tiny.truth(0)
    orders = candidate_orders(tiny, truth)
    assert orders["frequency"] == orders["energy"][::-1]
    assert orders["gain"] == orders["energy"]
    assert sorted(frequencies(truth.codes), reverse=True) == list(
        frequencies(truth.codes)[[*orders["frequency"]]]
    )
    assert set(POWERS.values()) == {1.0, 0.0, -1.0}


def test_the_checks_that_the_page_names_exist():
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "theory.md").read_text(encoding="utf-8"))
    there = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "experiments").rglob("*.py")
    )
    assert len(named) >= 10
    assert not [name for name in named if f"def {name}(" not in there]


def uncorrelated(seed, samples=60):
    world = COHERENT.world(seed)
    truth = draw_truth(world, orthonormal=True)
    codes = scale_to_energies(decorrelate_pairs(truth.codes[:samples]), -1.0)
    return Point(truth.atoms, codes).reorder(energies(codes).argsort()[::-1])


def test_no_prefix_explains_more_than_the_leading_principal_directions():
    """The lower bound of theorem 1, and the truth that reaches it at every prefix at once."""
    rng = np.random.default_rng(0)
    truth = uncorrelated(0)
    problem = Problem(truth.codes @ truth.atoms, prefix_weights(Uniform(), 5).numpy(), 2, signed=True)
    moments = truth.codes.T @ truth.codes / len(truth.codes)
    assert np.abs(moments - np.diag(np.diag(moments))).max() < 1e-15
    spectrum = np.linalg.eigvalsh(problem.x.T @ problem.x / len(problem.x))[::-1] / problem.energy
    bound = 1 - spectrum.cumsum()
    np.testing.assert_allclose(prefix_errors(problem, truth), bound, atol=1e-12)
    for _ in range(5):
        start = rng.normal(size=truth.atoms.shape)
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        *_, found = descend(problem, Point(start, best_codes(problem, start)), rounds=20)
        assert (prefix_errors(problem, found) >= bound - 1e-12).all()
