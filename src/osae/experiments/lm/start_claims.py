"""Test claims about SAEs and their start, the paper's and ours, against the study of the start."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from osae.experiments.claims import (
    UNTESTED,
    Statement,
    count_outcomes,
    judge,
    quote_margins,
    shift,
    weigh_statements,
)
from osae.experiments.methods import MATRYOSHKA_RANDOM, OSAE_PAPER
from osae.metrics.statistics import difference, estimate
from osae.results.experiment import Claim, ExperimentResult, MethodRow

NEAR_ONE, SAME_SEED = 0.95, 0.75
Found = Iterator[tuple[Statement, str]]  # the statement to test, and its numbers in words


@dataclass(frozen=True)
class Condition:
    """How the SAEs of one table are trained: the learning rate, and whether AuxK revives units."""

    rate: float
    auxk: bool

    @property
    def revival(self) -> str:
        """Whether AuxK revives units, in words."""
        return f"{'with' if self.auxk else 'without'} AuxK"

    @property
    def title(self) -> str:
        """The heading of its table."""
        return f"rate {self.rate:g}, {self.revival}"


Rows = dict[Condition, MethodRow]  # of one method


@dataclass(frozen=True)
class StartClaim:
    """A claim, and a function that finds its statements in the rows of each of its methods."""

    text: str
    find: Callable[..., Found]
    methods: tuple[str, ...] = (OSAE_PAPER,)


def judge_start(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim, with the findings and the verdict."""
    return tuple(_judge(claim, result) for claim in CLAIMS)


def _judge(claim: StartClaim, result: ExperimentResult) -> Claim:
    found = list(claim.find(*(_rows_of(method, result) for method in claim.methods)))
    if not found:
        return Claim(claim.text, UNTESTED, f"not trained in enough ways: {', '.join(claim.methods)}.")
    tested = weigh_statements([statement for statement, _ in found])
    words = "; ".join(words for _, words in found)
    found = f"{words}. {count_outcomes(tested, 'comparison')}{quote_margins(tested)}"
    return Claim(claim.text, judge(tested), found, tested)


def _rows_of(method: str, result: ExperimentResult) -> Rows:
    """Return the rows of a method by the condition of their table, lowest rate first."""
    sections = {section.title: section for section in result.sections}
    rates = sorted({section.x for section in result.sections if section.x is not None})
    tables = {
        condition: sections[condition.title].by_method()
        for condition in itertools.starmap(Condition, itertools.product(rates, (True, False)))
        if condition.title in sections
    }
    return {condition: rows[method] for condition, rows in tables.items() if method in rows}


def find_same_seed(rows: Rows) -> Found:
    """Yield whether the same seed reaches the paper's agreement across texts."""
    for condition, row in rows.items():
        title = condition.title
        order, stable = row.interval("orderedness_texts"), row.interval("stability_texts")
        parts = {
            "orderedness": shift(estimate(order), -NEAR_ONE),
            "stability": shift(estimate(stable), -SAME_SEED),
        }
        yield Statement(title, parts), f"{title}: {order.mean:.3f} and {stable.mean:.3f}"


def find_own_start(rows: Rows) -> Found:
    """Yield whether SAEs keep the order of their start."""
    for condition, row in rows.items():
        title = condition.title
        order, stable = row.interval("orderedness_start"), row.interval("stability_start")
        words = f"{title}: orderedness {order.mean:.3f}, stability {stable.mean:.3f}"
        yield Statement(title, {"": shift(estimate(order), -NEAR_ONE)}), words


def find_own_start_lead(rows: Rows, rival: Rows) -> Found:
    """Yield whether SAEs keep more of the order of their start than those of a rival."""
    for condition, row in rows.items():
        if other := rival.get(condition):
            mine, theirs = (one.interval("orderedness_start") for one in (row, other))
            words = f"{condition.title}: {mine.mean:.3f} against {theirs.mean:.3f}"
            yield Statement(condition.title, {"": difference(mine, theirs)}), words


def find_late_unused(rows: Rows) -> Found:
    """Yield whether the last group has more unused units than the first."""
    for condition, row in rows.items():
        title = condition.title
        ends = sorted(int(key.removeprefix("unused_")) for key in row.measures if key.startswith("unused_"))
        first, last = (row.interval(f"unused_{end}") for end in (ends[0], ends[-1]))
        words = f"{title}: {first.mean:.3f} of the first {ends[0]} units, {last.mean:.3f} of the last group"
        yield Statement(title, {"": difference(last, first)}), words


def find_auxk(rows: Rows) -> Found:
    """Yield whether SAEs keep more of their start without AuxK, at each rate."""
    for condition, row in rows.items():
        if condition.auxk and (other := rows.get(replace(condition, auxk=False))):
            mine, theirs = row.interval("orderedness_start"), other.interval("orderedness_start")
            rate = f"rate {condition.rate:g}"
            yield (
                Statement(rate, {"": difference(theirs, mine)}),
                f"{rate}: {theirs.mean:.3f}, with it {mine.mean:.3f}",
            )


def find_rates(rows: Rows) -> Found:
    """Yield whether the same seed agrees more across texts at the lower of two rates."""
    for auxk in (True, False):
        mine = [(condition.title, row) for condition, row in rows.items() if condition.auxk == auxk]
        for (low, one), (high, other) in itertools.pairwise(mine):
            lower, higher = one.interval("orderedness_texts"), other.interval("orderedness_texts")
            words = f"{low}: {lower.mean:.3f}, {high}: {higher.mean:.3f}"
            yield Statement(f"{low} and {high}", {"": difference(lower, higher)}), words


CLAIMS = (
    StartClaim(
        "With the same seed, O-SAEs of two texts have nearly the same order (paper: near 1.0; here: at least "
        f"{NEAR_ONE}) and stability 0.8 (here: at least {SAME_SEED}), whatever the rate.",
        find_same_seed,
    ),
    StartClaim(
        "The late units of O-SAE hardly leave their start: the whole dictionary keeps its order (here: at "
        f"least {NEAR_ONE}), whatever the rate.",
        find_own_start,
    ),
    StartClaim(
        "The whole dictionary of O-SAE keeps more of the order of its start than that of random Matryoshka, "
        "whatever the rate.",
        find_own_start_lead,
        (OSAE_PAPER, MATRYOSHKA_RANDOM),
    ),
    StartClaim(
        "Fewer late units than early ones of O-SAE are used (the paper's explanation).", find_late_unused
    ),
    StartClaim("Without AuxK, O-SAE keeps more of the order of its start (our own claim).", find_auxk),
    StartClaim(
        "The lower the rate, the more the same seed agrees across texts (our own claim).",
        find_rates,
    ),
)
