"""Test claims against results: differences, verdicts, and the claims of each result.

A claim is a set of statements that some quantity is above zero, such as the lead of a method over a rival, or
of a mean over a threshold. Each is tested with the errors of both sides, and Holm's procedure corrects for
their number, so that a claim about equal methods is decided wrongly at most 5 % of the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from osae.metrics.statistics import Decision, Estimate, decide
from osae.results.base import count
from osae.results.experiment import Claim, ExperimentResult, Tested
from osae.results.lm import LMResult

HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold here"
UNDECIDED, UNTESTED = "undecided", "cannot be tested here"
TRUE, FALSE = "true", "false"
LM_START = "lm-start"  # the study of the start; its results have the same type as those on worlds

R = TypeVar("R", bound=ExperimentResult)


@dataclass(frozen=True)
class Statement:
    """A statement that a quantity, or each of several dependent quantities, is above zero.

    Nested prefixes are not independent evidence: they form one statement, which is true if it holds for each
    of them. `parts` are the quantities by name; a quantity without an error (a single pair of runs) is None.
    """

    about: str
    parts: Mapping[str, Estimate | None]

    def weigh(self) -> tuple[float, float]:
        """Return the p-values of all parts being above zero, and of one being below; 1 if one is unknown."""
        found = [part for part in self.parts.values() if part is not None]
        if len(found) < len(self.parts) or not found:
            return 1.0, 1.0
        above = max(part.p_value() if part.mean > 0 else 1.0 for part in found)
        return above, min(1.0, len(found) * min(part.p_value() if part.mean < 0 else 1.0 for part in found))

    def find_weakest(self) -> tuple[str, Estimate] | None:
        """Return the part that supports the statement least, with its name; None if no part is known."""
        known = [(name, part) for name, part in self.parts.items() if part is not None]
        return min(known, key=lambda item: _strength(item[1]), default=None)


@dataclass(frozen=True)
class Somewhere:
    """A statement that holds in at least one of several cases, such as at some prefix.

    A case that holds is one of many that were looked at, so its p-value is multiplied by their number. The
    statement is false only if every case is.
    """

    about: str
    cases: Sequence[Statement]

    def weigh(self) -> tuple[float, float]:
        """Return the p-values of the statement being true, and of its being false."""
        above, below = zip(*(case.weigh() for case in self.cases), strict=True)
        return min(1.0, len(above) * min(above)), max(below)

    def find_best(self) -> Statement:
        """Return the case with the strongest support."""
        return max(self.cases, key=_compare)

    def find_weakest(self) -> tuple[str, Estimate] | None:
        """Return the weakest part of the best case, with its name; None if no part is known."""
        best = self.find_best()
        found = best.find_weakest()
        return found and (f"{best.about}, {found[0]}", found[1])


AnyStatement = Statement | Somewhere


def _compare(case: Statement) -> float:
    """Return how much better the data support a statement than its opposite."""
    above, below = case.weigh()
    return below - above


def _strength(part: Estimate) -> float:
    """Return how strongly a part supports its statement."""
    return (1 - part.p_value()) * (1 if part.mean > 0 else -1)


def shift(found: Estimate | None, by: float) -> Estimate | None:
    """Return the estimate plus a constant; None if there is no estimate."""
    return None if found is None else found.shifted(by)


def within(found: Estimate | None, low: float, high: float) -> dict[str, Estimate | None]:
    """Return the parts of a statement that a quantity lies between two limits."""
    if found is None:
        return {"": None}
    return {
        "above the lower limit": found.shifted(-low),
        "below the upper limit": found.reversed().shifted(high),
    }


def weigh_statements(statements: Sequence[AnyStatement]) -> tuple[Tested, ...]:
    """Test all statements together and return each with its outcome."""
    weights = [statement.weigh() for statement in statements]
    p_values = [min(both) for both in weights]
    decisions = decide(p_values, [below - above for above, below in weights])
    return tuple(map(_describe, statements, decisions, p_values))


def _describe(statement: AnyStatement, decision: Decision, p_value: float) -> Tested:
    """Return the statement as stored in results: its weakest part, and the outcome."""
    outcome = TRUE if decision.above else FALSE if decision.below else UNDECIDED
    if (weakest := statement.find_weakest()) is None:
        return Tested(statement.about, outcome)
    name, part = weakest
    return Tested(statement.about, outcome, name, part.mean, *part.ends(), p_value)


def judge(tested: Sequence[Tested], *, somewhere: bool = False) -> str:
    """Return the verdict on a claim, given the outcomes of its statements.

    A claim that something happens `somewhere` needs a single true statement, and fails only if all are false.
    """
    outcomes = [one.outcome for one in tested]
    if not outcomes:
        return UNTESTED
    if somewhere:
        return HOLDS if TRUE in outcomes else FAILS if set(outcomes) == {FALSE} else UNDECIDED
    if TRUE in outcomes:
        return HOLDS if set(outcomes) == {TRUE} else PARTLY
    return FAILS if FALSE in outcomes else UNDECIDED


def count_outcomes(tested: Sequence[Tested], noun: str) -> str:
    """Describe how often the claim was true, false or undecided."""
    total = len(tested)
    counts = {word: sum(one.outcome == word for one in tested) for word in (TRUE, FALSE, UNDECIDED)}
    if counts[TRUE] == total:
        return f"True in the only {noun}." if total == 1 else f"True in all {count(total, noun)}."
    rest = ", ".join(f"{word} in {number}" for word, number in counts.items() if number and word != TRUE)
    return f"True in {counts[TRUE]} of {count(total, noun)}, {rest}."


def quote_margins(tested: Sequence[Tested]) -> str:
    """Return by how much each statement is true, with its interval; negative if it is false.

    Of several dependent quantities, such as nested prefixes, the weakest is quoted.
    """
    known = [one for one in tested if one.mean is not None and one.low is not None and one.high is not None]
    if not known:
        return ""
    said = [
        f"{one.about}{f', {one.part}' if one.part else ''} {one.mean:+.3f} [{one.low:.3f}, {one.high:.3f}]"
        for one in known
    ]
    return f" {'Margin' if len(said) == 1 else 'Margins'}: {'; '.join(said)}."


def judge_result(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim about the experiment with its finding and verdict, from the numbers alone."""
    if isinstance(result, LMResult):
        from osae.experiments.lm.claims import judge_lm

        return judge_lm(result)
    if result.experiment == LM_START:
        from osae.experiments.lm.start_claims import judge_start

        return judge_start(result)
    from osae.experiments.worlds.claims import judge_world

    return judge_world(result)


def add_claims(result: R, *, conclusive: bool) -> R:
    """Return the result, with its claims judged if the run was long enough for verdicts."""
    return replace(result, claims=judge_result(result)) if conclusive else result
