"""The best one-to-one matching of two sets of units, and the cosine similarity it is usually based on.

Shapes: Ka, Kb units on the left and on the right, d width, n = min(Ka, Kb) matched pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor


@dataclass(frozen=True, eq=False)
class Matching:
    """Pairs (left[i], right[i]) with their similarity, sorted by the left unit.

    `gap` bounds how far the best total similarity can be above this total, relative to the larger of this
    total and 1; `optimal` means that the bound is at most 1e-6. scipy's dense solver is exact: gap 0.
    """

    left: Int[Tensor, "n"]
    right: Int[Tensor, "n"]
    similarity: Float[Tensor, "n"]
    optimal: bool
    gap: float

    def __len__(self) -> int:
        return len(self.left)

    def swap(self) -> "Matching":
        """Return the same pairs with left and right exchanged."""
        order = self.right.argsort()
        parts = self.right[order], self.left[order], self.similarity[order]
        return Matching(*parts, optimal=self.optimal, gap=self.gap)


def match(similarity: Float[Array, "Ka Kb"]) -> Matching:
    """Return the matching with the greatest total similarity, by scipy's exact dense solver.

    Every unit of the smaller side is matched. For decoders, `match_atoms` does the same without
    holding the whole matrix.
    """
    similarity = as_tensor(similarity, "similarity")
    if similarity.ndim != 2 or 0 in similarity.shape:
        raise ValueError(f"similarity of shape {tuple(similarity.shape)}: give a nonempty matrix.")
    if not bool(similarity.isfinite().all()):
        raise ValueError("similarity contains NaN or infinite entries: a matching needs finite numbers.")
    dense = similarity.detach().cpu().double()
    rows, columns = _load_solver()(dense.numpy(), maximize=True)
    left, right = torch.from_numpy(rows), torch.from_numpy(columns)
    return Matching(left, right, dense[left, right], optimal=True, gap=0.0)


@cache
def _load_solver() -> Callable:
    """Return scipy's solver. Only its own module is loaded, since importing scipy.optimize takes 0.4 s."""
    scipy = find_spec("scipy")
    folders = [
        str(Path(folder) / "optimize") for folder in (scipy and scipy.submodule_search_locations) or ()
    ]
    found = PathFinder.find_spec("_lsap", folders)
    if found is None or found.loader is None:  # another release of scipy may keep it elsewhere
        from scipy.optimize import linear_sum_assignment

        return linear_sum_assignment
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.linear_sum_assignment


def cosine(
    a: Float[Array, "Ka d"], b: Float[Array, "Kb d"], *, absolute: bool = False
) -> Float[Tensor, "Ka Kb"]:
    """Return the cosine (|cosine| if `absolute`) of every row of `a` with every row of `b`, as doubles."""
    a, b = as_tensor(a, "a"), as_tensor(b, "b")
    check_dictionaries(a, b)
    similarity = unit_rows(a) @ unit_rows(b).T
    return similarity.abs() if absolute else similarity


def unit_rows(dictionary: Float[Tensor, "K d"]) -> Float[Tensor, "K d"]:
    """Return the rows scaled to length one, in double precision on the CPU."""
    rows = dictionary.detach().cpu().double()
    # Scaled by the largest entry first, so that rows as small as 1e-200 keep their direction.
    rows = rows / rows.abs().amax(1, keepdim=True)
    return rows.div_(rows.norm(dim=1, keepdim=True))


def check_dictionaries(a: Tensor, b: Tensor) -> None:
    """Raise `ValueError` if rows of `a` and `b` cannot be compared by their cosine."""
    for name, dictionary in (("a", a), ("b", b)):
        check_dictionary(dictionary, name)
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"a has width {a.shape[1]} and b has width {b.shape[1]}: compare dictionaries of the same space."
        )


def check_dictionary(dictionary: Tensor, name: str = "dictionary") -> None:
    """Raise `ValueError` unless it is a matrix of finite rows, none of them zero."""
    if dictionary.ndim != 2 or 0 in dictionary.shape:
        raise ValueError(
            f"{name} has shape {tuple(dictionary.shape)}: give a matrix (units, width), one row per atom."
        )
    largest = dictionary.abs().amax(1)  # not finite if an entry is not, and zero for zero rows only
    finite, zero = largest.isfinite(), largest == 0
    if not bool(finite.all()):
        raise ValueError(
            f"{name} has {int((~finite).sum())} rows with NaN or infinite entries "
            f"(the first is row {int((~finite).int().argmax())}): drop or fix them first."
        )
    if bool(zero.any()):
        raise ValueError(
            f"{name} has {int(zero.sum())} zero rows (the first is row {int(zero.int().argmax())}): "
            f"a zero row has no direction, so drop it first, as in {name}[({name} != 0).any(1)]."
        )
