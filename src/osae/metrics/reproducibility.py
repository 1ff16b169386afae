"""Is a unit found again in another training run? The rule, its chance level, and what further runs will show.

Shapes: n units, m units of the null distribution.

A unit u is *found again* in another SAE if the nearest unit v there

1. has the same direction: the part that u and v share is more than twice as long as the part in which they
   differ, that is, cosine(u, v) > 2 / sqrt(5) = 0.894. By this rule, a unit that mixes two features, one with
   at least half the weight of the other, matches neither of them;
2. is nearer than different units are: its cosine exceeds a level taken from the other SAE: among its units
   that fire about as often as u, 95 % have a lower cosine with the nearest *other* unit of their own SAE.
   Units of one SAE are different features of the same data, so this null distribution has the geometry of the
   data, which random directions lack;
3. fires on the same samples, if activations are given: their correlation exceeds the level that 99 % of such
   pairs stay below after the activations of one side are shifted by half of the rows. Each unit keeps its own
   frequency and values.

*Support* is a graded version of the same score: see `support_of`. A unit just below the threshold and one far
below it are equally irreproducible, but not equally supported.

The chance level of reproducibility is the share of units with a similar frequency that would still be found
if their nearest unit were missing from the other SAE, as in a run that lacks the feature.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SAME = 2 / 5**0.5  # cosine above which the shared part is more than twice as long as the difference
DIFFERENT = 0.95  # share of different units that stay below the level
SHUFFLED = 0.99  # share of shuffled pairs that stay below the level
_BIN = 100  # units in a bin of similar frequency
_BINS = 20
_SHARES = 200  # size of the grid on which the distribution of shares is estimated
_ROUNDS = 30  # rounds of EM
_LARGEST = 8.0  # bound on the absolute log of the parameters of the beta distribution


class FrequencyBins:
    """Equal bins of units of similar frequency; a single bin if frequencies are unknown."""

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
        """Return the level in each bin that this share of its values stays at or below."""
        found = torch.full((self.count,), float(torch.quantile(values, share)), dtype=torch.float64)
        for place in places.unique().tolist():
            found[place] = torch.quantile(values[places == place], share)
        return found

    def means(self, values: Float[Tensor, "m"], places: Int[Tensor, "m"]) -> Float[Tensor, "bins"]:
        """Return the mean of the values in each bin; the overall mean for an empty bin."""
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
    """Return the cosine that 95 % of different units with each unit's frequency stay below.

    `inside` contains the cosine of units of the other SAE with the nearest other unit of their own SAE.
    """
    bins = FrequencyBins(inside_frequency, len(inside))
    levels = bins.quantiles(inside, bins.place(inside_frequency, len(inside)), DIFFERENT)
    return levels[bins.place(frequency, units)]


def level_of_shuffled(
    shuffled: Float[Tensor, "n"], frequency: Float[Tensor, "n"] | None
) -> Float[Tensor, "n"]:
    """Return the correlation that 99 % of the shuffled pairs with each unit's frequency stay below."""
    bins = FrequencyBins(frequency, len(shuffled))
    places = bins.place(frequency, len(shuffled))
    return bins.quantiles(shuffled, places, SHUFFLED)[places]


def chance_of(passing: Bool[Tensor, "n"], frequency: Float[Tensor, "n"] | None) -> Float[Tensor, "n"]:
    """Return the share of units that pass among those with each unit's frequency."""
    bins = FrequencyBins(frequency, len(passing))
    places = bins.place(frequency, len(passing))
    return bins.means(passing, places)[places]


def support_of(
    cosine: Float[Tensor, "n"], level: Float[Tensor, "n"], correlation: Float[Tensor, "n"] | None
) -> Float[Tensor, "n"]:
    """Return how close the nearest units of another SAE come to being the same, from 0 to 1.

    cosine^2 and 1 - cosine^2 are the shares of a unit's squared length that the nearest unit has in common
    with it, and that it lacks. Their ratio, divided by the same ratio at the level, gives the odds of being
    the same unit: a unit at the level has a support of 1/2, an identical one of 1. With activations, this is
    multiplied by the correlation.
    """
    common, bar = cosine.double().clamp(0, 1).square(), level.double().clamp(0, 1).square()
    ours, theirs = common * (1 - bar), bar * (1 - common)
    support = torch.where(ours > 0, ours / (ours + theirs).clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return support if correlation is None else support * correlation.clamp_min(0)


def expected_share(found: Int[Tensor, "n"], runs: int) -> Float[Tensor, "n"]:
    """Return the share of further runs in which each unit is expected, from the number of runs that found it.

    Units differ in how often runs find them. The distribution of these shares is estimated from the counts of
    all units, plus one unit about which nothing is known; the result is each unit's posterior mean. What to
    expect of a unit that all R runs found depends on moment R + 1 of the distribution, which R runs cannot
    show. The estimate therefore starts as a beta distribution, which two runs determine fully, and is
    corrected by a few rounds of EM towards the counts that it does not fit. At least two runs are needed: one
    run does not show how much units differ.
    """
    from scipy.special import betainc

    if runs < 2:
        raise ValueError(f"runs={runs}: give at least 2, since one run does not show how much units differ.")
    hits = np.arange(runs + 1)
    counts = np.bincount(found.numpy(), minlength=runs + 1) + 1 / (runs + 1)
    edges = np.linspace(0, 1, _SHARES + 1)
    weights = np.diff(betainc(*_fit_beta(counts), edges))
    shares = (edges[1:] + edges[:-1]) / 2
    likelihood = shares ** hits[:, None] * (1 - shares) ** (runs - hits[:, None])  # up to a factor
    for _ in range(_ROUNDS):
        posterior = likelihood * weights
        weights = counts / counts.sum() @ (posterior / posterior.sum(1, keepdims=True))
    posterior = likelihood * weights
    return torch.from_numpy(posterior @ shares / posterior.sum(1))[found]


def _fit_beta(counts: np.ndarray) -> tuple[float, float]:
    """Return the maximum-likelihood parameters if `counts[h]` units were found h times.

    scipy is imported here, because it takes 0.4 s and two SAEs do not need it.
    """
    from scipy.optimize import minimize
    from scipy.special import betaln

    runs = len(counts) - 1
    hits = np.arange(runs + 1)

    def parameters(logs: np.ndarray) -> np.ndarray:
        return np.exp(logs.clip(-_LARGEST, _LARGEST))

    def cost(logs: np.ndarray) -> float:
        alpha, beta = parameters(logs)
        return -float(counts @ (betaln(alpha + hits, beta + runs - hits) - betaln(alpha, beta)))

    alpha, beta = parameters(minimize(cost, np.zeros(2), method="Nelder-Mead").x)
    return float(alpha), float(beta)


# --- how good scores are ----------------------------------------------------------------------------


class Calibration(NamedTuple):
    """Units grouped by their predicted share: that share, the observed share, and the number of units."""

    expected: tuple[float, ...]
    observed: tuple[float, ...]
    units: tuple[int, ...]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between the predicted and the observed share."""
        gaps = zip(self.expected, self.observed, self.units, strict=True)
        return sum(abs(told - seen) * count for told, seen, count in gaps) / sum(self.units)


def calibration(expected: Float[Tensor, "n"], found: Bool[Tensor, "n"]) -> Calibration:
    """Return how often units were found, grouped by expected share in bins of one tenth."""
    tenths = (expected * 10).floor().clamp(0, 9)
    groups = [tenths == tenth for tenth in tenths.unique()]
    return Calibration(
        tuple(float(expected[group].double().mean()) for group in groups),
        tuple(float(found[group].double().mean()) for group in groups),
        tuple(int(group.sum()) for group in groups),
    )


def ranking_quality(score: Float[Tensor, "n"], true: Bool[Tensor, "n"]) -> float | None:
    """Return the probability that a true unit scores higher than a false one (AUC); ties count half.

    The result is None if there are no true or no false units.
    """
    trues, falses = int(true.sum()), int((~true).sum())
    if trues == 0 or falses == 0:
        return None
    _, place, counts = score.unique(return_inverse=True, return_counts=True)
    below = (counts.cumsum(0) - counts).double()
    ranks = (below + (counts + 1) / 2)[place]  # ties get the mean of their ranks
    return float((ranks[true].sum() - trues * (trues + 1) / 2) / (trues * falses))
