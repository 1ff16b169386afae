"""Small worlds for the theory: their true atoms and codes in double precision, the strongest atom first.

A world's atoms are Gaussian, as in the paper, or orthonormal, and its codes can be given exact properties,
so that a theorem about them applies to finite samples, and not only in the limit.
"""

import numpy as np
from jaxtyping import Float

from osae.data.worlds import SparseWorld
from osae.experiments.worlds.minimisers import Point


def draw_truth(world: SparseWorld, *, orthonormal: bool = False) -> Point:
    """Return the world's atoms, or as many orthonormal ones, and the codes of its training samples.

    Losses depend only on inner products, so atoms are given by their coordinates in the space they span.
    """
    codes = world.draw("train").code.dense(world.units).double().numpy()
    if orthonormal:
        return sort_by_energy(Point(np.eye(world.units), codes))
    atoms = np.linalg.qr(world.dictionary().double().numpy().T).R.T
    return sort_by_energy(Point(atoms / np.linalg.norm(atoms, axis=1)[:, None], codes))


def energies(codes: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "K"]:
    """Return the energy of each unit, E[z^2]."""
    return np.square(codes).mean(0)


def frequencies(codes: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "K"]:
    """Return the share of the samples in which each unit is active."""
    return (codes != 0).mean(0)


def sort_by_energy(point: Point) -> Point:
    """Return the point with its units in order of decreasing energy."""
    return point.reorder(energies(point.codes).argsort()[::-1])


def decorrelate_pairs(codes: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "2N K"]:
    """Return every sample twice, once with the sign of its first active unit reversed.

    With two active units in each sample, E[z_i z_j] is then exactly zero for any two units.
    """
    reversed_first = codes.copy()
    rows = np.arange(len(codes))
    reversed_first[rows, (codes != 0).argmax(1)] *= -1
    return np.concatenate([codes, reversed_first])


def scale_to_energies(codes: Float[np.ndarray, "N K"], power: float) -> Float[np.ndarray, "N K"]:
    """Return the codes scaled so that the energy of each unit is exactly its frequency to a power.

    With power 1 all units are equally strong when they are active, with 0 all energies are equal, and with
    -1 the order by energy is the reverse of the order by frequency.
    """
    return codes * np.sqrt(frequencies(codes) ** power / energies(codes))
