"""A claim held against results: its words, what was found, and a verdict."""

from collections.abc import Sequence

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "holds in part", "does not hold here", "cannot be tested here"
ENOUGH_SEEDS = 3  # for a verdict: two are one pair, which has no interval
MATRYOSHKA = ("matryoshka-fixed", "matryoshka-random")


def state_claim(claim: str, verdict: str, found: str) -> dict[str, str]:
    """One claim with its verdict, as results keep it."""
    return {"claim": claim, "verdict": verdict, "found": found}


def judge(outcomes: Sequence[bool]) -> str:
    """Whether a claim holds that came out so in each case."""
    if not outcomes:
        return UNTESTED
    return HOLDS if all(outcomes) else PARTLY if any(outcomes) else FAILS
