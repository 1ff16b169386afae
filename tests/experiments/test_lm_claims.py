"""Verdicts on language models follow from the curves, whichever way they come out."""

import pytest

from osae.experiments import lm_claims
from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNTESTED

LENGTHS = [16.0, 64.0, 128.0]
UNITS, GROUPS = 128, 3  # the first group has 16 units
PAPER, OURS = slice(0, 12), slice(12, 15)


def curve(*values):
    values = list(values) * (3 if len(values) == 1 else 1)
    return {
        "prefix": LENGTHS,
        "mean": values,
        "low": [v - 0.01 for v in values],
        "high": [v + 0.01 for v in values],
    }


def agreement(order, stable):
    """Curves of orderedness and stability; both kinds of stability alike."""
    return {
        "orderedness": curve(*order),
        "stability": curve(*stable),
        "stability_of_full": curve(*stable),
    }


def results(better=True):
    """What the paper describes, from noise, and `osae` ahead; or the reverse of each."""
    ordered = {True: 0.7, False: -0.1}[better]
    early, late = (0.8, 0.3) if better else (0.3, 0.8)
    by_method = {
        "topk-sorted": agreement([0.5], [0.5]),
        "matryoshka-fixed": agreement([0.0 if better else 0.6, 0.4, 0.4], [0.4]),
        "matryoshka-random": agreement([0.3], [0.6, 0.5, 0.4]),
        "osae-paper": agreement([ordered], [early, 0.5, late]),
        "osae": agreement([0.9 if better else -0.5], [0.9 if better else 0.1]),
    }
    explained = {"topk": 0.8, "osae": 0.795 if better else 0.7, "osae-paper": 0.77 if better else 0.79}
    rows = [
        {"method": name, "explained_variance": {"mean": value}}
        for name, value in {**explained, "matryoshka-fixed": 0.78, "matryoshka-random": 0.78}.items()
    ]
    crossed = {
        "osae-paper, noise": {
            "other_seed": agreement([ordered - 0.15 if better else ordered], [late - 0.15]),
            "same_seed": agreement([0.99 if better else ordered], [0.8 if better else late - 0.15]),
        },
        "matryoshka-random, noise": {
            "other_seed": agreement([0.2], [0.3]),
            "same_seed": agreement([0.4], [0.4]),
        },
    }
    for name, entry in crossed.items():
        entry["method"], entry["start"] = name.split(", ")
    values = (0.1, 0.3, 0.5) if better else (0.5, 0.3, 0.1)
    novel = {"batchtopk": 0.7, "matryoshka-random": 0.5, "osae-paper": 0.3 if better else 0.9}
    return {
        "curves": {"a text, noise": by_method},
        "sections": [{"title": "a text, start from noise", "rows": rows}, {"title": "Stitching", "rows": []}],
        "crossed": crossed,
        "own_start": {"osae-paper, a text, noise": agreement([0.99 if better else 0.3], [0.8])},
        "over_time": {
            "osae-paper, a text, with a comma, noise": [
                {"tokens": n, "orderedness": [0.0, v], "stability": [0.0, v]} for n, v in enumerate(values)
            ],
        },
        "stitching": [
            {"method": m, "novel": n, "reconstruction": 1 - n, "unchanged": 0.0, "paper": None}
            for m, n in novel.items()
        ],
    }


def verdicts(found):
    return [claim["verdict"] for claim in lm_claims.claims(found, UNITS, GROUPS)]


def test_claims_hold_where_all_is_as_the_paper_says_and_fail_where_it_is_the_reverse():
    assert verdicts(results()) == [HOLDS] * 15
    assert verdicts(results(better=False)) == [FAILS] * 15


def test_the_papers_claims_are_judged_from_noise_and_ours_from_every_start():
    both = results()
    worse = results(better=False)
    both["curves"] = {"a text, data": worse["curves"]["a text, noise"], **both["curves"]}
    section = {**worse["sections"][0], "title": "a text, start from data"}
    both["sections"] = [section, *both["sections"]]
    for name, entry in worse["crossed"].items():
        both["crossed"][name.replace("noise", "data")] = {**entry, "start": "data"}
    both["own_start"]["osae-paper, a text, data"] = agreement([0.0], [0.0])
    both["over_time"]["osae-paper, a text, data"] = worse["over_time"][
        "osae-paper, a text, with a comma, noise"
    ]
    found = verdicts(both)
    assert found[PAPER] == [HOLDS] * 12
    assert found[OURS] == [PARTLY] * 3
    words = lm_claims.claims(both, UNITS, GROUPS)[0]["found"]
    assert words.index("Start from noise") < words.index("Start from data")


def test_without_a_start_from_noise_the_other_is_judged():
    data = {**results(), "crossed": {}}
    data["curves"] = {"a text, data": data["curves"]["a text, noise"]}
    assert verdicts(data)[:4] == [HOLDS] * 4


def test_nothing_is_said_of_what_is_not_there():
    empty = {"curves": {}, "sections": [], "crossed": {}, "own_start": {}, "over_time": {}, "stitching": []}
    assert set(verdicts(empty)) == {UNTESTED}
    alone = {**results(), "crossed": {}}
    alone["curves"] = {"a text, noise": {"osae": alone["curves"]["a text, noise"]["osae"]}}
    assert verdicts(alone)[12:14] == [UNTESTED] * 2
    few = results()
    del few["curves"]["a text, noise"]["topk-sorted"]
    assert verdicts(few)[12:14] == [UNTESTED] * 2  # ahead, but not of all that the claim names


def test_names_of_texts_may_hold_commas():
    (grows,) = [c for c in lm_claims.claims(results(), UNITS, GROUPS) if "tend to grow" in c["claim"]]
    assert "(a text, with a comma)" in grows["found"]


@pytest.mark.parametrize(
    ("order", "stable", "verdict"), [(0.99, 0.8, HOLDS), (0.99, 0.5, PARTLY), (0.5, 0.5, FAILS)]
)
def test_same_seed_needs_order_near_one_and_stability_near_the_papers(order, stable, verdict):
    one = {"method": "osae-paper", "start": "noise", "same_seed": agreement([order], [stable])}
    assert lm_claims._same_seed([one])["verdict"] == verdict


def test_intervals_without_width_tell_nothing_apart():
    point = {"prefix": LENGTHS, "mean": [0.9] * 3, "low": [0.9] * 3, "high": [0.9] * 3}
    assert not lm_claims._apart(point, curve(0.1), 0)
    assert lm_claims._apart(curve(0.9), curve(0.1), 0)
