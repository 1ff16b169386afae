"""Trees of atoms: the parent of each atom, which siblings exclude each other, and how often each atom fires.

Shapes: K atoms. An atom fires if its parent does and its own uniform random number lies in an interval, whose
length is the atom's probability given the parent. Siblings that exclude each other share one number and have
disjoint intervals.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from osae.seeds import generator

LARGEST_SHARE = 0.8  # largest share of a parent's samples in which a child, or any exclusive sibling, fires


class Trees(NamedTuple):
    """Atoms in descending order of their rates, so that every parent comes before its children.

    `parents` is -1 for an atom without a parent, and `depths` is the number of its ancestors. An atom fires
    if its parent does and the random number of atom `leads` is at least `low` and below `high`. `exclusive`
    is whether its siblings never fire together with it.
    """

    parents: Int[np.ndarray, "K"]
    depths: Int[np.ndarray, "K"]
    leads: Int[np.ndarray, "K"]
    low: Float[np.ndarray, "K"]
    high: Float[np.ndarray, "K"]
    rates: Float[np.ndarray, "K"]
    exclusive: Bool[np.ndarray, "K"]


@lru_cache(maxsize=16)
def grow_trees(
    units: int,
    active: float,
    zipf: float,
    *,
    roots: int,
    branching: int,
    depth: int,
    exclusive: float,
    seed: int,
) -> Trees:
    """Return the trees of a world; atoms that do not fit into a tree have no parent and no children.

    Atoms are assigned level by level, and their target rates fall as j^-zipf in that order. A rate is lowered
    if the parent does not fire often enough. All rates are scaled so that `active` atoms fire per sample on
    average. Raise `ValueError` if there is no such scale.
    """
    from scipy.optimize import brentq

    parents, depths = _link(units, roots, branching, depth)
    excluding = _choose_parents(parents, exclusive, seed)
    wanted = np.arange(1, units + 1) ** -zipf

    def total(scale: float) -> float:
        return float(_limit_rates(scale * wanted, parents, depths, excluding)[0].sum()) - active

    most = 2 / wanted[-1]
    if total(most) < 0:
        raise ValueError(
            f"active={active:g} of {units} atoms in these trees: ask for at most {total(most) + active:.4g}."
        )
    scale = float(np.asarray(brentq(total, 1e-12, most)))
    rates, shares = _limit_rates(scale * wanted, parents, depths, excluding)
    return _sort(_lay_out(parents, depths, excluding, rates, shares))


def _link(units: int, roots: int, branching: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parent and the depth of every atom, assigned level by level."""
    parents, depths = np.full(units, -1), np.zeros(units, dtype=int)
    level, used = np.arange(min(roots, units)), min(roots, units)
    for below in range(1, depth + 1):
        children = np.repeat(level, branching)[: units - used]
        level = np.arange(used, used + len(children))
        parents[level], depths[level] = children, below
        used += len(children)
    return parents, depths


def _choose_parents(parents: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return whether each atom's children exclude each other: a share of the atoms with two or more."""
    import torch

    chosen = np.zeros(len(parents), dtype=bool)
    several = np.flatnonzero(np.bincount(parents[parents >= 0], minlength=len(parents)) > 1)
    order = torch.randperm(len(several), generator=generator(seed, "exclusive")).numpy()
    chosen[several[order[: round(share * len(several))]]] = True
    return chosen


def _limit_rates(
    wanted: np.ndarray, parents: np.ndarray, depths: np.ndarray, excluding: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rate of every atom, at most its target, and its probability given its parent."""
    rates, shares = np.minimum(wanted, 1.0), np.minimum(wanted, 1.0)
    for depth in range(1, depths.max() + 1):
        level = np.flatnonzero(depths == depth)
        above = parents[level]
        share = wanted[level] / rates[above]
        together = np.bincount(above, weights=share)[above]
        limit = np.where(excluding[above], together, share)
        shares[level] = share * np.minimum(1.0, LARGEST_SHARE / limit)
        rates[level] = rates[above] * shares[level]
    return rates, shares


def _lay_out(
    parents: np.ndarray, depths: np.ndarray, excluding: np.ndarray, rates: np.ndarray, shares: np.ndarray
) -> Trees:
    """Return the trees with the interval of every atom."""
    leads, low, exclusive = (
        np.arange(len(parents)),
        np.zeros(len(parents)),
        np.zeros(len(parents), dtype=bool),
    )
    for parent in np.flatnonzero(excluding):
        children = np.flatnonzero(parents == parent)
        leads[children], exclusive[children] = children[0], True
        low[children] = np.cumsum(shares[children]) - shares[children]
    return Trees(parents, depths, leads, low, low + shares, rates, exclusive)


def _sort(trees: Trees) -> Trees:
    """Return the trees with the atoms in descending order of their rates; in case of ties, parents first."""
    order = np.lexsort((trees.depths, -trees.rates))
    place = np.argsort(order)
    parents = np.where(trees.parents >= 0, place[trees.parents], -1)
    moved = trees._replace(parents=parents, leads=place[trees.leads])
    return Trees(*(field[order] for field in moved))
