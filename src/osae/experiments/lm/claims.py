"""What is said of language models, by the paper and by us, held against the results.

`CLAIMS` lists the claims as data; `judge_lm` judges them by the numbers. The paper trains from noise: where
that was done, its claims are judged there, and other starts are only reported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from osae.experiments.claims import (
    FALSE,
    TRUE,
    UNTESTED,
    Statement,
    count_outcomes,
    judge,
    shift,
    weigh_statements,
    within,
)
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
from osae.metrics.statistics import (
    Estimate,
    difference,
    estimate,
    independent_difference,
    independent_mean,
)
from osae.recipes import group_ends
from osae.results.base import Interval, Number, as_interval
from osae.results.experiment import Claim, MethodRow, Tested
from osae.results.lm import SHARES, Crossing, Curve, Curves, LMResult, Place

NEAR_ZERO, NEAR_ONE, SAME_SEED, CLOSE = 0.15, 0.95, 0.75, 0.01
BOTH = ("orderedness", "stability")


class Starts(Enum):
    """Which starts a claim is judged from."""

    NOISE_FIRST = auto()  # noise where it was tried, or else every start
    NOISE_ONLY = auto()
    EVERY = auto()


@dataclass(frozen=True)
class Case:
    """What a claim says in one case: from which start, the statements to test, and the numbers in words."""

    start: str
    statements: tuple[Statement, ...]
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
    tested = weigh_statements([one for case in judged for one in case.statements])
    if not tested:
        return Claim(text, UNTESTED, claim.untested)
    words = "; ".join(case.words for case in shown)
    found = f"{claim.lead.format(tokens=_tokens(result))}{words}{claim.tail}."
    return Claim(text, judge(tested), f"{found} {count_outcomes(tested, 'comparison')}", tested)


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
    if not found:
        return Claim(text, UNTESTED, "nothing was trained.")
    verdict, _, tested = found[starts[0]]
    said = " ".join(f"Start from {start}: {words}" for start, (_, words, _) in found.items())
    return Claim(text, verdict, said, tested)


def _compare_curves(
    claim: AlwaysAbove, result: LMResult, places: Sequence[Place], since: int
) -> tuple[str, str, tuple[Tested, ...]]:
    """Return the verdict over some places, the numbers in words, and what was tested.

    A setting is a place and a rival; its prefixes are nested, and so no evidence of their own.
    """
    statements, lowest = [], []
    for place, rival, ours, theirs in _pair_curves(claim, result, places):
        lengths = [i for i, length in enumerate(ours.prefix) if length >= since]
        about = f"{claim.method} against {rival}, {place}"
        parts = {f"{ours.prefix[i]} units": difference(ours.at(i), theirs.at(i)) for i in lengths}
        statements.append(Statement(about, parts))
        lowest += [(ours.mean[i] - theirs.mean[i], rival, place, ours, theirs, i) for i in lengths]
    if not statements:
        return UNTESTED, "the methods were not trained.", ()
    tested = weigh_statements(statements)
    _, rival, place, ours, theirs, i = min(lowest, key=lambda one: one[0])
    found = (
        f"{_count_settings(tested)} The least lead is over `{rival}` at {ours.prefix[i]} units ({place}): "
        f"{ours.mean[i]:.3f} against {theirs.mean[i]:.3f}."
    )
    if absent := [name for name in claim.rivals if not any(name in result.curves_at(p) for p in places)]:
        return UNTESTED, f"{found} Not trained: {', '.join(absent)}.", tested
    return judge(tested), found, tested


def _count_settings(tested: Sequence[Tested]) -> str:
    """Return in how many settings a curve is above at every prefix, in words."""
    above, below = (sum(one.outcome == word for one in tested) for word in (TRUE, FALSE))
    rest = len(tested) - above - below
    said = [f"above at every prefix in {above} of {len(tested)} settings (places and rivals)"]
    said += [f"below at some prefix in {below}"] if below else []
    said += [f"undecided in {rest}"] if rest else []
    return ", ".join(said) + "."


def _pair_curves(
    claim: AlwaysAbove, result: LMResult, places: Sequence[Place]
) -> Iterator[tuple[Place, str, Curve, Curve]]:
    """Yield each place and rival, with the curves of the method and of the rival there."""
    for place in places:
        by_method = result.curves_at(place)
        for rival in claim.rivals:
            if claim.method in by_method and rival in by_method:
                yield place, rival, by_method[claim.method][claim.measure], by_method[rival][claim.measure]


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
    (limit,) = claim.thresholds
    for place, by_method in _places_with(claim, result):
        for measure in claim.measures:
            curve = by_method[claim.method][measure]
            for i in _within_first_group(curve, result):
                words = f"{measure} {curve.mean[i]:.3f} at {curve.prefix[i]} units ({place})"
                parts = within(estimate(curve.at(i)), -limit, limit)
                yield Case(place.start, (Statement(f"{measure}, {place}", parts),), words)


def find_falling(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the stability of the first group is above that of the whole dictionary."""
    for place, by_method in _places_with(claim, result):
        within_prefix, full = (by_method[claim.method][measure] for measure in claim.measures)
        for i in _within_first_group(within_prefix, result):
            words = (
                f"{within_prefix.mean[i]:.3f} at {within_prefix.prefix[i]} units, "
                f"{within_prefix.mean[-1]:.3f} at all units; with units matched over the whole dictionary "
                f"{full.mean[i]:.3f} and {full.mean[-1]:.3f} ({place})"
            )
            found = difference(within_prefix.at(i), within_prefix.at(-1))
            yield Case(place.start, (Statement(str(place), {"": found}),), words)


def find_crossover(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether a method is ahead of its last rival in the first group, and behind all at the end."""
    (measure,), rivals = claim.measures, claim.rivals
    for place, by_method in _places_with(claim, result):
        ours = by_method[claim.method][measure]
        others = {rival: by_method[rival][measure] for rival in rivals}
        last = others[rivals[-1]]
        for i in _within_first_group(ours, result):
            late = " and ".join(f"{other.mean[-1]:.3f}" for other in others.values())
            words = (
                f"{ours.mean[i]:.3f} against {last.mean[i]:.3f} at {ours.prefix[i]} units, "
                f"{ours.mean[-1]:.3f} against {late} at all units, {_quote_crossing(ours, last)} ({place})"
            )
            early = Statement(
                f"{rivals[-1]} at {ours.prefix[i]} units, {place}", {"": difference(ours.at(i), last.at(i))}
            )
            at_end = [
                Statement(f"{rival} at all units, {place}", {"": difference(other.at(-1), ours.at(-1))})
                for rival, other in others.items()
            ]
            yield Case(place.start, (early, *at_end), words)


def _quote_crossing(ours: Curve, other: Curve) -> str:
    """Return where one curve falls below another, in words."""
    ahead = [length for i, length in enumerate(ours.prefix) if ours.mean[i] > other.mean[i]]
    behind = [length for length in ours.prefix if length not in ahead]
    if not ahead or not behind:
        return "without crossing"
    if max(ahead) < min(behind):
        return f"crossing between {max(ahead)} and {min(behind)} units"
    return f"ahead at {', '.join(map(str, ahead))} units"


# --- error ------------------------------------------------------------------------------------------


def find_less(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the method's measure is below that of all rivals."""
    yield from _find_in_tables(claim, result, lambda ours, theirs: difference(theirs, ours))


def find_close(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the method's measure is at most the threshold below that of all rivals."""
    (limit,) = claim.thresholds
    yield from _find_in_tables(claim, result, lambda ours, theirs: shift(difference(ours, theirs), limit))


def _find_in_tables(
    claim: Compared, result: LMResult, compare: Callable[[Interval, Interval], Estimate | None]
) -> Iterator[Case]:
    """Yield the measure of the method and of its rivals in each place's table, compared."""
    (measure,) = claim.measures
    for place in result.places():
        section = result.section_of(place)
        rows = section.by_method() if section else {}
        known = {name: row.interval(measure) for name, row in rows.items() if measure in row.measures}
        if not claim.methods <= set(known):
            continue
        ours, others = known[claim.method], {rival: known[rival] for rival in claim.rivals}
        means = " and ".join(f"{other.mean:.4f}" for other in others.values())
        yield Case(
            place.start,
            tuple(
                Statement(f"{rival}, {place}", {"": compare(ours, other)}) for rival, other in others.items()
            ),
            f"{ours.mean:.4f} against {means} ({place.title})",
        )


# --- across texts -----------------------------------------------------------------------------------


def find_cost(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the loss from one text to two lies between the thresholds, at each prefix."""
    for one in [crossing for crossing in result.crossings if crossing.method == claim.method]:
        found = [(place, by_method[claim.method]) for place, by_method in _places_with(claim, result)]
        same = [curves for place, curves in found if place.start == one.start]
        for measure in claim.measures if same else ():
            across, statements, said = one.other_seed[measure], [], []
            for i in _since_first_group(across, result):
                mean = sum(curves[measure].mean[i] for curves in same) / len(same) - across.mean[i]
                about = f"{measure} at {across.prefix[i]} units, start from {one.start}"
                cost = _cost([curves[measure].at(i) for curves in same], across.at(i))
                statements.append(Statement(about, within(cost, *claim.thresholds)))
                said.append(f"{mean:.3f} at {across.prefix[i]}")
            yield Case(one.start, tuple(statements), f"{measure} {', '.join(said)} (start from {one.start})")


def _cost(same: Sequence[Interval], across: Interval) -> Estimate | None:
    """Return how far the mean over places is above the agreement across them."""
    inside, outside = [estimate(one) for one in same], estimate(across)
    known = [one for one in inside if one is not None]
    if len(known) < len(same) or outside is None:
        return None
    return independent_difference(independent_mean(known), outside)


def find_above_across(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether different seeds agree more across texts than those of the rival, at every prefix."""
    (measure,), (rival,) = claim.measures, claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if claim.methods <= set(by_method):
            ours, theirs = (by_method[name].other_seed[measure] for name in (claim.method, rival))
            lengths = _since_first_group(ours, result)
            words = ", ".join(
                f"{ours.mean[i]:.3f} against {theirs.mean[i]:.3f} at {ours.prefix[i]}" for i in lengths
            )
            parts = {f"{ours.prefix[i]} units": difference(ours.at(i), theirs.at(i)) for i in lengths}
            yield Case(start, (Statement(f"start from {start}", parts),), f"{words} (start from {start})")


def _since_first_group(curve: Curve, result: LMResult) -> list[int]:
    """Return the indices of the prefixes from the first group on."""
    first = _first_group(result)
    return [i for i, length in enumerate(curve.prefix) if length >= first]


def find_same_seed(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield the agreement of the same seed across texts, and whether the method reaches the thresholds."""
    for one in result.crossings:
        at_end = {measure: one.same_seed[measure].at(-1) for measure in claim.measures}
        words = f"`{one.method}` {' and '.join(f'{found.mean:.3f}' for found in at_end.values())}"
        statements = [
            Statement(f"{measure}, start from {one.start}", {"": shift(estimate(found), -limit)})
            for (measure, found), limit in zip(at_end.items(), claim.thresholds, strict=True)
        ]
        yield Case(one.start, tuple(statements) if one.method == claim.method else (), words)


def find_seed_gain(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the same seed adds more to the agreement across texts than it adds for the rival."""
    (rival,) = claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if not claim.methods <= set(by_method):
            continue
        statements, said = [], []
        for measure in claim.measures:
            ours, theirs = (_seed_gain(by_method[name], measure) for name in (claim.method, rival))
            gains = [
                by_method[name].same_seed[measure].mean[-1] - by_method[name].other_seed[measure].mean[-1]
                for name in (claim.method, rival)
            ]
            both = None if ours is None or theirs is None else independent_difference(ours, theirs)
            statements.append(Statement(f"{measure}, start from {start}", {"": both}))
            said.append(f"{measure} {gains[0]:+.3f} against {gains[1]:+.3f}")
        yield Case(start, tuple(statements), ", ".join(said))


def _seed_gain(crossing: Crossing, measure: str) -> Estimate | None:
    """Return how much the same seed adds to the agreement of whole dictionaries across texts."""
    return difference(crossing.same_seed[measure].at(-1), crossing.other_seed[measure].at(-1))


# --- in the course of training ----------------------------------------------------------------------


def find_own_start(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the order of the whole dictionary stays that of its start."""
    for one in result.own_starts:
        if one.method in claim.methods:
            at_end = {measure: one.curves[measure].at(-1) for measure in claim.measures}
            numbers = ", ".join(f"{measure} {found.mean:.3f}" for measure, found in at_end.items())
            words = f"`{one.method}`, {one.place.text}: {numbers}"
            stays = shift(estimate(at_end[claim.measures[0]]), -claim.thresholds[0])
            mine = (Statement(str(one.place), {"": stays}),) if one.method == claim.method else ()
            yield Case(one.place.start, mine, words)


def find_growing(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether seeds agree more at the end of training than at the first moment after its start."""
    for one in result.progressions:
        if one.method == claim.method and len(one.moments) > 1:
            moments = [moment for moment in one.moments if moment.tokens > 0]
            for measure in claim.measures:
                values = [moment.seeds[measure].at(-1) for moment in moments]
                course = ", ".join(f"{value.mean:.3f}" for value in values)
                found = difference(values[-1], values[0])
                statement = Statement(f"{measure}, {one.place}", {"": found})
                yield Case(one.place.start, (statement,), f"{measure} ({one.place.text}) {course}")


def find_exchange(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether some early prefix agrees less at the end than at its best, while all units agree more."""
    for one in result.progressions:
        moments = [moment for moment in one.moments if moment.tokens > 0]
        if one.method not in claim.methods or len(moments) < 2:
            continue
        for measure in claim.measures:
            first, last = moments[0].seeds[measure], moments[-1].seeds[measure]
            early = _within_first_group(first, result)
            for i in early:
                about = f"{measure}, {one.method}, {one.place}"
                parts = {
                    f"{first.prefix[i]} units fall": difference(first.at(i), last.at(i)),
                    "all units rise": difference(last.at(-1), first.at(-1)),
                }
                words = (
                    f"{about}: {first.mean[i]:.3f} to {last.mean[i]:.3f} at {first.prefix[i]} units, "
                    f"{first.mean[-1]:.3f} to {last.mean[-1]:.3f} at all"
                )
                yield Case(one.place.start, (Statement(about, parts),), words)


# --- stitching --------------------------------------------------------------------------------------


def find_fewer_novel(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether fewer units are novel to a method than to its rivals; the first rival must be there."""
    rows = {row.method: row for row in result.stitching.rows} if result.stitching else {}
    if claim.method in rows and claim.rivals[0] in rows:
        ours = rows[claim.method].interval("novel")
        statements = [
            Statement(rival, {"": difference(rows[rival].interval("novel"), ours)})
            for rival in claim.rivals
            if rival in rows
        ]
        yield Case("", tuple(statements), "; ".join(_quote_shares(row) for row in rows.values()))


def _quote_shares(row: MethodRow) -> str:
    paper = f" (paper {_shares(row.paper.measures)})" if row.paper else ""
    return f"`{row.method}` {_shares(row.measures)}{paper}"


def _shares(measures: Mapping[str, Number]) -> str:
    found = [as_interval(measures[key]) for key in SHARES]
    return " / ".join("–" if one is None else f"{one.mean:.3f}" for one in found)


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
    ),
    Compared(
        "Across texts and seeds, O-SAE is more ordered than random Matryoshka at every prefix from {first} "
        "units on.",
        find_above_across,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("orderedness",),
        untested="it needs two texts, and both methods trained on them.",
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
        lead="whole dictionary, after {tokens} tokens: ",
    ),
    Compared(
        "In some cases, early prefixes come to agree less during training while later ones come to agree "
        "more.",
        find_exchange,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="from the first to the last moment: ",
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
