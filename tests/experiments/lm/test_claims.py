"""Verdicts on language models follow from the curves, whichever way they come out."""

import itertools
from dataclasses import replace

import pytest

from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNDECIDED, UNTESTED
from osae.experiments.lm.claims import judge_lm
from osae.metrics.statistics import runs_interval
from osae.results.experiment import MethodRow, Section
from osae.results.lm import (
    Crossing,
    Curve,
    LMResult,
    MethodCurves,
    Moment,
    Place,
    Progression,
    StitchingTable,
)

LENGTHS = (16, 64, 128)
UNITS, GROUPS = 128, 3  # the first group has 16 units
PAPER, OURS = slice(0, 20), slice(20, 23)
TWO_TEXTS = "All methods agree as much on one text as on the other"
NOISE = Place("a text, with a comma", "noise")


def spread(seed):
    return 0.004 * (-1) ** seed


SEEDS = {
    "runs": [(seed,) for seed in range(4)],
    "pairs": list(itertools.combinations(range(4), 2)),
    "crossed": list(itertools.permutations(range(4), 2)),
}


def curve(*values, over="pairs"):
    """A curve of four runs, or of their pairs, that differ a little."""
    values = values * (3 if len(values) == 1 else 1)
    found = {
        "-".join(map(str, seeds)): tuple(v + sum(map(spread, seeds)) for v in values) for seeds in SEEDS[over]
    }
    ends = [tuple(v + side for v in values) for side in (-0.01, 0.01)]
    return Curve(LENGTHS, values, *ends, over, found)


def agreement(order, stable, over="pairs"):
    """Curves of orderedness and stability; both kinds of stability alike."""
    return {
        "orderedness": curve(*order, over=over),
        "stability": curve(*stable, over=over),
        "stability_of_full": curve(*stable, over=over),
    }


def method_curves(better):
    ordered, (early, late) = (0.7, (0.8, 0.3)) if better else (-0.1, (0.3, 0.8))
    return {
        "topk-sorted": agreement([0.5], [0.5]),
        "matryoshka-fixed": agreement([0.0 if better else 0.6, 0.4, 0.4], [0.4]),
        "matryoshka-random": agreement([0.3], [0.6, 0.5, 0.4]),
        "osae-paper": agreement([ordered], [early, 0.5, late]),
        "osae": agreement([0.9 if better else -0.5], [0.9 if better else 0.1]),
    }


def table(place, better):
    explained = {"topk": 0.8, "osae": 0.795 if better else 0.7, "osae-paper": 0.77 if better else 0.79}
    explained |= {"matryoshka-fixed": 0.78, "matryoshka-random": 0.78}
    measures = {
        name: {"explained_variance": runs_interval({seed: v + spread(seed) / 10 for seed in range(4)})}
        for name, v in explained.items()
    }
    return Section(place.title, tuple(MethodRow(name, measures=found) for name, found in measures.items()))


def crossings(start, better):
    ordered, early, late = (0.7, 0.8, 0.3) if better else (-0.1, 0.3, 0.8)
    cost = 0.15 if better else 0.0
    other = agreement([ordered - cost], [early - cost, 0.5 - cost, late - cost], "crossed")
    same = agreement([0.99 if better else ordered - 0.5], [0.8 if better else late - 0.15], "runs")
    gain = early - cost + (0.05 if better else -0.6)
    same["stability"] = curve(gain, 0.5, *same["stability"].mean[-1:], over="runs")
    rivals = ([0.2], [0.35]), ([0.4], [0.36, 0.4, 0.4])
    low, high = rivals if better else rivals[::-1]
    return (
        Crossing(start, "osae-paper", other, same),
        Crossing(start, "matryoshka-random", agreement(*low, "crossed"), agreement(*high, "runs")),
    )


def explain(value):
    return runs_interval({seed: value + spread(seed) / 10 for seed in range(4)})


def progression(place, better, method="osae-paper"):
    values = (0.0, 0.1, 0.3, 0.5) if better else (0.0, 0.5, 0.3, 0.1)
    at = [agreement([0.6 - v / 2, v, v], [0.6 - v / 2, v, v]) for v in values]
    moments = [Moment(n, explain(0.2 * n), found) for n, found in enumerate(at)]
    return Progression(place, method, tuple(moments))


def rival_progressions(place, better):
    """The rivals explain at their third moment what the method explains at its last; later they differ."""
    whole = (0.0, 0.1, 0.2, 0.9) if better else (0.0, 0.9, 0.55, 0.0)
    at = zip((0.3, 0.45, 0.602, 0.7), (0.3, 0.3, 0.25, 0.2), whole, strict=True)
    moments = [
        Moment(n, explain(explained), agreement([early, late, late], [early, late, late]))
        for n, (explained, early, late) in enumerate(at)
    ]
    return [
        Progression(place, method, tuple(moments)) for method in ("matryoshka-fixed", "matryoshka-random")
    ]


def stitching(better):
    novel = {"batchtopk": 0.7, "matryoshka-random": 0.5, "osae-paper": 0.3 if better else 0.9}
    shares = {
        m: {
            "novel": runs_interval({s: n + spread(s) for s in range(4)}),
            "reconstruction": 1 - n,
            "unchanged": 0.0,
            "novel_of_firing": runs_interval({s: n + spread(s) for s in range(4)}),
            "reconstruction_of_firing": 1 - n,
        }
        for m, n in novel.items()
    }
    return StitchingTable(128, 256, tuple(MethodRow(m, measures=found) for m, found in shares.items()))


def results(better=True, place=NOISE):
    """What the paper describes, and `osae` ahead; or the reverse of each."""
    return LMResult(
        experiment="lm",
        title="",
        world={"units": UNITS},
        seeds=(0, 1, 2),
        groups=GROUPS,
        curves=tuple(MethodCurves(place, name, found) for name, found in method_curves(better).items()),
        sections=(table(place, better),),
        crossings=crossings(place.start, better),
        own_starts=(
            MethodCurves(place, "osae-paper", agreement([0.99 if better else 0.3], [0.8], "runs")),
            MethodCurves(place, "matryoshka-random", agreement([0.6], [0.6], "runs")),
        ),
        progressions=(progression(place, better), *rival_progressions(place, better)),
        stitching=stitching(better),
    )


def verdicts(found):
    """The verdicts on all claims but the one that needs two texts."""
    return [claim.verdict for claim in judge_lm(found) if not claim.claim.startswith(TWO_TEXTS)]


def test_claims_hold_where_all_is_as_the_paper_says_and_fail_where_it_is_the_reverse():
    assert verdicts(results()) == [HOLDS] * 23
    assert verdicts(results(better=False)) == [FAILS] * 23


def test_the_papers_claims_are_judged_from_noise_and_ours_from_every_start():
    noise, data = results(), results(better=False, place=replace(NOISE, start="data"))
    names = ("curves", "sections", "crossings", "own_starts", "progressions")
    both = replace(noise, **{name: getattr(data, name) + getattr(noise, name) for name in names})
    found = verdicts(both)
    assert found[PAPER] == [HOLDS] * 20
    assert found[OURS] == [PARTLY] * 3
    words = judge_lm(both)[0].found
    assert words.index("Start from noise") < words.index("Start from data")


def test_without_a_start_from_noise_the_other_is_judged():
    data = replace(results(place=Place("a text", "data")), crossings=())
    assert verdicts(data)[:4] == [HOLDS] * 4


def without(result, **methods):
    """The result without the curves of all methods but some, or of some methods."""
    kept = [one for one in result.curves if one.method in methods.get("only", (one.method,))]
    return replace(result, curves=tuple(one for one in kept if one.method != methods.get("but")))


def test_nothing_is_said_of_what_is_not_there():
    empty = LMResult(experiment="lm", title="", world={"units": UNITS}, seeds=(0, 1, 2), groups=GROUPS)
    assert set(verdicts(empty)) == {UNTESTED}
    assert verdicts(without(results(), only=("osae",)))[OURS][:2] == [UNTESTED] * 2
    few = without(results(), but="topk-sorted")
    assert verdicts(few)[OURS][:2] == [UNTESTED] * 2  # ahead, but not of all that the claim names


def test_names_of_texts_may_hold_commas():
    (grows,) = [claim for claim in judge_lm(results()) if "tend to grow" in claim.claim]
    assert "(a text, with a comma)" in grows.found


@pytest.mark.parametrize(
    ("order", "stable", "verdict"), [(0.99, 0.8, HOLDS), (0.99, 0.5, PARTLY), (0.5, 0.5, FAILS)]
)
def test_same_seed_needs_order_near_one_and_stability_near_the_papers(order, stable, verdict):
    across, same = agreement([0.1], [0.1], "crossed"), agreement([order], [stable], "runs")
    one = Crossing("noise", "osae-paper", across, same)
    (claim,) = [c for c in judge_lm(replace(results(), crossings=(one,))) if "With the same seed" in c.claim]
    assert claim.verdict == verdict


def scatter(curve, by):
    """The curve, with values that differ from pair to pair."""
    shifts = itertools.cycle((by, -by))
    values = {
        key: tuple(v + shift for v in one)
        for (key, one), shift in zip(curve.values.items(), shifts, strict=False)
    }
    return replace(curve, values=values)


EXCHANGE = "In some cases, earlier prefixes come to agree less"


@pytest.mark.parametrize(
    ("end", "by", "verdict"), [(0.5, 0.0, HOLDS), (0.5, 0.3, UNDECIDED), (0.9, 0.0, FAILS)]
)
def test_an_exchange_is_found_at_any_prefix_from_any_moment_on(end, by, verdict):
    """Only the second prefix falls, and only from the second moment on."""
    values = [(0.1, 0.1, 0.1), (0.2, 0.8, 0.2), (0.3, end, 0.3)]
    at = [agreement(found, found) for found in values]
    at[-1] = {key: scatter(curve, by) for key, curve in at[-1].items()}
    growing = [agreement([0.1 * n], [0.1 * n]) for n in (1, 2, 3)]
    courses = [
        Progression(NOISE, method, tuple(Moment(n, None, curves) for n, curves in enumerate(found, 1)))
        for method, found in (("osae-paper", at), ("matryoshka-random", growing))
    ]
    claims = judge_lm(replace(results(), progressions=tuple(courses)))
    (claim,) = (claim for claim in claims if claim.claim.startswith(EXCHANGE))
    assert claim.verdict == verdict
    if verdict != FAILS:
        assert "0.800 to 0.500 at 64 units from 2 tokens on, 0.200 to 0.300 at all" in claim.found


def test_a_single_pair_of_seeds_decides_nothing():
    bare = replace(
        results(), curves=tuple(replace(one, curves=_without_values(one.curves)) for one in results().curves)
    )
    judged = judge_lm(bare)
    assert [judged[i].verdict for i in (0, 3, 4, 5, 6)] == [UNDECIDED] * 5
    assert "undecided in 2" in judged[0].found


def _without_values(curves):
    return {key: Curve(found.prefix, found.mean) for key, found in curves.items()}


def test_prefixes_are_nested_and_make_one_statement():
    above = judge_lm(results())[0]
    assert len(above.tested) == 2  # two rivals at one place, however many prefixes
    assert "above at every prefix in 2 of 2 settings" in above.found
    assert above.tested[0].part.endswith("units")
    cost = claim_about("Training on another text", results())
    assert len(cost.tested) == 2  # two measures, however many prefixes


def claim_about(words, result):
    (claim,) = [claim for claim in judge_lm(result) if words in claim.claim]
    return claim


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, HOLDS), (0.05, HOLDS), (0.3, FAILS)])
def test_both_texts_are_alike_if_they_differ_by_little_at_every_prefix(gap, verdict):
    one = results()
    names = ("osae-paper", "matryoshka-fixed", "matryoshka-random")
    moved = {
        name: {key: curve(*(v + gap for v in found.mean)) for key, found in curves.items()}
        for name, curves in method_curves(better=True).items()
        if name in names
    }
    other = tuple(MethodCurves(Place("another", "noise"), name, found) for name, found in moved.items())
    claim = claim_about(TWO_TEXTS, replace(one, curves=one.curves + other))
    assert claim.verdict == verdict
    assert len(claim.tested) == 6  # two measures of three methods
    assert claim_about(TWO_TEXTS, one).verdict == UNTESTED


def test_checkpoints_are_compared_where_they_explain_as_much():
    """At the end the rivals are far ahead; where they explain as much, they are behind."""
    claim = claim_about("checkpoints of similar loss", results())
    assert claim.verdict == HOLDS
    assert "0.600 after 3 tokens and 0.602 after 2" in claim.found


def test_checkpoints_that_explain_too_different_shares_are_not_compared():
    far = [
        replace(one, moments=tuple(replace(m, explained_variance=explain(0.1)) for m in one.moments))
        for one in results().progressions[1:]
    ]
    apart = replace(results(), progressions=(results().progressions[0], *far[:1]))
    claim = claim_about("checkpoints of similar loss", apart)
    assert claim.verdict == UNTESTED
