"""What is said of language models, by the paper and by us, held against the results.

`CLAIMS` lists the claims as data; `judge_lm` judges them by the numbers. The paper trains from noise: where
that was done, its claims are judged there, and other starts are only reported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import assert_never

from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNTESTED, judge
from osae.experiments.methods import (
    BATCHTOPK,
    MATRYOSHKA,
    MATRYOSHKA_FIXED,
    MATRYOSHKA_RANDOM,
    NOISE,
    OSAE,
    OSAE_PAPER,
    TOPK,
    TOPK_SORTED,
)
from osae.recipes import group_ends
from osae.results.experiment import Claim, MethodRow, PublishedRow
from osae.results.lm import SHARES, Curve, Curves, LMResult, Place

NEAR_ZERO, NEAR_ONE, SAME_SEED, CLOSE = 0.15, 0.95, 0.75, 0.01
BOTH = ("orderedness", "stability")


class Starts(Enum):
    """Which starts a claim is judged from."""

    NOISE_FIRST = auto()  # noise where it was tried, or else every start
    NOISE_ONLY = auto()
    EVERY = auto()


@dataclass(frozen=True)
class Case:
    """How a claim comes out in one case: for which start, in each comparison, and in words."""

    start: str
    outcomes: tuple[bool, ...]
    words: str


@dataclass(frozen=True)
class Compared:
    """A claim about a method and its rivals that is judged case by case.

    `find` yields the cases. `thresholds` are limits, one for each measure if there are several. The text may
    mention {first}, the units of the first group; `lead`, which goes before what was found, {tokens}.
    """

    text: str
    find: "Callable[[Compared, LMResult], Iterable[Case]]"
    method: str
    rivals: tuple[str, ...] = ()
    measures: tuple[str, ...] = BOTH
    thresholds: tuple[float, ...] = ()
    starts: Starts = Starts.NOISE_FIRST
    untested: str = "not all of the methods were trained."
    lead: str = ""
    tail: str = ""

    @property
    def methods(self) -> set[str]:
        """The method and its rivals."""
        return {self.method, *self.rivals}


@dataclass(frozen=True)
class AlwaysAbove:
    """A claim that a curve lies above its rivals' from a prefix length on (None: that of the first group)."""

    text: str
    method: str
    rivals: tuple[str, ...]
    measure: str
    since: int | None = None
    by_start: bool = False  # judged from noise, where that was tried; or else from every start


LMClaim = Compared | AlwaysAbove


def judge_lm(result: LMResult) -> tuple[Claim, ...]:
    """Return every claim, what was found, and the verdict."""
    return tuple(_judge_claim(claim, result) for claim in CLAIMS)


def _judge_claim(claim: LMClaim, result: LMResult) -> Claim:
    match claim:
        case Compared():
            return judge_compared(claim, result)
        case AlwaysAbove():
            return judge_above(claim, result)
        case _:
            assert_never(claim)


def judge_compared(claim: Compared, result: LMResult) -> Claim:
    """Return the claim judged by its cases."""
    text = claim.text.format(first=_first_group(result))
    cases = list(claim.find(claim, result))
    noise = [case for case in cases if case.start == NOISE]
    shown = noise if claim.starts is Starts.NOISE_ONLY else cases
    judged = cases if claim.starts is Starts.EVERY else noise or shown
    outcomes = [outcome for case in judged for outcome in case.outcomes]
    if not outcomes:
        return Claim(text, UNTESTED, claim.untested)
    words = "; ".join(case.words for case in shown)
    return Claim(text, judge(outcomes), f"{claim.lead.format(tokens=_tokens(result))}{words}{claim.tail}.")


def _first_group(result: LMResult) -> int:
    """Return the number of units in Matryoshka's first group."""
    return group_ends(result.world["units"], result.groups)[0]


def _tokens(result: LMResult) -> str:
    """Return the moments of training, in tokens."""
    moments = result.progressions[0].moments if result.progressions else ()
    return ", ".join(f"{moment.tokens:,}" for moment in moments)


# --- a curve above others ---------------------------------------------------------------------------


def judge_above(claim: AlwaysAbove, result: LMResult) -> Claim:
    """Return the claim judged over all places, or over those of each start."""
    first = _first_group(result)
    text, since = claim.text.format(first=first), claim.since or first
    if not claim.by_start:
        return Claim(text, *_compare_curves(claim, result, result.places(), since))
    starts = sorted({place.start for place in result.places()}, key=lambda start: start != NOISE)
    found = {
        start: _compare_curves(claim, result, [p for p in result.places() if p.start == start], since)
        for start in starts
    }
    verdict = found[starts[0]][0] if starts else UNTESTED
    said = " ".join(f"Start from {start}: {words}" for start, (_, words) in found.items())
    return Claim(text, verdict, said or "nothing was trained.")


def _compare_curves(
    claim: AlwaysAbove, result: LMResult, places: Sequence[Place], since: int
) -> tuple[str, str]:
    """Return the verdict over some places, and the numbers in words."""
    won, clear, lost = 0, 0, []
    for place, rival, ours, theirs in _pair_curves(claim, result, places):
        for i, length in enumerate(ours.prefix):
            mine, other = ours.mean[i], theirs.mean[i]
            if length >= since and mine > other:
                won, clear = won + 1, clear + is_clearly_above(ours, theirs, i)
            elif length >= since:
                words = f"`{rival}` at {length} units ({place}): {mine:.3f} against {other:.3f}"
                lost.append((other - mine, words))
    if not won and not lost:
        return UNTESTED, "the methods were not trained."
    found = (
        f"above in {won} of {won + len(lost)} comparisons (lengths, rivals and places), in {clear} of them "
        "with intervals that do not overlap"
    )
    if lost:
        return PARTLY if won else FAILS, f"{found}; furthest behind {max(lost)[1]}."
    if absent := [name for name in claim.rivals if not any(name in result.curves_at(p) for p in places)]:
        return UNTESTED, f"{found}; not trained: {', '.join(absent)}."
    return HOLDS, f"{found}."


def _pair_curves(
    claim: AlwaysAbove, result: LMResult, places: Sequence[Place]
) -> Iterator[tuple[Place, str, Curve, Curve]]:
    """Yield each place and rival, with the curves of the method and of the rival there."""
    for place in places:
        by_method = result.curves_at(place)
        for rival in claim.rivals:
            if claim.method in by_method and rival in by_method:
                yield place, rival, by_method[claim.method][claim.measure], by_method[rival][claim.measure]


def is_clearly_above(ours: Curve, theirs: Curve, i: int) -> bool:
    """Return whether one interval lies above the other; a single pair of seeds has none, and says nothing."""
    (low, high), (other_low, other_high) = ours.at(i).ends(), theirs.at(i).ends()
    return low < high and other_low < other_high and low > other_high


# --- agreement of seeds on one text -----------------------------------------------------------------


def _places_with(claim: Compared, result: LMResult) -> Iterator[tuple[Place, Mapping[str, Curves]]]:
    """Yield each place where all methods of the claim were trained, with its curves by method."""
    for place in result.places():
        by_method = result.curves_at(place)
        if claim.methods <= set(by_method):
            yield place, by_method


def _within_first_group(curve: Curve, result: LMResult) -> list[int]:
    """Return the index of the longest prefix within the first group; none if no prefix is so short.

    On a few units, chance alone gives large correlations.
    """
    first = _first_group(result)
    return [i for i, length in enumerate(curve.prefix) if length <= first][-1:]


def find_near_zero(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the measure is near zero inside the first group."""
    for place, by_method in _places_with(claim, result):
        for measure in claim.measures:
            curve = by_method[claim.method][measure]
            for i in _within_first_group(curve, result):
                value = curve.mean[i]
                words = f"{measure} {value:.3f} at {curve.prefix[i]} units ({place})"
                yield Case(place.start, (abs(value) <= claim.thresholds[0],), words)


def find_falling(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the stability of the first group is above that of the whole dictionary."""
    for place, by_method in _places_with(claim, result):
        within, full = (by_method[claim.method][measure] for measure in claim.measures)
        for i in _within_first_group(within, result):
            words = (
                f"{within.mean[i]:.3f} at {within.prefix[i]} units, {within.mean[-1]:.3f} at all units; "
                f"with units matched over the whole dictionary {full.mean[i]:.3f} and {full.mean[-1]:.3f} "
                f"({place})"
            )
            yield Case(place.start, (within.mean[i] > within.mean[-1],), words)


def find_crossover(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether a method is ahead of its last rival in the first group, and behind all at the end."""
    (measure,), rivals = claim.measures, claim.rivals
    for place, by_method in _places_with(claim, result):
        ours = by_method[claim.method][measure]
        others = [by_method[rival][measure] for rival in rivals]
        for i in _within_first_group(ours, result):
            early, late = others[-1].mean[i], [other.mean[-1] for other in others]
            words = (
                f"{ours.mean[i]:.3f} against {early:.3f} at {ours.prefix[i]} units, {ours.mean[-1]:.3f} "
                f"against {' and '.join(f'{mean:.3f}' for mean in late)} at all units ({place})"
            )
            yield Case(place.start, (ours.mean[i] > early, ours.mean[-1] < min(late)), words)


# --- error ------------------------------------------------------------------------------------------


def find_less(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the method's measure is below that of all rivals."""
    for place, ours, others in _table_means(claim, result):
        words = f"{ours:.4f} against {' and '.join(f'{other:.4f}' for other in others)} ({place.title})"
        yield Case(place.start, (ours < min(others),), words)


def find_close(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the method's measure is at most the threshold below that of all rivals."""
    for place, ours, others in _table_means(claim, result):
        words = f"{ours:.4f} against {' and '.join(f'{other:.4f}' for other in others)} ({place.title})"
        yield Case(place.start, (max(others) - ours <= claim.thresholds[0],), words)


def _table_means(claim: Compared, result: LMResult) -> Iterator[tuple[Place, float, list[float]]]:
    """Yield each place with the measure of the method and of its rivals in the place's table."""
    (measure,) = claim.measures
    for place in result.places():
        section = result.section_of(place)
        rows = section.by_method() if section else {}
        means = {name: row.mean(measure) for name, row in rows.items() if measure in row.measures}
        if claim.methods <= set(means):
            yield place, means[claim.method], [means[name] for name in claim.rivals]


# --- across texts -----------------------------------------------------------------------------------


def find_cost(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the loss from one text to two lies between the thresholds, in every measure."""
    least, most = claim.thresholds
    for one in [crossing for crossing in result.crossings if crossing.method == claim.method]:
        found = [(place, by_method[claim.method]) for place, by_method in _places_with(claim, result)]
        same = [curves for place, curves in found if place.start == one.start]
        if not same:
            continue
        costs = [
            sum(curves[measure].mean[-1] for curves in same) / len(same) - one.other_seed[measure].mean[-1]
            for measure in claim.measures
        ]
        words = f"{' and '.join(f'{cost:.3f}' for cost in costs)} (start from {one.start})"
        yield Case(one.start, (all(least <= cost <= most for cost in costs),), words)


def find_above_across(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether different seeds agree more across texts than those of the rival."""
    (measure,), (rival,) = claim.measures, claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if claim.methods <= set(by_method):
            ours, theirs = (by_method[name].other_seed[measure].mean[-1] for name in (claim.method, rival))
            words = f"{ours:.3f} against {theirs:.3f} (start from {start})"
            yield Case(start, (ours > theirs,), words)


def find_same_seed(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield the agreement of the same seed across texts, and whether the method reaches the thresholds."""
    for one in result.crossings:
        means = [one.same_seed[measure].mean[-1] for measure in claim.measures]
        reached = tuple(mean >= limit for mean, limit in zip(means, claim.thresholds, strict=True))
        words = f"`{one.method}` {' and '.join(f'{mean:.3f}' for mean in means)}"
        yield Case(one.start, reached if one.method == claim.method else (), words)


def find_seed_gain(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the same seed adds more to the agreement across texts than it adds for the rival."""
    (rival,) = claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if not claim.methods <= set(by_method):
            continue
        gains = {
            measure: [
                by_method[name].same_seed[measure].mean[-1] - by_method[name].other_seed[measure].mean[-1]
                for name in (claim.method, rival)
            ]
            for measure in claim.measures
        }
        words = ", ".join(
            f"{name} {ours:+.3f} against {theirs:+.3f}" for name, (ours, theirs) in gains.items()
        )
        yield Case(start, tuple(ours > theirs for ours, theirs in gains.values()), words)


# --- in the course of training ----------------------------------------------------------------------


def find_own_start(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the order of the whole dictionary stays that of its start."""
    for one in result.own_starts:
        if one.method in claim.methods:
            means = {measure: one.curves[measure].mean[-1] for measure in claim.measures}
            stays = means[claim.measures[0]] >= claim.thresholds[0]
            numbers = ", ".join(f"{measure} {mean:.3f}" for measure, mean in means.items())
            words = f"`{one.method}`, {one.place.text}: {numbers}"
            yield Case(one.place.start, (stays,) if one.method == claim.method else (), words)


def find_growing(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the agreement of two seeds grows from each moment of training to the next."""
    for one in result.progressions:
        if one.method == claim.method:
            for measure in claim.measures:
                values = [moment.values[measure][-1] for moment in one.moments]
                course = ", ".join(f"{value:.3f}" for value in values)
                grows = all(a < b for a, b in pairwise(values))
                yield Case(one.place.start, (grows,), f"{measure} ({one.place.text}) {course}")


# --- stitching --------------------------------------------------------------------------------------


def find_fewer_novel(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether fewer units are novel to a method than to its rivals; the first rival must be there."""
    rows = result.stitching.rows if result.stitching else ()
    novel = {row.method: row.mean("novel") for row in rows}
    if claim.method in novel and claim.rivals[0] in novel:
        fewer = tuple(novel[claim.method] < novel[rival] for rival in claim.rivals if rival in novel)
        yield Case("", fewer, "; ".join(_quote_shares(row) for row in rows))


def _quote_shares(row: MethodRow) -> str:
    paper = f" (paper {_shares(row.paper)})" if row.paper else ""
    return f"`{row.method}` {_shares(row)}{paper}"


def _shares(row: MethodRow | PublishedRow) -> str:
    return " / ".join(f"{row.measures[key]:.3f}" for key in SHARES)


# --- the claims -------------------------------------------------------------------------------------

OUR_RIVALS = (TOPK_SORTED, *MATRYOSHKA, OSAE_PAPER)
WHOLE = ", whole dictionary"
CLAIMS: tuple[LMClaim, ...] = (
    AlwaysAbove(
        "Orderedness of O-SAE is above both Matryoshka kinds at every prefix from {first} units on.",
        OSAE_PAPER,
        MATRYOSHKA,
        "orderedness",
        by_start=True,
    ),
    Compared(
        "Fixed Matryoshka has no order inside its first group of {first} units.",
        find_near_zero,
        MATRYOSHKA_FIXED,
        measures=("orderedness",),
        thresholds=(NEAR_ZERO,),
        untested="it was not trained, or no prefix is so short.",
    ),
    Compared(
        "Stability of O-SAE is high for early units and falls later.",
        find_falling,
        OSAE_PAPER,
        measures=("stability", "stability_of_full"),
        untested="no O-SAE was trained, or no prefix is as short as a group.",
    ),
    Compared(
        "O-SAE is more stable than random Matryoshka on the first units, and less stable than both "
        "Matryoshka kinds on the whole dictionary.",
        find_crossover,
        OSAE_PAPER,
        MATRYOSHKA,
        measures=("stability",),
        untested="O-SAE and both Matryoshka kinds were not all trained.",
    ),
    Compared(
        "O-SAE explains slightly less of the variance than both Matryoshka kinds.",
        find_less,
        OSAE_PAPER,
        MATRYOSHKA,
        measures=("explained_variance",),
        untested="O-SAE and both Matryoshka kinds were not all trained.",
    ),
    Compared(
        "Training on another text costs 0.1 to 0.2 in orderedness and stability.",
        find_cost,
        OSAE_PAPER,
        thresholds=(0.1, 0.2),
        untested="it needs two texts, and an O-SAE trained on both.",
        tail=WHOLE,
    ),
    Compared(
        "Across texts and seeds, O-SAE is more ordered than random Matryoshka.",
        find_above_across,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("orderedness",),
        untested="it needs two texts, and both methods trained on them.",
        tail=WHOLE,
    ),
    Compared(
        "With the same seed from noise, O-SAEs of two texts have nearly the same order (paper: near 1.0; "
        f"here: at least {NEAR_ONE}) and stability 0.8 (here: at least {SAME_SEED}).",
        find_same_seed,
        OSAE_PAPER,
        thresholds=(NEAR_ONE, SAME_SEED),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, where a seed fixes the start.",
        lead="orderedness and stability of the whole dictionary: ",
    ),
    Compared(
        "From noise, using the same seed on two texts helps O-SAE more than random Matryoshka.",
        find_seed_gain,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, with both methods.",
        tail=WHOLE,
    ),
    Compared(
        "The late units of O-SAE hardly leave their start: from noise, the whole dictionary keeps the order "
        f"of its start (here: at least {NEAR_ONE}).",
        find_own_start,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        thresholds=(NEAR_ONE,),
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="compared with its own start, ",
    ),
    Compared(
        "From noise, orderedness and stability of O-SAE tend to grow during training.",
        find_growing,
        OSAE_PAPER,
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="whole dictionary, two seeds, after {tokens} tokens: ",
    ),
    Compared(
        "Of a larger SAE's units, fewer are novel to a smaller O-SAE than to a BatchTopK or Matryoshka SAE.",
        find_fewer_novel,
        OSAE_PAPER,
        (BATCHTOPK, MATRYOSHKA_RANDOM),
        measures=SHARES,
        untested="no larger BatchTopK SAE and O-SAE were trained.",
        lead="novel / reconstruction / no change: ",
    ),
    *(
        AlwaysAbove(
            f"{measure.capitalize()} of `osae` is above TopK sorted afterwards, both Matryoshka kinds and "
            "`osae-paper`, from the same start, at every prefix from 64 units on (our own claim).",
            OSAE,
            OUR_RIVALS,
            measure,
            since=64,
        )
        for measure in BOTH
    ),
    Compared(
        f"`osae` explains at most {CLOSE} less of the variance than TopK from the same start (our own "
        "claim).",
        find_close,
        OSAE,
        (TOPK,),
        measures=("explained_variance",),
        thresholds=(CLOSE,),
        starts=Starts.EVERY,
        untested="`osae` and TopK were not both trained.",
    ),
)
