"""Test claims about synthetic worlds, the paper's and ours, against the results.

`CLAIMS` lists the claims about each experiment as data; `judge_world` judges them by the numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

import numpy as np
from scipy import stats

from osae.config import from_json
from osae.experiments.claims import (
    UNTESTED,
    Statement,
    count_outcomes,
    judge,
    quote_margins,
    shift,
    weigh_statements,
    within,
)
from osae.experiments.methods import (
    BATCHTOPK,
    MATRYOSHKA,
    NO_SWEEPING,
    NO_WARMUP,
    ORDERED,
    OSAE,
    OSAE_ALIGNED,
    OSAE_PAPER,
    OSAE_SWEPT,
    OSAE_SWEPT_RESTARTING,
    PLAIN,
    SOON_SPARSE,
    SORTED_AFTERWARDS,
    SORTED_BY_GAIN,
    SWEPT_NO_SWEEPING,
    TOPK,
    TOPK_OUR_SETTINGS,
    TOPK_SORTED_BY_GAIN,
    VANILLA,
    WITH_SPLITTING,
)
from osae.experiments.published import TABLE_1_MEASURES
from osae.experiments.worlds.orders import correlate_orders
from osae.experiments.worlds.theory_claims import judge_theory
from osae.measures import measure
from osae.metrics.statistics import Estimate, difference, estimate, estimate_runs
from osae.results.base import Interval, count
from osae.results.experiment import Claim, ExperimentResult, MethodRow, Section

BASELINES = (TOPK, *MATRYOSHKA)
NEAR, COMPARABLE, NO_ORDER, LOW_SKEW = 0.85, 0.05, 0.2, 0.5

Rows = Mapping[str, MethodRow]


class Kind(Enum):
    """How a method is compared."""

    AHEAD = auto()  # better than each rival
    ABOVE = auto()  # above each rival, whichever direction is better
    CLOSE = auto()  # at most the threshold worse than each rival
    AT_LEAST = auto()  # the method and each rival are above the threshold
    NEAR_ZERO = auto()  # the method and each rival are within the threshold


@dataclass(frozen=True)
class Compared:
    """A claim about the measures of a method and its rivals, in every table within a range of exponents."""

    text: str
    kind: Kind
    method: str
    rivals: tuple[str, ...]
    measures: tuple[str, ...]
    threshold: float = 0.0
    above: float = -math.inf  # exponents of the tables that the claim is about
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
    """A claim that low values of one measure go with high values of another, more so than for a rival."""

    text: str
    measure: str
    rival: str
    target: str

    @property
    def keys(self) -> tuple[str, str, str]:
        """The measure, its rival and the target."""
        return self.measure, self.rival, self.target


@dataclass(frozen=True)
class OrderedBy:
    """A claim that methods score higher on one measure of order than on a rival measure."""

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
        "O-SAE is more stable than TopK and both Matryoshka variants (paper: 0.664 across seeds, others "
        "at most 0.572; 0.814 to the truth, others at most 0.502).",
        Kind.AHEAD,
        OSAE_PAPER,
        BASELINES,
        ("stability_pairs", "stability_truth"),
    ),
    Compared(
        "O-SAE is more ordered than TopK and both Matryoshka variants (paper: 0.734 to the truth, others "
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
        "`osae` is more ordered than both Matryoshka variants, `osae-paper` and TopK sorted by gain "
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
        "At low skew, stability to the truth and across seeds is near 0.9 for O-SAE, TopK and both "
        f"Matryoshka variants (here: at least {NEAR}).",
        Kind.AT_LEAST,
        OSAE_PAPER,
        BASELINES,
        ("stability_truth", "stability_pairs"),
        NEAR,
        up_to=LOW_SKEW,
    ),
    Compared(
        f"As skew rises, the stability of O-SAE stays competitive (here: at most {COMPARABLE} behind the "
        "best of TopK and Matryoshka).",
        Kind.CLOSE,
        OSAE_PAPER,
        BASELINES,
        ("stability_truth", "stability_pairs"),
        COMPARABLE,
    ),
    Compared(
        "The order of O-SAE correlates with the true order at any skew (paper: about 0.5 at low skew, "
        "positive throughout; with exponent 0 there is no order to find).",
        Kind.AT_LEAST,
        OSAE_PAPER,
        (),
        ("orderedness_truth",),
        above=0.0,
    ),
    Compared(
        "Across seeds too, O-SAE is more ordered than TopK and vanilla SAEs.",
        Kind.AHEAD,
        OSAE_PAPER,
        (TOPK, VANILLA),
        ("orderedness_pairs",),
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
    # at our settings
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
BUDGETS = tuple(
    Compared(
        f"After {count(epochs, 'epoch')}, O-SAE has the paper's rank: it is more stable and more "
        f"ordered than TopK and both Matryoshka variants, with less error ({which} with splitting).",
        Kind.AHEAD,
        names[OSAE_PAPER],
        tuple(names[name] for name in BASELINES),
        TABLE_1_MEASURES,
        above=epochs - 0.5,
        up_to=epochs,
    )
    for which, names in (("none", {name: name for name in WITH_SPLITTING}), ("all", WITH_SPLITTING))
    for epochs in (1, 3, 10, 25)
)
SCHEDULES = (
    Compared(
        "Unit sweeping improves stability and ordered recovery (as the paper describes it: weights that fall "
        "exponentially, a short burn-in, a constant rate; with k warmed up over the first half of training).",
        Kind.AHEAD,
        OSAE_SWEPT,
        (SWEPT_NO_SWEEPING,),
        ("stability_truth", "orderedness_truth"),
    ),
    Compared(
        "The same with prefixes that start behind the frozen units, as in nested dropout.",
        Kind.AHEAD,
        OSAE_SWEPT_RESTARTING,
        (SWEPT_NO_SWEEPING,),
        ("stability_truth", "orderedness_truth"),
    ),
    Compared(
        "Unit sweeping improves stability and ordered recovery (as the paper describes it, with k at its "
        "target before the first unit is frozen).",
        Kind.AHEAD,
        SOON_SPARSE[OSAE_SWEPT],
        (SOON_SPARSE[SWEPT_NO_SWEEPING],),
        ("stability_truth", "orderedness_truth"),
    ),
    Compared(
        "The same with prefixes that start behind the frozen units, and k at its target before the first "
        "unit is frozen.",
        Kind.AHEAD,
        SOON_SPARSE[OSAE_SWEPT_RESTARTING],
        (SOON_SPARSE[SWEPT_NO_SWEEPING],),
        ("stability_truth", "orderedness_truth"),
    ),
    Compared(
        "Unit sweeping improves stability and ordered recovery (with equal weights and a rate that falls).",
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
HARD_RIVALS = (SORTED_BY_GAIN[TOPK], SORTED_BY_GAIN[BATCHTOPK], *MATRYOSHKA, OSAE_PAPER)
HARD = (
    Compared(
        "`osae-aligned` finds more of the truth than every other method (our own claim).",
        Kind.AHEAD,
        OSAE_ALIGNED,
        HARD_RIVALS,
        ("mcc_truth", "f1_truth"),
    ),
    Compared(
        "Runs of `osae-aligned` that share nothing but the recipe agree more than those of every other "
        "method (our own claim).",
        Kind.AHEAD,
        OSAE_ALIGNED,
        HARD_RIVALS,
        ("stability_pairs", "orderedness_pairs"),
    ),
    Compared(
        "`osae-aligned` explains as much as TopK (our own claim; here: at most 0.005 less).",
        Kind.CLOSE,
        OSAE_ALIGNED,
        (TOPK,),
        ("explained_variance",),
        0.005,
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
    "budgets": BUDGETS,
    "sizes": SIZES,
    "zipf": ZIPF,
    "schedules": SCHEDULES,
    "energy": ENERGY,
    "hard": HARD,
    "pca": PCA,
}


def judge_world(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim about an experiment on worlds, with the findings and the verdict."""
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
    """Judge the claim in every table that it is about."""
    tables = [(section.title, section.by_method()) for section in sections if claim.is_about(section)]
    if not tables:
        return Claim(claim.text, UNTESTED, "no such world was tried.")
    absent = dict.fromkeys(name for _, rows in tables for name in claim.methods if name not in rows)
    if absent:
        return Claim(claim.text, UNTESTED, f"not trained: {', '.join(absent)}.")
    tested = weigh_statements(
        [one for key in claim.measures for title, rows in tables for one in _state(claim, title, rows, key)]
    )
    said = [_quote_measure(claim, tables, key) for key in claim.measures]
    found = " ".join([*said, count_outcomes(tested, "comparison")])
    return Claim(claim.text, judge(tested), found, tested)


def _state(claim: Compared, title: str, rows: Rows, key: str) -> Iterator[Statement]:
    """Yield what the claim says about a measure in one table, as statements to test."""
    mine = rows[claim.method].interval(key)
    where = f", {title}" if title else ""
    for name in claim.rivals if claim.kind in (Kind.AHEAD, Kind.ABOVE, Kind.CLOSE) else claim.methods:
        theirs = rows[name].interval(key)
        about = f"{measure(key).phrase}: {claim.method} against {name}{where}"
        alone = f"{measure(key).phrase}: {name}{where}"
        match claim.kind:
            case Kind.AHEAD | Kind.CLOSE:
                ahead = shift(_orient(key, difference(mine, theirs)), claim.threshold)
                yield Statement(about, {"": ahead})
            case Kind.ABOVE:
                yield Statement(about, {"": difference(mine, theirs)})
            case Kind.AT_LEAST:
                yield Statement(alone, {"": shift(estimate(theirs), -claim.threshold)})
            case Kind.NEAR_ZERO:
                yield Statement(alone, within(estimate(theirs), -claim.threshold, claim.threshold))
            case _:
                assert_never(claim.kind)


def _orient(key: str, found: Estimate | None) -> Estimate | None:
    """Return the difference with its sign chosen so that positive values are better."""
    return found.reversed() if found is not None and measure(key).sign < 0 else found


def _quote_measure(claim: Compared, tables: Sequence[tuple[str, Rows]], key: str) -> str:
    """Describe the measure of the method and its rivals in every table."""
    phrase = measure(key).phrase
    head = phrase[0].upper() + phrase[1:]
    said = []
    for title, rows in tables:
        numbers = ", ".join(f"`{name}` {format_interval(rows[name].interval(key))}" for name in claim.methods)
        said.append(f"{title}: {numbers}." if title else f"{numbers}.")
    return " ".join([f"{head}: {said[0]}"] if not tables[0][0] else [f"{head}.", *said])


# --- other claims -----------------------------------------------------------------------------------


def judge_correlated(claim: Correlated, tables: Sequence[Sequence[MethodRow]]) -> Claim:
    """Judge the claim within each table, by the correlation over methods, seed by seed."""
    trained = [[row for row in rows if row.method not in SORTED_AFTERWARDS] for rows in tables]
    if any(len(rows) < 3 for rows in trained):
        return Claim(claim.text, UNTESTED, "it takes three methods or more.")
    ours, theirs = measure(claim.measure).title, measure(claim.rival).title
    statements, said = [], []
    for place, rows in enumerate(trained, 1):
        where = (
            f"over {len(rows)} methods" if len(trained) == 1 else f"world {place}, over {len(rows)} methods"
        )
        mine, other = _correlations(claim, [{key: row.mean(key) for key in claim.keys} for row in rows])
        said.append(f"{where} {ours} {mine:.2f}, {theirs} {other:.2f}")
        statements.append(Statement(f"{ours} against {theirs}, {where}", {"": _correlate_seeds(claim, rows)}))
    tested = weigh_statements(statements)
    found = f"rank correlation with {measure(claim.target).phrase} (sign reversed): {'; '.join(said)}."
    found += f" {count_outcomes(tested, 'world')}{quote_margins(tested)}"
    return Claim(claim.text, judge(tested), found, tested)


def _correlate_seeds(claim: Correlated, rows: Sequence[MethodRow]) -> Estimate | None:
    """Return how far the measure's correlation with the target is above its rival's, over seeds."""
    values = [{key: row.interval(key).values or {} for key in claim.keys} for row in rows]
    seeds = set.intersection(*(set(found) for by_key in values for found in by_key.values()))
    return estimate_runs(
        [
            float(
                np.subtract(*_correlations(claim, [{k: v[seed] for k, v in one.items()} for one in values]))
            )
            for seed in sorted(seeds)
        ]
    )


def _correlations(claim: Correlated, rows: Sequence[Mapping[str, float]]) -> np.ndarray:
    """Return how well low values of the measure, and of its rival, go with high values of the target.

    The correlation is 0 if all values are equal.
    """
    ranks = np.array([stats.rankdata([row[key] for row in rows]) for key in claim.keys])
    ranks -= ranks.mean(1, keepdims=True)
    lengths = np.linalg.norm(ranks, axis=1, keepdims=True)
    ranks /= np.where(lengths > 0, lengths, 1.0)
    return -ranks[:2] @ ranks[2]


def judge_ordered_by(claim: OrderedBy, result: ExperimentResult) -> Claim:
    """Judge the claim for each of its methods."""
    rows = result.by_method()
    trained = [rows[name] for name in claim.methods if name in rows]
    tested = weigh_statements(
        [
            Statement(
                f"`{row.method}`: {measure(claim.measure).phrase} against {measure(claim.rival).phrase}",
                {"": difference(row.interval(claim.measure), row.interval(claim.rival))},
            )
            for row in trained
        ]
    )
    said = "; ".join(_quote_orders(claim, row) for row in trained) or "not trained"
    between = correlate_orders(from_json(dict(result.world)))
    found = f"where the two orders have rank correlation {between:.2f}: {said}."
    return Claim(claim.text, judge(tested), found, tested)


def _quote_orders(claim: OrderedBy, row: MethodRow) -> str:
    keys = (claim.measure, claim.rival)
    numbers = [f"{measure(key).phrase} {format_interval(row.interval(key))}" for key in keys]
    return f"`{row.method}` {', '.join(numbers)}"


def judge_recovered(claim: Recovered, rows: Rows) -> Claim:
    """Judge whether the method is above the threshold and the rival below it."""
    ours, theirs = (rows[name].interval(claim.measure) for name in (claim.method, claim.rival))
    found = (
        f"the worst unit has an absolute cosine of {format_interval(ours)} with the principal direction of "
        f"its place; without the nested loss, {format_interval(theirs)}."
    )
    above, rival = shift(estimate(ours), -claim.threshold), estimate(theirs)
    below = None if rival is None else rival.reversed().shifted(claim.threshold)
    names = (claim.method, claim.rival)
    tested = weigh_statements(
        [Statement(name, {"": part}) for name, part in zip(names, (above, below), strict=True)]
    )
    return Claim(claim.text, judge(tested), found, tested)


def format_interval(value: Interval) -> str:
    """Return a mean with its 95 % interval, if it has one."""
    if value.low is None or value.high is None:
        return _number(value.mean)
    return f"{_number(value.mean)} [{_number(value.low)}, {_number(value.high)}]"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 0.01 else f"{value:.3g}"
