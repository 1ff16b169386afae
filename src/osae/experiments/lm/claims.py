"""Test claims about language models, the paper's and ours, against the results.

`CLAIMS` lists the claims as data; `judge_lm` judges them by the numbers, which `osae.experiments.lm.finding`
looks up. The paper trains from noise: if that was done, its claims are judged from there, and other starts
are only reported.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from osae.experiments.claims import (
    FALSE,
    TRUE,
    UNTESTED,
    Statement,
    count_outcomes,
    judge,
    quote_margins,
    weigh_statements,
)
from osae.experiments.lm import finding
from osae.experiments.lm.cases import AlwaysAbove, Compared, Starts, first_group
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
from osae.measures import AGREEMENT
from osae.metrics.statistics import difference
from osae.results.experiment import Claim, Tested
from osae.results.lm import Curve, LMResult, Place
from osae.results.stitching import SHARES, SHARES_OF_FIRING

NEAR_ZERO, NEAR_ONE, SAME_SEED, CLOSE, ALIKE, SIMILAR = 0.15, 0.95, 0.75, 0.01, 0.1, 0.01

LMClaim = Compared | AlwaysAbove


def judge_lm(result: LMResult) -> tuple[Claim, ...]:
    """Return every claim, with the findings and the verdict."""
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
    """Judge the claim by its cases."""
    text = claim.text.format(first=first_group(result))
    cases = list(claim.find(claim, result))
    noise = [case for case in cases if case.start == NOISE]
    shown = noise if claim.starts is Starts.NOISE_ONLY else cases
    judged = cases if claim.starts is Starts.EVERY else noise or shown
    tested = weigh_statements([one for case in judged for one in case.statements])
    if not tested:
        return Claim(text, UNTESTED, claim.untested)
    words = "; ".join(case.words for case in shown)
    found = f"{claim.lead.format(tokens=_tokens(result))}{words}{claim.tail}."
    found += f" {count_outcomes(tested, 'comparison')}{quote_margins(tested)}"
    return Claim(text, judge(tested, somewhere=claim.somewhere), found, tested)


def _tokens(result: LMResult) -> str:
    """Return the moments of training, in tokens."""
    moments = result.progressions[0].moments if result.progressions else ()
    return ", ".join(f"{moment.tokens:,}" for moment in moments)


# --- a curve above others ---------------------------------------------------------------------------


def judge_above(claim: AlwaysAbove, result: LMResult) -> Claim:
    """Judge the claim over all places, or separately over the places of each start."""
    first = first_group(result)
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

    A setting is a place and a rival; its prefixes are nested, so they are not independent evidence.
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
        f"{ours.mean[i]:.3f} against {theirs.mean[i]:.3f}.{quote_margins(tested)}"
    )
    if absent := [name for name in claim.rivals if not any(name in result.curves_at(p) for p in places)]:
        return UNTESTED, f"{found} Not trained: {', '.join(absent)}.", tested
    return judge(tested), found, tested


def _count_settings(tested: Sequence[Tested]) -> str:
    """Describe in how many settings a curve is above the other at every prefix."""
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


# --- the claims -------------------------------------------------------------------------------------

OUR_RIVALS = (TOPK_SORTED, *MATRYOSHKA, OSAE_PAPER)
WHOLE = ", whole dictionary"
CLAIMS: tuple[LMClaim, ...] = (
    AlwaysAbove(
        "Orderedness of O-SAE is above both Matryoshka variants at every prefix from {first} units on.",
        OSAE_PAPER,
        MATRYOSHKA,
        "orderedness",
        by_start=True,
    ),
    Compared(
        "At checkpoints of similar loss too, O-SAE is more ordered than both Matryoshka variants at every "
        f"prefix from {{first}} units on (here: at most {SIMILAR} of explained variance apart).",
        finding.find_above_at_similar_loss,
        OSAE_PAPER,
        MATRYOSHKA,
        measures=("orderedness",),
        thresholds=(SIMILAR,),
        untested="no two checkpoints of the methods explain a similar share of the variance.",
    ),
    Compared(
        "All methods agree as much on one text as on the other, at every prefix from {first} units on (here: "
        f"within {ALIKE}).",
        finding.find_alike,
        OSAE_PAPER,
        MATRYOSHKA,
        thresholds=(ALIKE,),
        untested="it needs two texts.",
        lead="where the texts differ most: ",
    ),
    Compared(
        "Fixed Matryoshka has no order inside its first group of {first} units.",
        finding.find_near_zero,
        MATRYOSHKA_FIXED,
        measures=("orderedness",),
        thresholds=(NEAR_ZERO,),
        untested="it was not trained, or no prefix is that short.",
    ),
    Compared(
        "From its second group on, fixed Matryoshka has more order than inside its first (paper: about 0.5).",
        finding.find_jump,
        MATRYOSHKA_FIXED,
        measures=("orderedness",),
        untested="it was not trained, or no prefix is that short.",
        lead="orderedness ",
    ),
    Compared(
        "Stability of O-SAE is higher for the first {first} units than for all units (paper: high at first, "
        "then a sharp decline).",
        finding.find_falling,
        OSAE_PAPER,
        measures=("stability", "stability_of_full"),
        untested="no O-SAE was trained, or no prefix is as short as a group.",
    ),
    Compared(
        "O-SAE is more stable than random Matryoshka on the first units, and less stable than both "
        "Matryoshka variants on the whole dictionary (paper: it crosses random Matryoshka between 1,024 and "
        "2,048 of 4,096 units on Gemma-2-2B, and near 128 on Pythia-70M).",
        finding.find_crossover,
        OSAE_PAPER,
        MATRYOSHKA,
        measures=("stability",),
        untested="O-SAE and both Matryoshka variants were not all trained.",
    ),
    Compared(
        "O-SAE explains slightly less of the variance than both Matryoshka variants.",
        finding.find_less,
        OSAE_PAPER,
        MATRYOSHKA,
        measures=("explained_variance",),
        untested="O-SAE and both Matryoshka variants were not all trained.",
    ),
    Compared(
        "Training on another text costs 0.1 to 0.2 in orderedness and stability, at every prefix from "
        "{first} units on.",
        finding.find_cost,
        OSAE_PAPER,
        thresholds=(0.1, 0.2),
        untested="it needs two texts, and an O-SAE trained on both.",
    ),
    Compared(
        "Across texts and seeds, O-SAE is more ordered than random Matryoshka at every prefix from {first} "
        "units on.",
        finding.find_above_across,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("orderedness",),
        untested="it needs two texts, and both methods trained on them.",
    ),
    Compared(
        "Across texts and seeds, O-SAE is more stable than random Matryoshka within the first {first} units.",
        finding.find_early_across,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("stability",),
        untested="it needs two texts, and both methods trained on them.",
    ),
    Compared(
        "With the same seed from noise, O-SAEs of two texts have nearly the same order (paper: near 1.0; "
        f"here: at least {NEAR_ONE}) and stability 0.8 (here: at least {SAME_SEED}).",
        finding.find_same_seed,
        OSAE_PAPER,
        measures=("orderedness", "stability"),
        thresholds=(NEAR_ONE, SAME_SEED),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, where a seed fixes the start.",
        lead="orderedness and stability of the whole dictionary: ",
    ),
    Compared(
        "From noise, O-SAE and random Matryoshka agree more across texts with the same seed than with "
        "different ones, in the first {first} units and as a whole.",
        finding.find_seed_help,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, with either method.",
    ),
    Compared(
        "From noise, using the same seed on two texts helps O-SAE more than random Matryoshka.",
        finding.find_seed_gain,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, with both methods.",
        tail=WHOLE,
    ),
    Compared(
        "From noise, using the same seed on two texts helps O-SAE more than random Matryoshka within the "
        "first {first} units.",
        finding.find_early_seed_gain,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="it needs two texts trained from noise, with both methods.",
    ),
    Compared(
        "The late units of O-SAE hardly leave their start: from noise, the whole dictionary keeps the order "
        f"of its start (here: at least {NEAR_ONE}).",
        finding.find_own_start,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("orderedness", "stability"),
        thresholds=(NEAR_ONE,),
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="compared with its own start, ",
    ),
    Compared(
        "From noise, the whole dictionary of O-SAE keeps more of the order of its start than that of random "
        "Matryoshka.",
        finding.find_own_start_lead,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        measures=("orderedness",),
        starts=Starts.NOISE_ONLY,
        untested="O-SAE and random Matryoshka were not both trained from noise.",
    ),
    Compared(
        "From noise, orderedness and stability of O-SAE tend to grow during training.",
        finding.find_growing,
        OSAE_PAPER,
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="whole dictionary, after {tokens} tokens: ",
    ),
    Compared(
        "In some cases, earlier prefixes come to agree less during training while later ones come to agree "
        "more (here: from any moment to the end, a prefix less and the whole dictionary more).",
        finding.find_exchange,
        OSAE_PAPER,
        (MATRYOSHKA_RANDOM,),
        starts=Starts.NOISE_ONLY,
        untested="no O-SAE was trained from noise.",
        lead="where it comes closest: ",
        somewhere=True,
    ),
    Compared(
        "Of a larger SAE's units, fewer are novel to a smaller O-SAE than to a BatchTopK or Matryoshka SAE.",
        finding.find_fewer_novel,
        OSAE_PAPER,
        (BATCHTOPK, MATRYOSHKA_RANDOM),
        measures=SHARES,
        untested="no larger BatchTopK SAE and O-SAE were trained.",
        lead="novel / reconstruction / no change: ",
        starts=Starts.EVERY,
    ),
    Compared(
        "The same among the units that fire (the paper's caveat: random Matryoshka leaves more unused).",
        finding.find_fewer_novel,
        OSAE_PAPER,
        (BATCHTOPK, MATRYOSHKA_RANDOM),
        measures=SHARES_OF_FIRING,
        untested="the share of units that fire was not measured, or not all methods were trained.",
        lead="novel / reconstruction, of the units that fire: ",
        starts=Starts.EVERY,
    ),
    *(
        AlwaysAbove(
            f"{measure.capitalize()} of `osae` is above TopK sorted afterwards, both Matryoshka variants and "
            "`osae-paper`, from the same start, at every prefix from 64 units on (our own claim).",
            OSAE,
            OUR_RIVALS,
            measure,
            since=64,
        )
        for measure in AGREEMENT
    ),
    Compared(
        f"`osae` explains at most {CLOSE} less of the variance than TopK from the same start (our own "
        "claim).",
        finding.find_close,
        OSAE,
        (TOPK,),
        measures=("explained_variance",),
        thresholds=(CLOSE,),
        starts=Starts.EVERY,
        untested="`osae` and TopK were not both trained.",
    ),
)
