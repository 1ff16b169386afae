"""Verdicts follow from the numbers, whichever way they come out."""

from dataclasses import replace

import pytest

from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNDECIDED, UNTESTED
from osae.experiments.methods import SORTED_BY_GAIN, TOPK_OUR_SETTINGS
from osae.experiments.worlds.claims import (
    CLAIMS,
    FIFR,
    Compared,
    Kind,
    judge_compared,
    judge_correlated,
    judge_world,
)
from osae.measures import Measure, added
from osae.metrics.statistics import pairs_interval, runs_interval
from osae.results.experiment import ExperimentResult, MethodRow, Section

METHODS = ("vanilla", "topk", "topk-sorted-by-gain", "matryoshka-fixed", "matryoshka-random", "osae-paper")
KEYS = ("stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse", "fifr")


SEEDS = range(4)


def spread(key, mean, noise):
    """Values of seeds or pairs around a mean, with the same noise for every method of that noise."""
    if key.endswith("_pairs"):
        pairs = [(a, b) for a in SEEDS for b in SEEDS if a < b]
        return pairs_interval({pair: mean + noise * (-1) ** i for i, pair in enumerate(pairs)})
    return runs_interval({seed: mean + noise * (-1) ** seed for seed in SEEDS})


def row(method, quality, noise=0.01, **other):
    """A row whose measures are all as good as `quality`, from 0 to 1."""
    values = dict.fromkeys(KEYS, quality) | {"mse": 1 - quality, "fifr": 1 - quality} | other
    return MethodRow(method, measures={key: spread(key, v, noise) for key, v in values.items()})


def judged(experiment, rows=(), sections=(), world=None):
    result = ExperimentResult(
        experiment=experiment,
        title="",
        world=world or {},
        seeds=(0, 1, 2),
        rows=tuple(rows),
        sections=tuple(sections),
    )
    return judge_world(result)


def verdicts(*asked, **named):
    return [claim.verdict for claim in judged(*asked, **named)]


def table(better, *names):
    """All methods as good as each other, but these."""
    found = [row(name, 0.5) for name in (*METHODS, "osae")]
    return [row(r.method, better) if r.method in names else r for r in found]


def test_claims_of_table_1_hold_where_the_ordered_sae_leads():
    won = judged("toy", table(0.9, "osae-paper"))
    assert [claim.verdict for claim in won][:4] == [HOLDS] * 4
    assert "True in all 6 comparisons" in won[0].found
    assert len(won[0].tested) == 6
    assert verdicts("toy", table(0.1, "osae-paper"))[:4] == [FAILS] * 4
    assert verdicts("toy", table(0.9, "osae-paper", "matryoshka-fixed"))[:3] == [PARTLY] * 3


def test_what_seeds_cannot_tell_apart_is_undecided():
    assert verdicts("toy", table(0.5))[:4] == [UNDECIDED] * 4  # all alike
    noisy = [row("osae-paper", 0.55, noise=0.2) if r.method == "osae-paper" else r for r in table(0.5)]
    assert verdicts("toy", noisy)[:4] == [UNDECIDED] * 4
    rival = [row("osae-paper", 0.55) if r.method == "osae-paper" else row(r.method, 0.5, 0.2) for r in noisy]
    assert verdicts("toy", rival)[:4] == [UNDECIDED] * 4  # the rival's uncertainty counts as well


def test_results_without_the_values_of_seeds_are_undecided():
    bare = [
        MethodRow(
            r.method,
            measures={key: replace(found, over=None, values=None) for key, found in r.measures.items()},
        )
        for r in table(0.9, "osae-paper")
    ]
    assert verdicts("toy", bare)[:4] == [UNDECIDED] * 4


@pytest.mark.parametrize(("better", "verdict"), [("high", HOLDS), ("low", FAILS)])
def test_which_end_is_better_is_read_from_the_table_of_measures(better, verdict):
    with added(Measure("glow", "Glow", "glow", better=better)):
        claim = Compared("", Kind.AHEAD, "a", ("b",), ("glow",))
        section = Section("", (row("a", 0.5, glow=0.9), row("b", 0.5, noise=0.02, glow=0.1)))
        assert judge_compared(claim, [section]).verdict == verdict


def test_what_was_not_trained_cannot_be_tested():
    found = judged("toy", [r for r in table(0.9, "osae-paper") if r.method != "matryoshka-random"])
    assert [claim.verdict for claim in found][:3] == [UNTESTED] * 3
    assert "matryoshka-random" in found[0].found


def test_experiments_without_claims_have_none():
    assert judged("ablate", table(0.9, "osae")) == ()


def test_the_error_that_goes_with_stability_is_told():
    levels = (0.2, 0.4, 0.6, 0.8)
    turned = [row(f"m{q}", q, mse=q) for q in levels]
    straight = [row(f"m{q}", q, fifr=q) for q in levels]
    assert judge_correlated(FIFR, [turned]).verdict == HOLDS
    assert "Margin: FIFR against MSE" in judge_correlated(FIFR, [turned]).found
    assert judge_correlated(FIFR, [straight]).verdict == FAILS
    assert judge_correlated(FIFR, [turned, straight]).verdict == PARTLY
    assert judge_correlated(FIFR, [[row(f"m{q}", q) for q in levels]]).verdict == UNDECIDED
    sorted_too = [*turned, row("topk-sorted", 0.9, fifr=1.0)]
    assert judge_correlated(FIFR, [sorted_too]) == judge_correlated(FIFR, [turned])
    assert judge_correlated(FIFR, [turned[:2]]).verdict == UNTESTED


def sections(stability, order, error, exponents=(0.0, 0.5, 1.0)):
    """The Zipfian sweep, with the O-SAE as given and all others at stability 0.9, no order and error 0.1."""
    names = [name for name in (*METHODS, SORTED_BY_GAIN[TOPK_OUR_SETTINGS]) if name != "osae-paper"]
    no_order = {"orderedness_truth": 0.0, "orderedness_pairs": 0.0}
    others = [row(name, 0.9 + i / 1000, 0.002, **no_order, mse=0.1) for i, name in enumerate(names)]
    given = {"stability_truth": stability, "stability_pairs": stability, "mse": error}
    given |= {"orderedness_truth": order, "orderedness_pairs": order}
    rows = (*others, *(row(name, 0.5, 0.002, **given) for name in ("osae-paper", "osae")))
    return [Section(f"exponent {x}", rows, x=x) for x in exponents]


def test_claims_of_the_zipfian_world():
    as_paper = verdicts("zipf", sections=sections(0.9, 0.5, 0.2))
    assert as_paper[:6] == [HOLDS] * 6
    assert as_paper[7:] == [HOLDS] * 3
    against = verdicts("zipf", sections=sections(0.6, -0.5, 0.05))
    assert against[0] == PARTLY  # TopK and Matryoshka are near 0.9, the O-SAE is not
    assert against[1:4] == [FAILS] * 3
    assert against[4] == HOLDS
    assert against[5] == FAILS
    assert against[7:] == [FAILS] * 3


def test_claims_about_some_exponents_need_one_of_them():
    found = verdicts("zipf", sections=sections(0.9, 0.5, 0.2, exponents=(0.0,)))
    about_skewed = [claim for claim in CLAIMS["zipf"] if getattr(claim, "above", -1) == 0.0]
    assert [v for v, c in zip(found, CLAIMS["zipf"], strict=True) if c in about_skewed] == [UNTESTED] * 6


def test_other_sizes_schedules_and_theory():
    rows = [row("osae-paper", 0.8) if r.method == "osae-paper" else r for r in table(0.9, "osae")]
    won = [Section(f"{n} atoms", tuple(rows)) for n in (10, 30)]
    assert verdicts("sizes", sections=won) == [HOLDS] * 3
    lost = Section("50 atoms", tuple(table(0.1, "osae", "osae-paper")))
    assert verdicts("sizes", sections=[*won, lost]) == [PARTLY] * 3
    rows = [row("osae-paper", 0.8), row("no unit sweeping", 0.9), row("no warm-up of k", 0.1)]
    assert verdicts("schedules", rows) == [*[UNTESTED] * 4, FAILS, HOLDS]
    swept = {"osae-swept": 0.7, "osae-swept-restarting": 0.4, "osae-swept, no unit sweeping": 0.5}
    rows += [row(name, quality) for name, quality in swept.items()]
    assert verdicts("schedules", rows) == [HOLDS, FAILS, UNTESTED, UNTESTED, FAILS, HOLDS]
    soon = {"osae-swept": 0.3, "osae-swept-restarting": 0.6, "osae-swept, no unit sweeping": 0.5}
    rows += [row(f"{name}, k within the burn-in", quality) for name, quality in soon.items()]
    assert verdicts("schedules", rows) == [HOLDS, FAILS, FAILS, HOLDS, FAILS, HOLDS]


@pytest.mark.parametrize(("frequency", "energy", "verdict"), [(-0.9, 0.9, FAILS), (0.9, -0.9, HOLDS)])
def test_the_order_is_by_frequency_or_by_energy(frequency, energy, verdict):
    numbers = {"orderedness_frequency": frequency, "orderedness_energy": energy}
    rows = [row(name, 0.5, **numbers) for name in ("osae-paper", "osae")]
    world = SparseWorld(8, 4, 1, zipf=2.0, samples=100, strengths=(1.0, 4.0, 16.0, 64.0))
    (claim,) = judged("energy", rows, world=to_json(world))
    assert claim.verdict == verdict
    assert "rank correlation -1.00" in claim.found


@pytest.mark.parametrize(
    ("ordered", "plain", "verdict"), [(0.9999, 0.1, HOLDS), (0.9, 0.1, PARTLY), (0.9, 1.0, FAILS)]
)
def test_principal_directions(ordered, plain, verdict):
    rows = [
        MethodRow(name, measures={"least_cosine": spread("least_cosine", value, 1e-6)})
        for name, value in (("ordered", ordered), ("plain", plain))
    ]
    assert verdicts("pca", rows) == [verdict]
