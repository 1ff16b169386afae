"""Verdicts follow from the numbers, whichever way they come out."""

import pytest

from osae.experiments import world_claims
from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNTESTED

METHODS = ("vanilla", "topk", "topk-sorted-by-gain", "matryoshka-fixed", "matryoshka-random", "osae-paper")
KEYS = ("stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse", "fifr")


def row(method, quality, **other):
    """A row whose measures are all as good as `quality`, from 0 to 1."""
    values = dict.fromkeys(KEYS, quality) | {"mse": 1 - quality, "fifr": 1 - quality} | other
    measures = {key: {"mean": v, "low": v - 0.01, "high": v + 0.01} for key, v in values.items()}
    return {"method": method, **measures}


def verdicts(claims):
    return [claim["verdict"] for claim in claims]


def table(better, *names):
    """All methods as good as each other, but these."""
    found = [row(name, 0.5) for name in (*METHODS, "osae")]
    return [row(name, better) if name in names else r for r in found for name in [r["method"]]]


def test_claims_of_table_1_hold_where_the_ordered_sae_leads():
    won = world_claims.table_1(table(0.9, "osae-paper"))
    assert verdicts(won)[:4] == [HOLDS] * 4
    assert "6 of 6, in 6 with intervals that do not overlap" in won[0]["found"]
    lost = world_claims.table_1(table(0.1, "osae-paper"))
    assert verdicts(lost)[:4] == [FAILS] * 4
    narrow = world_claims.table_1(table(0.515, "osae-paper"))
    assert "6 of 6, in 0 with intervals" in narrow[0]["found"]
    assert verdicts(narrow)[:4] == [HOLDS] * 4
    level = world_claims.table_1(table(0.505, "osae-paper"))  # better, but within the interval
    assert verdicts(level)[:4] == [FAILS] * 4
    part = world_claims.table_1(table(0.9, "osae-paper", "matryoshka-fixed"))
    assert verdicts(part)[:3] == [PARTLY] * 3


def test_what_was_not_trained_cannot_be_tested():
    rows = [r for r in table(0.9, "osae-paper") if r["method"] != "matryoshka-random"]
    found = world_claims.table_1(rows)
    assert verdicts(found)[:3] == [UNTESTED] * 3
    assert "matryoshka-random" in found[0]["found"]


def test_the_error_that_goes_with_stability_is_told():
    levels = (0.2, 0.4, 0.6, 0.8)
    turned = [row(f"m{q}", q, mse=q) for q in levels]
    straight = [row(f"m{q}", q, fifr=q) for q in levels]
    assert world_claims._fifr([turned])["verdict"] == HOLDS
    assert world_claims._fifr([straight])["verdict"] == FAILS
    apart = [[row(f"m{q}", q, fifr=q, mse=1 - q) for q in levels]]  # FIFR ranks the wrong way within a world
    apart.append([row(f"m{q}", 10 + q, fifr=q - 10, mse=11 - q) for q in levels])  # and right between them
    assert world_claims._fifr(apart)["verdict"] != HOLDS
    sorted_too = [*turned, row("m-sorted", 0.9, fifr=1.0)]
    assert world_claims._fifr([sorted_too]) == world_claims._fifr([turned])


def sections(stability, order, error):
    """The Zipfian sweep, with the O-SAE as given and all others at stability 0.9, no order and error 0.1."""
    our = "topk-ours-sorted-by-gain"
    names = [name for name in (*METHODS, our) if name != "osae-paper"]
    others = [row(name, 0.9 + i / 1000, orderedness_truth=0.0, mse=0.1) for i, name in enumerate(names)]
    given = {"stability_truth": stability, "orderedness_truth": order, "mse": error}
    rows = [*others, *(row(name, 0.5, **given) for name in ("osae-paper", "osae"))]
    return [{"title": f"exponent {x}", "x": x, "rows": rows} for x in (0.0, 0.5, 1.0)]


def test_claims_of_the_zipfian_world():
    as_paper = verdicts(world_claims.zipfian(sections(0.9, 0.5, 0.2), "topk-ours"))
    assert as_paper[:5] == [HOLDS] * 5
    assert as_paper[6:] == [HOLDS] * 3
    against = verdicts(world_claims.zipfian(sections(0.6, -0.5, 0.05), "topk-ours"))
    assert against[0] == PARTLY  # TopK and Matryoshka are near 0.9, the O-SAE is not
    assert against[1:3] == [FAILS] * 2
    assert against[3] == HOLDS
    assert against[4] == FAILS
    assert against[6:] == [FAILS] * 3


def test_other_sizes_schedules_and_theory():
    rows = table(0.9, "osae")
    rows = [row("osae-paper", 0.8) if r["method"] == "osae-paper" else r for r in rows]
    won = [{"title": f"{n} atoms", "rows": rows} for n in (10, 30)]
    assert verdicts(world_claims.other_sizes(won)) == [HOLDS] * 3
    lost = [{"title": "50 atoms", "rows": table(0.1, "osae", "osae-paper")}]
    assert verdicts(world_claims.other_sizes([*won, *lost])) == [PARTLY] * 3
    schedules = ("no unit sweeping", "no warm-up of k")
    rows = [row("osae-paper", 0.8), row(schedules[0], 0.9), row(schedules[1], 0.1)]
    assert verdicts(world_claims.schedules(rows)) == [FAILS, HOLDS]

    def orders(frequency, energy):
        numbers = {"orderedness_frequency": frequency, "orderedness_energy": energy}
        return [row(name, 0.5, **numbers) for name in ("osae-paper", "osae")]

    assert verdicts(world_claims.order_by_energy(orders(-0.9, 0.9), -1.0)) == [FAILS]
    assert verdicts(world_claims.order_by_energy(orders(0.9, -0.9), -1.0)) == [HOLDS]


@pytest.mark.parametrize(
    ("ordered", "plain", "verdict"), [(0.9999, 0.1, HOLDS), (0.9, 0.1, FAILS), (1.0, 1.0, FAILS)]
)
def test_principal_directions(ordered, plain, verdict):
    rows = [
        {"method": name, "least_cosine": {"mean": value, "low": value, "high": value}}
        for name, value in (("ordered", ordered), ("plain", plain))
    ]
    assert verdicts(world_claims.principal_directions(rows)) == [verdict]
