"""Which order of the true atoms minimises the nested loss? Every order of a few atoms is tried."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from osae import metrics
from osae.data.worlds import SparseWorld
from osae.experiments.worlds.minimisers import Point, Problem, best_codes, measure_losses, prefix_errors
from osae.experiments.worlds.theory_claims import Atoms, Case, Strengths
from osae.experiments.worlds.truths import draw_truth, energies, frequencies, scale_to_energies
from osae.prefix import Uniform, prefix_weights

UNITS, ACTIVE, SAMPLES = 5, 2, 400
SAME = 1e-9  # losses that differ by less, as a share of the data's energy, count as equal


@dataclass(frozen=True)
class TinyWorld:
    """A world of a few atoms; the energy of each is its frequency to the power `power`."""

    case: Case
    width: int
    power: float

    def world(self, seed: int) -> SparseWorld:
        """Return the world that atoms and supports are drawn from."""
        return SparseWorld(self.width, UNITS, ACTIVE, zipf=1.0, samples=SAMPLES, seed=seed)

    def truth(self, seed: int) -> Point:
        """Return the true atoms and codes."""
        atoms, codes = draw_truth(self.world(seed), orthonormal=self.case.kind is Atoms.ORTHONORMAL)
        return Point(atoms, scale_to_energies(codes, self.power))


POWERS = {Strengths.EQUALLY_STRONG: 1.0, Strengths.RARER_STRONGER: -1.0, Strengths.EQUAL_ENERGIES: 0.0}
# a spark of 5 or 6, above 2m
WIDTHS = {Atoms.ORTHONORMAL: UNITS, Atoms.NEARLY_ORTHOGONAL: 80, Atoms.COHERENT: 4}
TINY_WORLDS = tuple(
    TinyWorld(Case(atoms, strengths), width, power)
    for atoms, width in WIDTHS.items()
    for strengths, power in POWERS.items()
)


@dataclass(frozen=True)
class Search:
    """Every order of the true atoms: its nested loss with the true codes, and with its own best codes."""

    problem: Problem
    orders: list[tuple[int, ...]]
    with_true_codes: np.ndarray
    with_best_codes: np.ndarray
    minimiser: Point

    @property
    def excess(self) -> np.ndarray:
        """How much the loss of each order, with its best codes, exceeds the least."""
        return self.with_best_codes - self.with_best_codes.min()

    @property
    def best(self) -> tuple[int, ...]:
        """The order of least loss."""
        return self.orders[int(self.with_best_codes.argmin())]

    def is_best(self, order: tuple[int, ...]) -> bool:
        """Return whether no order has a lower loss than this one."""
        return bool(self.excess[self.orders.index(order)] < SAME)

    def is_best_with_true_codes(self, order: tuple[int, ...]) -> bool:
        """Return whether, with the true codes, no order has a lower loss than this one."""
        return bool(self.with_true_codes[self.orders.index(order)] - self.with_true_codes.min() < SAME)


def search_orders(truth: Point) -> Search:
    """Return the losses of every order of the true atoms, where a code may use any units; p is uniform."""
    weights = prefix_weights(Uniform(), len(truth.atoms)).numpy()
    problem = Problem(truth.codes @ truth.atoms, weights, ACTIVE)
    orders = list(itertools.permutations(range(len(truth.atoms))))
    true = [truth.reorder(np.array(order)) for order in orders]
    best = [Point(point.atoms, best_codes(problem, point.atoms)) for point in true]
    with_true, with_best = (
        np.array([measure_losses(problem, point).nested for point in points]) for points in (true, best)
    )
    return Search(problem, orders, with_true, with_best, best[int(with_best.argmin())])


def improving_swaps(problem: Problem, point: Point) -> int:
    """Return how many swaps of two neighbouring units, with their codes, would lower the nested loss."""
    errors, lower = prefix_errors(problem, point), 0
    for place in range(len(point.atoms) - 1):
        order = np.arange(len(point.atoms))
        order[[place, place + 1]] = order[[place + 1, place]]
        lower += prefix_errors(problem, point.reorder(order))[place] < errors[place] - SAME
    return int(lower)


def measure_tiny_world(tiny: TinyWorld, seed: int) -> dict[str, float]:
    """Return which orders minimise the nested loss of a tiny world, and how the losses compare."""
    truth = tiny.truth(seed)
    search = search_orders(truth)
    least = measure_losses(search.problem, search.minimiser)
    tied = int((search.excess < SAME).sum())
    found = {
        "nested_loss_truth": float(search.with_true_codes.min()),
        "nested_loss_codes": least.nested,
        "full_loss_codes": least.full,
        "tied_orders": float(tied),
        "swaps": float(improving_swaps(search.problem, search.minimiser)),
    }
    for name, order in candidate_orders(tiny, truth).items():
        found[f"best_order_{name}"] = float(search.is_best(order))
        found[f"best_fixed_{name}"] = float(search.is_best_with_true_codes(order))
        if tied == 1:
            places = [torch.tensor(one).argsort() for one in (order, search.best)]
            found[f"orderedness_{name}"] = metrics.rank_correlation(*places)
    return found


def candidate_orders(tiny: TinyWorld, truth: Point) -> dict[str, tuple[int, ...]]:
    """Return the orders by frequency, by energy and by gain, the latter with the true codes.

    With equal energies there is no order by energy, and the last two units have the same gain.
    """
    orders = {"frequency": frequencies(truth.codes).argsort()[::-1]}
    if tiny.power != 0:
        units = torch.arange(len(truth.atoms)).expand(len(truth.codes), -1)
        atoms, codes = torch.from_numpy(truth.atoms.copy()), torch.from_numpy(truth.codes.copy())
        orders["energy"] = energies(truth.codes).argsort()[::-1]
        orders["gain"] = metrics.greedy_order(codes, units, atoms, codes @ atoms).numpy()
    return {name: tuple(map(int, order)) for name, order in orders.items()}
