"""Is a unit found again in another training run? The rule, its chance level, and what further runs will show.

Shapes: n units, m units of the null distribution.

A unit u is *found again* in another SAE if the nearest unit v there

1. is the same direction: what u and v share is more than twice as long as what they differ in, that is,
   cosine(u, v) > 2 / sqrt(5) = 0.894. A unit that mixes two features, one with at least half the weight of
   the other, is neither of them;
2. is nearer than different units are: its cosine exceeds the level that 95 % of the units of that other SAE,
   among those about as frequent as u, stay below with the nearest *other* unit of their own SAE. Units of one
   SAE are different features of the same data, so this null has the geometry of the data, which random
   directions lack;
3. fires with it, if there are activations: their correlation exceeds what 99 % of such pairs reach after the
   activations of one side were moved on by half of the rows. Each unit keeps its own frequency and values.

The chance level of reproducibility is the share of units, as frequent as this one, that would still be found
if the unit nearest to them were missing from the other SAE: what a run that lacks the feature would say.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SAME = 2 / 5**0.5  # cosine above which two directions share more than twice of what they differ in
DIFFERENT = 0.95  # share of different units that stay below the level
SHUFFLED = 0.99  # share of shuffled pairs that stay below the level
_BIN = 100  # units in a bin of similar frequency
_BINS = 20
_SHARES = 50  # of the grid that the distribution of shares is estimated on
_ROUNDS = 300  # of EM


class FrequencyBins:
    """Units in bins of similar frequency, equally many in each; a single bin if frequencies are unknown."""

    def __init__(self, frequency: Float[Tensor, "m"] | None, units: int) -> None:
        count = 1 if frequency is None else min(_BINS, max(1, units // _BIN))
        self.count = count
        shares = torch.arange(1, count, dtype=torch.float64) / count
        self.edges = torch.empty(0, dtype=torch.float64)
        if frequency is not None and count > 1:
            self.edges = torch.quantile(frequency.double(), shares)

    def place(self, frequency: Float[Tensor, "n"] | None, units: int) -> Int[Tensor, "n"]:
        """Return the bin of each unit."""
        if frequency is None or self.count == 1:
            return torch.zeros(units, dtype=torch.int64)
        return torch.searchsorted(self.edges, frequency.double())

    def quantiles(
        self, values: Float[Tensor, "m"], places: Int[Tensor, "m"], share: float
    ) -> Float[Tensor, "bins"]:
        """Return in each bin the level that this share of its values stays at or below."""
        found = torch.full((self.count,), float(torch.quantile(values, share)), dtype=torch.float64)
        for place in places.unique().tolist():
            found[place] = torch.quantile(values[places == place], share)
        return found

    def means(self, values: Float[Tensor, "m"], places: Int[Tensor, "m"]) -> Float[Tensor, "bins"]:
        """Return the mean of the values in each bin; the mean of all where a bin is empty."""
        values = values.double()
        counts = torch.bincount(places, minlength=self.count)
        sums = torch.zeros(self.count, dtype=torch.float64).index_add_(0, places, values)
        return torch.where(counts > 0, sums / counts.clamp_min(1), values.mean())


def level_of_different(
    inside: Float[Tensor, "m"],
    inside_frequency: Float[Tensor, "m"] | None,
    frequency: Float[Tensor, "n"] | None,
    units: int,
) -> Float[Tensor, "n"]:
    """Return the cosine that different units as frequent as each unit stay below, 95 % of them.

    `inside` has, for units of the other SAE, the cosine of the nearest other unit of their own SAE.
    """
    bins = FrequencyBins(inside_frequency, len(inside))
    levels = bins.quantiles(inside, bins.place(inside_frequency, len(inside)), DIFFERENT)
    return levels[bins.place(frequency, units)]


def level_of_shuffled(
    shuffled: Float[Tensor, "n"], frequency: Float[Tensor, "n"] | None
) -> Float[Tensor, "n"]:
    """Return the correlation that 99 % of the shuffled pairs of units as frequent as each unit stay below."""
    bins = FrequencyBins(frequency, len(shuffled))
    places = bins.place(frequency, len(shuffled))
    return bins.quantiles(shuffled, places, SHUFFLED)[places]


def chance_of(passing: Bool[Tensor, "n"], frequency: Float[Tensor, "n"] | None) -> Float[Tensor, "n"]:
    """Return for each unit the share of the units about as frequent that pass."""
    bins = FrequencyBins(frequency, len(passing))
    places = bins.place(frequency, len(passing))
    return bins.means(passing, places)[places]


def expected_share(found: Int[Tensor, "n"], runs: int) -> Float[Tensor, "n"]:
    """Return for each unit, found again in so many of the runs, the share of further runs to expect it in.

    Units differ in how often runs find them. The distribution of these shares is estimated from the counts of
    all units, by maximum likelihood and without a form given to it (EM over a grid); the result is each
    unit's posterior mean. It needs at least two runs: a single one does not show how much units differ.
    """
    if runs < 2:
        raise ValueError(f"runs={runs}: give at least 2, since one does not show how much units differ.")
    shares = (torch.arange(_SHARES, dtype=torch.float64) + 0.5) / _SHARES
    hits = torch.arange(runs + 1, dtype=torch.float64)[:, None]
    likelihood = shares**hits * (1 - shares) ** (runs - hits)  # of a count, up to its binomial coefficient
    counts = torch.bincount(found, minlength=runs + 1).double()
    weights = torch.full((_SHARES,), 1.0 / _SHARES, dtype=torch.float64)
    for _ in range(_ROUNDS):
        posterior = likelihood * weights
        posterior /= posterior.sum(1, keepdim=True)
        weights = counts @ posterior / counts.sum()
    posterior = likelihood * weights
    return ((posterior @ shares) / posterior.sum(1))[found]


# --- how good scores are ----------------------------------------------------------------------------


class Calibration(NamedTuple):
    """Units by the share that was foretold of them: that share, the share observed, and how many they are."""

    expected: tuple[float, ...]
    observed: tuple[float, ...]
    units: tuple[int, ...]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between what was foretold and observed."""
        gaps = zip(self.expected, self.observed, self.units, strict=True)
        return sum(abs(told - seen) * count for told, seen, count in gaps) / sum(self.units)


def calibration(expected: Float[Tensor, "n"], found: Bool[Tensor, "n"]) -> Calibration:
    """Return how often units were found, by what was expected of them, in tenths."""
    tenths = (expected * 10).floor().clamp(0, 9)
    groups = [tenths == tenth for tenth in tenths.unique()]
    return Calibration(
        tuple(float(expected[group].double().mean()) for group in groups),
        tuple(float(found[group].double().mean()) for group in groups),
        tuple(int(group.sum()) for group in groups),
    )


def ranking_quality(score: Float[Tensor, "n"], true: Bool[Tensor, "n"]) -> float | None:
    """Return the chance that a true unit has a higher score than a false one (AUC); ties count half.

    It is None if there are no true units or no false ones.
    """
    trues, falses = int(true.sum()), int((~true).sum())
    if trues == 0 or falses == 0:
        return None
    _, place, counts = score.unique(return_inverse=True, return_counts=True)
    below = (counts.cumsum(0) - counts).double()
    ranks = (below + (counts + 1) / 2)[place]  # of ties, the mean of their ranks
    return float((ranks[true].sum() - trues * (trues + 1) / 2) / (trues * falses))
