"""Exact steps are exact: losses and gradients by the definition, codes by nonnegative least squares."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from osae.experiments.worlds.minimisers import (
    Point,
    Problem,
    atom_gradient,
    best_atoms,
    best_codes,
    code_gradient,
    descend,
    measure_losses,
    prefix_errors,
)
from osae.experiments.worlds.theorem import improving_swaps
from osae.prefix import Full, Geometric, Uniform, all_prefix_loss_reference, prefix_weights

seeds = st.integers(0, 10_000)


def unit_rows(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make(seed, *, samples=12, units=5, width=4, active=2, weights=None, signed=False):
    """A world with atoms in general position: the problem, and its truth."""
    rng = np.random.default_rng(seed)
    atoms = unit_rows(rng.normal(size=(units, width)))
    codes = np.zeros((samples, units))
    for row in codes:
        drawn = rng.normal(size=active)
        row[rng.permutation(units)[:active]] = drawn if signed else np.abs(drawn)
    weights = prefix_weights(weights or Geometric(0.7), units).numpy()
    return Problem(codes @ atoms, weights, active, signed), Point(atoms, codes)


def elsewhere(seed, problem, truth):
    """Another point than the truth."""
    rng = np.random.default_rng(seed + 1)
    atoms = unit_rows(truth.atoms + 0.5 * rng.normal(size=truth.atoms.shape))
    return Point(atoms, truth.codes * rng.uniform(0.5, 1.5, size=truth.codes.shape))


def by_definition(problem, atoms, codes, weights):
    units = torch.arange(atoms.shape[0]).expand(len(codes), -1)
    return all_prefix_loss_reference(torch.from_numpy(problem.x), codes, units, atoms, weights)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_losses_are_those_of_the_definition(seed):
    problem, truth = make(seed)
    point = elsewhere(seed, problem, truth)
    tensors = torch.from_numpy(point.atoms), torch.from_numpy(point.codes)
    found = measure_losses(problem, point)
    for loss, weights in ((found.nested, problem.weights), (found.full, prefix_weights(Full(), 5).numpy())):
        expected = by_definition(problem, *tensors, torch.from_numpy(weights.copy())).mean()
        assert loss * problem.energy == pytest.approx(float(expected))
    assert measure_losses(problem, truth).full == pytest.approx(0, abs=1e-20)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_gradients_are_those_of_the_definition(seed):
    problem, truth = make(seed)
    point = elsewhere(seed, problem, truth)
    atoms = torch.from_numpy(point.atoms.copy()).requires_grad_()
    codes = torch.from_numpy(point.codes.copy()).requires_grad_()
    loss = by_definition(problem, atoms, codes, torch.from_numpy(problem.weights.copy()))
    by_codes, by_atoms = (g.numpy() for g in torch.autograd.grad(loss.sum(), (codes, atoms)))
    np.testing.assert_allclose(
        code_gradient(problem, point) * problem.energy, np.where(point.codes != 0, by_codes, 0), atol=1e-10
    )
    by_atoms = by_atoms / len(point.codes)
    along = by_atoms - (by_atoms * point.atoms).sum(1, keepdims=True) * point.atoms
    np.testing.assert_allclose(atom_gradient(problem, point) * problem.energy, along, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(2, 4))
def test_gradients_at_the_truth_come_from_pairs_of_atoms_that_are_active_together(seed, active):
    """The two formulas that refute the lemma, step by step."""
    problem, truth = make(seed, active=active)
    mass, (atoms, codes) = problem.mass, truth
    by_codes, by_atoms = np.zeros_like(codes), np.zeros_like(atoms)
    for j, i in itertools.combinations(range(len(atoms)), 2):
        lost = -2 * (mass[j] - mass[i])  # the prefixes that hold j and not i
        by_codes[:, j] += lost * codes[:, i] * (atoms[i] @ atoms[j])
        by_atoms[j] += (
            lost * (codes[:, i] * codes[:, j]).mean() * (atoms[i] - (atoms[i] @ atoms[j]) * atoms[j])
        )
    by_codes[codes == 0] = 0
    np.testing.assert_allclose(code_gradient(problem, truth) * problem.energy, by_codes, atol=1e-10)
    np.testing.assert_allclose(atom_gradient(problem, truth) * problem.energy, by_atoms, atol=1e-10)


def nonnegative_least_squares(problem, atoms, x, units):
    """The best nonnegative code of one sample on given units: the prefixes' errors are one long residual."""
    scales = np.sqrt(problem.weights)
    places = np.arange(len(atoms))
    blocks = [scale * (places <= last)[units, None] * atoms[units] for last, scale in enumerate(scales)]
    code = np.zeros(len(atoms))
    code[units], residual = nnls(np.concatenate(blocks, axis=1).T, np.concatenate([s * x for s in scales]))
    return code, residual**2


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(1, 3))
def test_best_codes_are_those_of_nonnegative_least_squares_on_the_best_units(seed, active):
    problem, truth = make(seed, active=active)
    atoms = elsewhere(seed, problem, truth).atoms
    free = best_codes(problem, atoms)
    on_support = best_codes(problem, atoms, allowed=truth.codes != 0)
    assert (free >= 0).all()
    assert ((free != 0).sum(1) <= active).all()
    for x, code, fixed, true in zip(problem.x, free, on_support, truth.codes, strict=True):
        expected, _ = nonnegative_least_squares(problem, atoms, x, np.flatnonzero(true))
        np.testing.assert_allclose(fixed, expected, atol=1e-8)
        sets = map(list, itertools.combinations(range(len(atoms)), active))
        expected, _ = min((nonnegative_least_squares(problem, atoms, x, s) for s in sets), key=lambda s: s[1])
        np.testing.assert_allclose(code, expected, atol=1e-8)


def test_signed_codes_are_those_of_least_squares():
    problem, truth = make(3, active=1, weights=Uniform(), signed=True)
    atoms = elsewhere(3, problem, truth).atoms
    along = problem.x @ atoms.T
    best = (problem.mass * along**2).argmax(1)
    expected = np.zeros_like(along)
    expected[np.arange(len(best)), best] = along[np.arange(len(best)), best]
    np.testing.assert_allclose(best_codes(problem, atoms), expected, atol=1e-12)
    assert (expected < 0).any()
    assert (best_codes(replace(problem, signed=False), atoms) >= 0).all()


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_no_other_last_atom_is_better_and_each_round_lowers_the_loss(seed):
    problem, truth = make(seed)
    point = elsewhere(seed, problem, truth)
    atoms = best_atoms(problem, point)
    least = measure_losses(problem, Point(atoms, point.codes)).nested
    for other in unit_rows(np.random.default_rng(seed).normal(size=(20, atoms.shape[1]))):
        changed = np.concatenate([atoms[:-1], other[None]])  # the last atom is replaced last: it is the best
        assert measure_losses(problem, Point(changed, point.codes)).nested >= least - 1e-12
    losses = [measure_losses(problem, each).nested for each in descend(problem, point, rounds=20)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(losses))
    assert losses[-1] < losses[0]


def test_a_unit_that_is_never_active_keeps_its_atom():
    problem, truth = make(0)
    codes = truth.codes.copy()
    codes[:, 2] = 0
    np.testing.assert_array_equal(best_atoms(problem, Point(truth.atoms, codes))[2], truth.atoms[2])


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(0, 3))
def test_a_swap_of_neighbours_changes_the_loss_by_p_times_the_difference_of_their_gains(seed, place):
    """The step of the exchange argument, for any atoms and codes."""
    problem, truth = make(seed)
    point = elsewhere(seed, problem, truth)
    order = np.arange(5)
    order[[place, place + 1]] = place + 1, place
    swapped = point.reorder(order)
    before = np.concatenate([[1.0], prefix_errors(problem, point)])[place]
    gain, other = (before - prefix_errors(problem, each)[place] for each in (point, swapped))
    change = measure_losses(problem, swapped).nested - measure_losses(problem, point).nested
    assert change == pytest.approx(problem.weights[place] * (gain - other), abs=1e-12)
    assert (improving_swaps(problem, point) == 0) <= (other <= gain + 1e-9)
