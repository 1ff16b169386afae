"""Minimise the nested loss exactly, one block of variables at a time, on worlds with known atoms and codes.

Shapes: N samples, d width, K atoms, of which at most m are active in a sample.

With p(l) the weight of prefix l and S(j) = sum_{l>=j} p(l) the mass of the prefixes that contain position j,
the nested loss of a sample is quadratic in its code z:

    L(x) = sum_l p(l) |x - sum_{j<=l} z_j d_j|^2 = |x|^2 - 2 sum_j c_j z_j + sum_ij H_ij z_i z_j ,

    c_j = S(j) d_j.x ,   H_ij = S(max(i,j)) d_i.d_j .

On a given set of units the best code solves a linear system. The best nonnegative code of at most m units is
therefore the best of those sets whose solution is nonnegative, and trying every set finds it exactly. With
all else fixed, the best unit-norm atom is a normalised vector. Losses are shares of the data's mean |x|^2.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

TOLERANCE = 1e-12  # iteration ends after a round that lowers the loss by less


class Point(NamedTuple):
    """An ordered dictionary, and the samples' codes."""

    atoms: Float[np.ndarray, "K d"]
    codes: Float[np.ndarray, "N K"]

    def reorder(self, order: np.ndarray) -> "Point":
        """Return the same atoms and codes with the units in another order."""
        return Point(self.atoms[order], self.codes[:, order])


class Losses(NamedTuple):
    """The nested loss, and the loss of the whole dictionary."""

    nested: float
    full: float


@dataclass(frozen=True)
class Problem:
    """Samples to reconstruct with at most `active` units each, and the weight of each prefix."""

    x: Float[np.ndarray, "N d"]
    weights: Float[np.ndarray, "K"]
    active: int
    signed: bool = False  # whether codes may be negative

    @cached_property
    def mass(self) -> Float[np.ndarray, "K"]:
        """S(j), the mass of the prefixes that contain position j."""
        return self.weights[::-1].cumsum()[::-1]

    @cached_property
    def shared_mass(self) -> Float[np.ndarray, "K K"]:
        """S(max(i,j)), the mass of the prefixes that contain two positions."""
        places = np.arange(len(self.weights))
        return self.mass[np.maximum.outer(places, places)]

    @cached_property
    def energy(self) -> float:
        """The mean squared norm of the samples."""
        return float(np.square(self.x).sum(1).mean())


def prefix_errors(problem: Problem, point: Point) -> Float[np.ndarray, "K"]:
    """Return the error of every prefix, from its definition."""
    steps = point.codes[:, :, None] * point.atoms
    residuals = problem.x[:, None] - steps.cumsum(1)
    return np.square(residuals).sum(-1).mean(0) / problem.energy


def measure_losses(problem: Problem, point: Point) -> Losses:
    """Return the nested loss and the full loss at a point."""
    errors = prefix_errors(problem, point)
    return Losses(float(problem.weights @ errors), float(errors[-1]))


def code_gradient(problem: Problem, point: Point) -> Float[np.ndarray, "N K"]:
    """Return the gradient of each sample's loss with respect to its code; zero for inactive units."""
    products = problem.shared_mass * (point.atoms @ point.atoms.T)
    gradient = 2 * (point.codes @ products - problem.mass * (problem.x @ point.atoms.T))
    return np.where(point.codes != 0, gradient, 0.0) / problem.energy


def atom_gradient(problem: Problem, point: Point) -> Float[np.ndarray, "K d"]:
    """Return the gradient of the loss with respect to the atoms, tangent to the unit sphere."""
    along_data, between = _moments(problem, point.codes)
    gradient = 2 * (between @ point.atoms - along_data)
    outward = (gradient * point.atoms).sum(1, keepdims=True) * point.atoms
    return (gradient - outward) / problem.energy


def best_codes(
    problem: Problem, atoms: Float[np.ndarray, "K d"], allowed: Bool[np.ndarray, "N K"] | None = None
) -> Float[np.ndarray, "N K"]:
    """Return the codes of least loss, of at most m units; `allowed` are the units each sample may use."""
    products = problem.shared_mass * (atoms @ atoms.T)
    along = problem.mass * (problem.x @ atoms.T)
    codes, least = np.zeros_like(along), np.zeros(len(along))
    for sets in _sets_of_units(len(atoms), problem.active):
        inverses = np.linalg.inv(products[sets[:, :, None], sets[:, None, :]])
        solved = np.einsum("nct,cts->ncs", along[:, sets], inverses)
        change = -(along[:, sets] * solved).sum(-1)
        if not problem.signed:
            change[(solved < 0).any(-1)] = 0.0
        if allowed is not None:
            change[~allowed[:, sets].all(-1)] = 0.0
        chosen = change.argmin(1)
        rows = np.flatnonzero(change[np.arange(len(change)), chosen] < least)
        codes[rows] = 0.0
        codes[rows[:, None], sets[chosen[rows]]] = solved[rows, chosen[rows]]
        least[rows] = change[rows, chosen[rows]]
    return codes


def best_atoms(problem: Problem, point: Point) -> Float[np.ndarray, "K d"]:
    """Return the atoms after replacing each in turn with the unit-norm atom of least loss."""
    along_data, between = _moments(problem, point.codes)
    atoms = point.atoms.copy()
    for j, own in enumerate(between):
        direction = along_data[j] - own @ atoms + own[j] * atoms[j]
        if (length := np.linalg.norm(direction)) > 0:  # a unit that is never active stays where it is
            atoms[j] = direction / length
    return atoms


def descend(problem: Problem, point: Point, rounds: int) -> Iterator[Point]:
    """Yield the point, and then a point of lower loss per round, until it converges.

    A round replaces each atom in turn, and then all codes, with the best ones.
    """
    yield point
    before = measure_losses(problem, point).nested
    for _ in range(rounds):
        atoms = best_atoms(problem, point)
        point = Point(atoms, best_codes(problem, atoms))
        yield point
        after = measure_losses(problem, point).nested
        if before - after < TOLERANCE:
            return
        before = after


def _moments(problem: Problem, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return S(j) E[z_j x] and S(max(i,j)) E[z_i z_j], the only quantities that the best atoms depend on."""
    along_data = problem.mass[:, None] * (codes.T @ problem.x) / len(codes)
    return along_data, problem.shared_mass * (codes.T @ codes) / len(codes)


def _sets_of_units(units: int, most: int) -> Iterator[np.ndarray]:
    """Yield all sets of one unit, then all sets of two, and so on, one set per row."""
    for size in range(1, most + 1):
        yield np.array(list(itertools.combinations(range(units), size)))
