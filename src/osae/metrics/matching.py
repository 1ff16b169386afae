"""The best one-to-one matching of two sets of units, and the cosine similarity it is usually made on.

Shapes: Ka, Kb units on the left and on the right, d width, n = min(Ka, Kb) matched pairs.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Matching:
    """Pairs (left[i], right[i]) with their similarity, sorted by the left unit.

    `gap` bounds how far the best total similarity can lie above this one, as a share of it (of 1, if it is
    smaller); `optimal` says that the bound is at most 1e-6. scipy's dense solver is exact: gap 0.
    """

    left: Int[Tensor, "n"]
    right: Int[Tensor, "n"]
    similarity: Float[Tensor, "n"]
    optimal: bool
    gap: float

    def __len__(self) -> int:
        return len(self.left)


def match(similarity: Float[Tensor, "Ka Kb"]) -> Matching:
    """The matching of greatest total similarity, by scipy's exact dense solver.

    Every unit of the smaller side is matched. For decoders, `match_atoms` does the same without
    holding the whole matrix.
    """
    if similarity.ndim != 2 or 0 in similarity.shape:
        raise ValueError(f"similarity of shape {tuple(similarity.shape)}: give a matrix that is not empty.")
    if not bool(similarity.isfinite().all()):
        raise ValueError("similarity holds NaN or infinite entries: a matching needs finite numbers.")
    dense = similarity.detach().cpu().double()
    rows, columns = linear_sum_assignment(dense.numpy(), maximize=True)
    left, right = torch.from_numpy(rows), torch.from_numpy(columns)
    return Matching(left, right, dense[left, right], optimal=True, gap=0.0)


def cosine(
    a: Float[Tensor, "Ka d"], b: Float[Tensor, "Kb d"], *, absolute: bool = False
) -> Float[Tensor, "Ka Kb"]:
    """The cosine of every row of `a` with every row of `b` in double precision; its size if `absolute`."""
    check_dictionaries(a, b)
    similarity = unit_rows(a) @ unit_rows(b).T
    return similarity.abs() if absolute else similarity


def unit_rows(dictionary: Float[Tensor, "K d"]) -> Float[Tensor, "K d"]:
    """The rows scaled to length one, in double precision on the CPU."""
    rows = dictionary.detach().cpu().double()
    # Scaled first by the largest entry, so that rows as small as 1e-200 keep their direction.
    rows = rows / rows.abs().amax(1, keepdim=True)
    return rows.div_(rows.norm(dim=1, keepdim=True))


def check_dictionaries(a: Tensor, b: Tensor) -> None:
    """Nothing; a `ValueError` if rows of `a` and `b` cannot be compared by their cosine."""
    for name, dictionary in (("a", a), ("b", b)):
        check_dictionary(dictionary, name)
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"a has width {a.shape[1]} and b has width {b.shape[1]}: compare dictionaries of the same space."
        )


def check_dictionary(dictionary: Tensor, name: str = "dictionary") -> None:
    """Nothing; a `ValueError` unless it is a matrix of finite rows with a direction each."""
    if dictionary.ndim != 2 or 0 in dictionary.shape:
        raise ValueError(
            f"{name} has shape {tuple(dictionary.shape)}: give a matrix (units, width), one row per atom."
        )
    largest = dictionary.abs().amax(1)  # NaN and infinity show in it, and it is zero for a zero row alone
    finite, zero = largest.isfinite(), largest == 0
    if not bool(finite.all()):
        raise ValueError(
            f"{name} has {int((~finite).sum())} rows with NaN or infinite entries, "
            f"the first is row {int((~finite).int().argmax())}: drop or repair them first."
        )
    if bool(zero.any()):
        raise ValueError(
            f"{name} has {int(zero.sum())} zero rows, the first is row {int(zero.int().argmax())}: "
            f"a zero row has no direction, so drop it first, as in {name}[({name} != 0).any(1)]."
        )
