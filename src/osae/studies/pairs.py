"""The measures of a pair of SAEs and of their prefixes: one function per key in `osae.measures`.

Shapes: Ka, Kb units, d width, n matched pairs.

To add a measure, add an entry to the table in `osae.measures` and a function here. Tables, files, pages and
the documentation include it automatically.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from osae import metrics
from osae.measures import ABOVE


@dataclass(frozen=True, eq=False)
class PairView:
    """A pair of SAEs: the rows to compare, and the best matchings of their units.

    `matching` is by the cosine of the rows, `stream` by the correlation of the units' activations; it is None
    without activations.
    """

    a: Float[Tensor, "Ka d"]
    b: Float[Tensor, "Kb d"]
    matching: metrics.Matching
    stream: metrics.Matching | None = None


@dataclass(frozen=True, eq=False)
class PrefixView:
    """The first units of two SAEs: their rows, their own best matching, and the matching of all units."""

    length: int
    a: Float[Tensor, "la d"]
    b: Float[Tensor, "lb d"]
    matching: metrics.Matching
    full: metrics.Matching


PairMeasure = Callable[[PairView], float | None]
PrefixMeasure = Callable[[PrefixView], float | None]
PAIR_MEASURES: dict[str, PairMeasure] = {}
PREFIX_MEASURES: dict[str, PrefixMeasure] = {}


def pair_measure(key: str) -> Callable[[PairMeasure], PairMeasure]:
    """Register a function as the measure with this key, for every pair."""

    def register(function: PairMeasure) -> PairMeasure:
        assert key not in PAIR_MEASURES, f"two functions compute {key}"
        PAIR_MEASURES[key] = function
        return function

    return register


def prefix_measure(key: str) -> Callable[[PrefixMeasure], PrefixMeasure]:
    """Register a function as the measure with this key, for every prefix of a pair."""

    def register(function: PrefixMeasure) -> PrefixMeasure:
        assert key not in PREFIX_MEASURES, f"two functions compute {key} of a prefix"
        PREFIX_MEASURES[key] = function
        return function

    return register


# --- of a pair --------------------------------------------------------------------------------------


@pair_measure("stability")
def stability(pair: PairView) -> float:
    """Return the mean cosine of matched units."""
    return float(pair.matching.similarity.mean())


@pair_measure("orderedness")
def orderedness(pair: PairView) -> float:
    """Return the Spearman correlation of the matched units' positions."""
    return metrics.rank_correlation(pair.matching.left, pair.matching.right)


def share_above(level: float) -> PairMeasure:
    """Return the measure of the share of matched units whose cosine exceeds a level."""

    def share(pair: PairView) -> float:
        return float((pair.matching.similarity > level).double().mean())

    return share


for _level in ABOVE:
    pair_measure(f"above_{_level}")(share_above(_level))


@pair_measure("stream_stability")
def stream_stability(pair: PairView) -> float | None:
    """Return the mean correlation of units matched by their activations."""
    return None if pair.stream is None else float(pair.stream.similarity.mean())


@pair_measure("stream_orderedness")
def stream_orderedness(pair: PairView) -> float | None:
    """Return the Spearman correlation of the positions of units matched by their activations."""
    return None if pair.stream is None else metrics.rank_correlation(pair.stream.left, pair.stream.right)


# --- of a prefix ------------------------------------------------------------------------------------


@prefix_measure("stability")
def prefix_stability(prefix: PrefixView) -> float:
    """Return the mean cosine of the prefix's units, matched among themselves."""
    return float(prefix.matching.similarity.mean())


@prefix_measure("orderedness")
def prefix_orderedness(prefix: PrefixView) -> float:
    """Return the Spearman correlation of the positions of the prefix's units, matched among themselves."""
    return metrics.rank_correlation(prefix.matching.left, prefix.matching.right)


@prefix_measure("stability_of_full")
def stability_of_full(prefix: PrefixView) -> float | None:
    """Return the mean cosine of the prefix's units in the matching of all, averaged over both sides."""
    return metrics.measure_within_prefix(prefix.full, prefix.length)[0]


@prefix_measure("orderedness_of_full")
def orderedness_of_full(prefix: PrefixView) -> float | None:
    """Return the Spearman correlation of their positions in the matching of all, averaged over both sides."""
    return metrics.measure_within_prefix(prefix.full, prefix.length)[1]
