"""Do two dictionaries contain the same atoms, and in the same order?

Shapes: Ka, Kb units, d width. Dictionaries have one atom per row; rows are scaled to length one here.

With C the cosines of all pairs of atoms and mu the one-to-one matching with the greatest total cosine,

    stability   = mean of C[j, mu(j)] ,
    orderedness = Spearman correlation of j and mu(j) = 1 - 6 sum_j (j - mu(j))^2 / (K (K^2 - 1)) .

When Ka and Kb differ, every unit of the smaller dictionary is matched, and orderedness is the Spearman
correlation over the matched pairs alone: each index is replaced by its rank among the matched units of its
own side. For equal sizes this is the formula above. A single matched pair is in order by definition: 1.0.

If several matchings attain the greatest total (repeated atoms), the solver picks one of them; stability does
not depend on the choice, but orderedness may.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, HasDecoder, as_decoder, as_tensor
from osae.metrics.assignment import match_atoms
from osae.metrics.matching import Matching


class Consistency(NamedTuple):
    """Stability and orderedness, with the matching that both are computed from."""

    stability: float
    orderedness: float
    matching: Matching


class PrefixConsistency(NamedTuple):
    """Consistency at one prefix length p, of both kinds.

    `stability` and `orderedness` are computed by re-matching the first p atoms of each dictionary.
    `stability_of_full` and `orderedness_of_full` use the matching of the whole dictionaries: the value over
    the pairs whose left unit is among the first p, averaged with the value over the pairs whose right unit
    is; NaN if there are none.
    """

    length: int
    stability: float
    orderedness: float
    stability_of_full: float
    orderedness_of_full: float


def stability(
    a: Float[Array, "Ka d"] | HasDecoder, b: Float[Array, "Kb d"] | HasDecoder, *, absolute: bool = False
) -> float:
    """Return the mean cosine of matched atoms; with `absolute`, |cosine| is both matched and averaged."""
    return consistency(a, b, absolute=absolute).stability


def orderedness(
    a: Float[Array, "Ka d"] | HasDecoder, b: Float[Array, "Kb d"] | HasDecoder, *, absolute: bool = False
) -> float:
    """Return the Spearman correlation of the matched units' indices."""
    return consistency(a, b, absolute=absolute).orderedness


def consistency(
    a: Float[Array, "Ka d"] | HasDecoder, b: Float[Array, "Kb d"] | HasDecoder, *, absolute: bool = False
) -> Consistency:
    """Return stability, orderedness and the matching of two dictionaries, or of the decoders of two SAEs."""
    return consistency_from(match_atoms(a, b, absolute=absolute))


def consistency_from(matching: Matching) -> Consistency:
    """Return the stability and orderedness of a given matching."""
    order = rank_correlation(matching.left, matching.right)
    return Consistency(float(matching.similarity.mean()), order, matching)


def prefix_consistency(
    a: Float[Array, "Ka d"] | HasDecoder,
    b: Float[Array, "Kb d"] | HasDecoder,
    lengths: Sequence[int] | None = None,
    *,
    absolute: bool = False,
    full: Matching | None = None,
) -> list[PrefixConsistency]:
    """Return the consistency of prefixes, one entry per length; `default_prefixes` unless lengths are given.

    A prefix longer than one of the dictionaries includes all of it. Pass `full`, the matching of the whole
    dictionaries with the same `absolute`, if you already have it.
    """
    a, b = as_decoder(a, "a"), as_decoder(b, "b")
    if lengths is None:
        lengths = default_prefixes(min(len(a), len(b)))
    check_lengths(lengths, max(len(a), len(b)))
    if full is None:
        full = match_atoms(a, b, absolute=absolute)
    return [_at_length(a, b, length, full, absolute=absolute) for length in lengths]


def _at_length(a: Tensor, b: Tensor, length: int, full: Matching, *, absolute: bool) -> PrefixConsistency:
    whole = length >= len(a) and length >= len(b)
    anew = consistency_from(full if whole else match_atoms(a[:length], b[:length], absolute=absolute))
    return PrefixConsistency(length, anew.stability, anew.orderedness, *measure_within_prefix(full, length))


def measure_within_prefix(full: Matching, length: int) -> tuple[float, float]:
    """Return the stability and orderedness of the first units in a full matching, averaged over both sides.

    Both are NaN if none of these units is matched.
    """
    found = []
    for side in (full.left, full.right):
        pairs = side < length
        if bool(pairs.any()):
            order = rank_correlation(full.left[pairs], full.right[pairs])
            found.append((float(full.similarity[pairs].mean()), order))
    if not found:
        return float("nan"), float("nan")
    stabilities, orders = zip(*found, strict=True)
    return sum(stabilities) / len(found), sum(orders) / len(found)


def check_lengths(lengths: Sequence[int], longest: int) -> None:
    """Raise `ValueError` if a prefix is empty, or longer than the longest dictionary."""
    for length in lengths:
        if not 1 <= length <= longest:
            raise ValueError(f"prefix length {length}: give 1 to {longest}, the number of units.")


def default_prefixes(units: int) -> tuple[int, ...]:
    """Return the powers of two from 16 below `units`, and `units` itself."""
    if units < 1:
        raise ValueError(f"units={units}: a dictionary has at least 1 unit.")
    powers = (2**exponent for exponent in range(4, units.bit_length()))
    return (*(power for power in powers if power < units), units)


def rank_correlation(left: Int[Array, "n"], right: Int[Array, "n"]) -> float:
    """Return Spearman's correlation of two lists of distinct numbers; 1.0 for a single pair."""
    left, right = as_tensor(left, "left"), as_tensor(right, "right")
    n = len(left)
    if n == 1:
        return 1.0
    apart = (_ranks(left) - _ranks(right)).double()
    return 1.0 - 6.0 * float(apart.square().sum()) / (n * (n * n - 1))


def _ranks(numbers: Tensor) -> Tensor:
    ranks = torch.empty_like(numbers)
    ranks[numbers.argsort()] = torch.arange(len(numbers), dtype=numbers.dtype)
    return ranks
