"""Claims held against results: verdicts, and the claims of a result judged by its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from osae.results.experiment import Claim, ExperimentResult
from osae.results.lm import LMResult

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "holds in part", "does not hold here", "cannot be tested here"

R = TypeVar("R", bound=ExperimentResult)


def judge(outcomes: Sequence[bool]) -> str:
    """Return the verdict on a claim that came out so in each case."""
    if not outcomes:
        return UNTESTED
    return HOLDS if all(outcomes) else PARTLY if any(outcomes) else FAILS


def judge_result(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim about the experiment with what was found and the verdict, from the numbers alone."""
    if isinstance(result, LMResult):
        from osae.experiments.lm.claims import judge_lm

        return judge_lm(result)
    from osae.experiments.worlds.claims import judge_world

    return judge_world(result)


def add_claims(result: R, *, conclusive: bool) -> R:
    """Return the result with its claims judged, if the run was long enough for verdicts."""
    return replace(result, claims=judge_result(result)) if conclusive else result
