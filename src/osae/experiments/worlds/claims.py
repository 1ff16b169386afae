"""What the paper says of its synthetic worlds, and what we say, held against the results.

`CLAIMS` lists the claims about each experiment as data; `judge_world` judges them by the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

import numpy as np
from scipy import stats

from osae.config import from_json
from osae.experiments.claims import UNTESTED, judge
from osae.experiments.methods import (
    MATRYOSHKA,
    NO_SWEEPING,
    NO_WARMUP,
    ORDERED,
    OSAE,
    OSAE_PAPER,
    PLAIN,
    SORTED_AFTERWARDS,
    SORTED_BY_GAIN,
    TOPK,
    TOPK_OUR_SETTINGS,
    TOPK_SORTED_BY_GAIN,
    VANILLA,
)
from osae.experiments.worlds.orders import correlate_orders
from osae.experiments.worlds.theory_claims import judge_theory
from osae.measures import measure
from osae.results.base import Interval
from osae.results.experiment import Claim, ExperimentResult, MethodRow, Section

BASELINES = (TOPK, *MATRYOSHKA)
NEAR, COMPARABLE, NO_ORDER, LOW_SKEW = 0.85, 0.05, 0.2, 0.5

Rows = Mapping[str, MethodRow]


class Kind(Enum):
    """How a method is compared."""

    AHEAD = auto()  # of each rival: better, and the rival's mean is outside of the interval
    ABOVE = auto()  # each rival, in the mean
    CLOSE = auto()  # at most the threshold below the best rival
    AT_LEAST = auto()  # the threshold, the method and each rival
    POSITIVE = auto()  # the whole interval of the method and of each rival
    NEAR_ZERO = auto()  # within the threshold, the method and each rival


@dataclass(frozen=True)
class Compared:
    """A claim about the measures of a method and its rivals, in every table within a range of exponents."""

    text: str
    kind: Kind
    method: str
    rivals: tuple[str, ...]
    measures: tuple[str, ...]
    threshold: float = 0.0
    above: float = -math.inf  # exponents of the tables that it is about
    up_to: float = math.inf

    @property
    def methods(self) -> tuple[str, ...]:
        """The method and its rivals."""
        return (self.method, *self.rivals)

    def is_about(self, section: Section) -> bool:
        """Return whether the claim is about a table."""
        return section.x is None or self.above < section.x <= self.up_to


@dataclass(frozen=True)
class Correlated:
    """A claim that low values of one measure go with high values of another, more so than a rival's."""

    text: str
    measure: str
    rival: str
    target: str


@dataclass(frozen=True)
class OrderedBy:
    """A claim that the order of methods is rather the one that one measure looks for than a rival's."""

    text: str
    methods: tuple[str, ...]
    measure: str
    rival: str


@dataclass(frozen=True)
class Recovered:
    """A claim that a method reaches a threshold, and a rival does not."""

    text: str
    method: str
    rival: str
    measure: str
    threshold: float


WorldClaim = Compared | Correlated | OrderedBy | Recovered

FIFR = Correlated(
    "The per-feature error (FIFR) predicts stability better than the mean squared error does.",
    "fifr",
    "mse",
    "stability_truth",
)
TOY = (
    Compared(
        "O-SAE is more stable than TopK and both Matryoshka kinds (paper: 0.664 across seeds, others "
        "at most 0.572; 0.814 to the truth, others at most 0.502).",
        Kind.AHEAD,
        OSAE_PAPER,
        BASELINES,
        ("stability_pairs", "stability_truth"),
    ),
    Compared(
        "O-SAE is more ordered than TopK and both Matryoshka kinds (paper: 0.734 to the truth, others "
        "at most 0.119).",
        Kind.AHEAD,
        OSAE_PAPER,
        BASELINES,
        ("orderedness_truth",),
    ),
    Compared(
        "O-SAE has the lowest error (paper: 0.00725, others at least 0.0257).",
        Kind.AHEAD,
        OSAE_PAPER,
        BASELINES,
        ("mse",),
    ),
    Compared(
        "Order needs an ordered loss (implied: the paper does not sort a plain SAE afterwards).",
        Kind.AHEAD,
        OSAE_PAPER,
        (TOPK_SORTED_BY_GAIN,),
        ("orderedness_truth",),
    ),
    FIFR,
    Compared(
        "`osae` is ahead of TopK sorted by gain (our own claim).",
        Kind.AHEAD,
        OSAE,
        (TOPK_SORTED_BY_GAIN,),
        ("stability_truth", "orderedness_truth", "stability_pairs", "orderedness_pairs", "mse"),
    ),
)
SIZES = (  # the paper shows single pairs of seeds, and no numbers
    Compared(
        "At 10, 30 and 50 atoms too, O-SAE is more ordered than TopK (the paper shows pictures only).",
        Kind.AHEAD,
        OSAE_PAPER,
        (TOPK,),
        ("orderedness_truth",),
    ),
    Compared(
        "At 10, 30 and 50 atoms too, O-SAE is more stable than TopK (the paper shows pictures only).",
        Kind.AHEAD,
        OSAE_PAPER,
        (TOPK,),
        ("stability_truth",),
    ),
    Compared(
        "`osae` is more ordered than both Matryoshka kinds, `osae-paper` and TopK sorted by gain "
        "(our own claim).",
        Kind.AHEAD,
        OSAE,
        (*MATRYOSHKA, OSAE_PAPER, TOPK_SORTED_BY_GAIN),
        ("orderedness_truth",),
    ),
)
ZIPF = (
    # at the settings of the appendix
    Compared(
        "At low skew, stability to the truth is near 0.9 for O-SAE, TopK and both Matryoshka kinds "
        f"(here: at least {NEAR}).",
        Kind.AT_LEAST,
        OSAE_PAPER,
        BASELINES,
        ("stability_truth",),
        NEAR,
        up_to=LOW_SKEW,
    ),
    Compared(
        f"As skew rises, the stability of O-SAE stays competitive (here: at most {COMPARABLE} behind the "
        "best of TopK and Matryoshka).",
        Kind.CLOSE,
        OSAE_PAPER,
        BASELINES,
        ("stability_truth",),
        COMPARABLE,
    ),
    Compared(
        "The order of O-SAE correlates with the true order at any skew (paper: about 0.5 at low skew, "
        "positive throughout; with exponent 0 there is no order to find).",
        Kind.POSITIVE,
        OSAE_PAPER,
        (),
        ("orderedness_truth",),
        above=0.0,
    ),
    Compared(
        f"TopK and vanilla SAEs have no order (here: at most {NO_ORDER} in absolute value).",
        Kind.NEAR_ZERO,
        TOPK,
        (VANILLA,),
        ("orderedness_truth",),
        NO_ORDER,
        above=0.0,
    ),
    Compared(
        "The error of O-SAE is higher than that of TopK and vanilla SAEs.",
        Kind.ABOVE,
        OSAE_PAPER,
        (TOPK, VANILLA),
        ("mse",),
    ),
    FIFR,
    # at ours
    Compared(
        f"With better training, an O-SAE keeps a stability of 0.9 (the paper's hope; here: at least {NEAR}).",
        Kind.AT_LEAST,
        OSAE,
        (),
        ("stability_truth",),
        NEAR,
        above=0.0,
    ),
    Compared(
        "With better training, an O-SAE is more ordered than the baselines (the paper's hope).",
        Kind.AHEAD,
        OSAE,
        (VANILLA, *BASELINES),
        ("orderedness_truth",),
        above=0.0,
    ),
    Compared(
        "`osae` is more ordered than TopK trained in the same way and sorted by gain (our own claim).",
        Kind.AHEAD,
        OSAE,
        (SORTED_BY_GAIN[TOPK_OUR_SETTINGS],),
        ("orderedness_truth",),
        above=0.0,
    ),
)
SCHEDULES = (
    Compared(
        "Unit sweeping improves stability and ordered recovery.",
        Kind.AHEAD,
        OSAE_PAPER,
        (NO_SWEEPING,),
        ("stability_truth", "orderedness_truth"),
    ),
    Compared(
        "Warm-up of k improves convergence.",
        Kind.AHEAD,
        OSAE_PAPER,
        (NO_WARMUP,),
        ("mse", "stability_truth", "orderedness_truth"),
    ),
)
ENERGY = (
    OrderedBy(
        "Minimisers order their atoms by how often they occur (the paper's theorem).",
        (OSAE_PAPER, OSAE),
        "orderedness_frequency",
        "orderedness_energy",
    ),
)
PCA = (
    Recovered(
        "On a linear code, the nested loss finds the principal directions, in order.",
        ORDERED,
        PLAIN,
        "least_cosine",
        0.99,
    ),
)
CLAIMS: dict[str, tuple[WorldClaim, ...]] = {
    "toy": TOY,
    "sizes": SIZES,
    "zipf": ZIPF,
    "schedules": SCHEDULES,
    "energy": ENERGY,
    "pca": PCA,
}


def judge_world(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim about an experiment on worlds, what was found, and the verdict."""
    if result.experiment == "lemma":
        return judge_theory(result)
    return tuple(_judge_claim(claim, result) for claim in CLAIMS.get(result.experiment, ()))


def _judge_claim(claim: WorldClaim, result: ExperimentResult) -> Claim:
    match claim:
        case Compared():
            return judge_compared(claim, result.all_sections())
        case Correlated():
            return judge_correlated(claim, [section.rows for section in result.all_sections()])
        case OrderedBy():
            return judge_ordered_by(claim, result)
        case Recovered():
            return judge_recovered(claim, result.by_method())
        case _:
            assert_never(claim)


# --- methods against rivals -------------------------------------------------------------------------


def judge_compared(claim: Compared, sections: Sequence[Section]) -> Claim:
    """Return the claim judged in every table that it is about."""
    tables = [(section.title, section.by_method()) for section in sections if claim.is_about(section)]
    if not tables:
        return Claim(claim.text, UNTESTED, "no such world was tried.")
    absent = dict.fromkeys(name for _, rows in tables for name in claim.methods if name not in rows)
    if absent:
        return Claim(claim.text, UNTESTED, f"not trained: {', '.join(absent)}.")
    outcomes = [
        outcome for key in claim.measures for _, rows in tables for outcome in _outcomes(claim, rows, key)
    ]
    said = [_quote_measure(claim, tables, key) for key in claim.measures]
    return Claim(claim.text, judge(outcomes), " ".join([*said, *_count(claim, tables, outcomes)]))


def _outcomes(claim: Compared, rows: Rows, key: str) -> list[bool]:
    """Return how the comparison comes out for a measure in one table, in each of its cases."""
    mine, others = rows[claim.method], [rows[name] for name in claim.rivals]
    means = [row.mean(key) for row in (mine, *others)]
    match claim.kind:
        case Kind.AHEAD:
            return [is_ahead(key, mine.interval(key), other.interval(key)) for other in others]
        case Kind.ABOVE:
            return [means[0] > mean for mean in means[1:]]
        case Kind.CLOSE:
            return [means[0] >= max(means[1:]) - claim.threshold]
        case Kind.AT_LEAST:
            return [mean >= claim.threshold for mean in means]
        case Kind.POSITIVE:
            return [row.interval(key).ends()[0] > 0 for row in (mine, *others)]
        case Kind.NEAR_ZERO:
            return [abs(mean) <= claim.threshold for mean in means]
        case _:
            assert_never(claim.kind)


def is_ahead(key: str, mine: Interval, other: Interval) -> bool:
    """Return whether a number is better than another whose mean is outside of its interval."""
    return measure(key).ahead(_ends(key, mine)[0], other.mean) > 0


def is_clearly_ahead(key: str, mine: Interval, other: Interval) -> bool:
    """Return whether a number is better than another, with intervals that do not overlap."""
    return measure(key).ahead(_ends(key, mine)[0], _ends(key, other)[1]) > 0


def _ends(key: str, value: Interval) -> tuple[float, float]:
    """Return the worse and the better end of an interval."""
    low, high = value.ends()
    return (high, low) if measure(key).better == "low" else (low, high)


def _quote_measure(claim: Compared, tables: Sequence[tuple[str, Rows]], key: str) -> str:
    """Return the measure of the method and its rivals in every table, in words."""
    phrase = measure(key).phrase
    head = phrase[0].upper() + phrase[1:]
    said = []
    for title, rows in tables:
        numbers = ", ".join(f"`{name}` {format_interval(rows[name].interval(key))}" for name in claim.methods)
        said.append(f"{title}: {numbers}." if title else f"{numbers}.")
    return " ".join([f"{head}: {said[0]}"] if not tables[0][0] else [f"{head}.", *said])


def _count(claim: Compared, tables: Sequence[tuple[str, Rows]], outcomes: Sequence[bool]) -> list[str]:
    """Return in how many cases the claim came out true; in a single table, also how clearly."""
    if tables[0][0]:
        return [f"True in {sum(outcomes)} of {len(outcomes)} cases."] if len(outcomes) > 1 else []
    clear = [
        is_clearly_ahead(key, rows[claim.method].interval(key), rows[rival].interval(key))
        for _, rows in tables
        for key in claim.measures
        for rival in claim.rivals
    ]
    return [
        f"Ahead by more than the interval in {sum(outcomes)} of {len(outcomes)} comparisons, in {sum(clear)} "
        "with intervals that do not overlap."
    ]


# --- other claims -----------------------------------------------------------------------------------


def judge_correlated(claim: Correlated, tables: Sequence[Sequence[MethodRow]]) -> Claim:
    """Return the claim judged within each table, and over all that was trained."""
    trained = [[row for row in rows if row.method not in SORTED_AFTERWARDS] for rows in tables]
    if any(len(rows) < 3 for rows in trained):
        return Claim(claim.text, UNTESTED, "it takes three methods or more.")
    within = np.mean([_correlations(claim, rows) for rows in trained], axis=0)
    where = f"over {len(trained[0])} methods" if len(trained) == 1 else "within a world, on average"
    found = [(where, within)]
    if len(trained) > 1:
        every = [row for rows in trained for row in rows]
        found.append((f"over all {len(every)} methods and worlds", _correlations(claim, every)))
    ours, theirs = measure(claim.measure).title, measure(claim.rival).title
    words = "; ".join(f"{where} {ours} {mine:.2f}, {theirs} {other:.2f}" for where, (mine, other) in found)
    verdict = judge([bool(mine > other) for _, (mine, other) in found])
    return Claim(
        claim.text, verdict, f"rank correlation with {measure(claim.target).phrase} (sign reversed): {words}."
    )


def _correlations(claim: Correlated, rows: Sequence[MethodRow]) -> np.ndarray:
    """Return how well low values of the measure, and of its rival, go with high values of the target."""
    keys = (claim.measure, claim.rival, claim.target)
    return -np.corrcoef([stats.rankdata([row.mean(key) for row in rows]) for key in keys])[:2, 2]


def judge_ordered_by(claim: OrderedBy, result: ExperimentResult) -> Claim:
    """Return the claim judged for each of its methods."""
    rows = result.by_method()
    trained = [rows[name] for name in claim.methods if name in rows]
    outcomes = [row.mean(claim.measure) > row.mean(claim.rival) for row in trained]
    said = "; ".join(_quote_orders(claim, row) for row in trained) or "not trained"
    between = correlate_orders(from_json(dict(result.world)))
    found = f"where the two orders have rank correlation {between:.2f}: {said}."
    return Claim(claim.text, judge(outcomes), found)


def _quote_orders(claim: OrderedBy, row: MethodRow) -> str:
    keys = (claim.measure, claim.rival)
    numbers = [f"{measure(key).phrase} {format_interval(row.interval(key))}" for key in keys]
    return f"`{row.method}` {', '.join(numbers)}"


def judge_recovered(claim: Recovered, rows: Rows) -> Claim:
    """Return the claim judged: the whole interval of the method at the threshold, the rival's mean below."""
    ours, theirs = (rows[name].interval(claim.measure) for name in (claim.method, claim.rival))
    found = (
        f"the worst unit has an absolute cosine of {format_interval(ours)} with the principal direction of "
        f"its place; without the nested loss, {format_interval(theirs)}."
    )
    return Claim(claim.text, judge([ours.ends()[0] >= claim.threshold > theirs.mean]), found)


def format_interval(value: Interval) -> str:
    """Return a mean with its 95 % interval."""
    low, high = value.ends()
    return f"{_number(value.mean)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 0.01 else f"{value:.3g}"
