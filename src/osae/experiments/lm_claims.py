"""What the paper says of language models, held against the results: each claim with numbers and a verdict."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from osae.experiments.claims import FAILS, HOLDS, MATRYOSHKA, PARTLY, UNTESTED, claimed, verdict_of
from osae.recipes import group_ends

ORDERED = ("osae-paper", "osae")
NEAR_ZERO, NEAR_ONE, CLOSE = 0.15, 0.95, 0.01
SHARES = ("novel", "reconstruction", "unchanged")


def claims(results: Mapping[str, Any], units: int, groups: int) -> list[dict[str, str]]:
    """Every claim, what was found, and the verdict."""
    first = group_ends(units, groups)[0]
    return [
        *(_above_matryoshka(results["curves"], method, first) for method in ORDERED),
        *(_above_sorted(results["curves"], measure) for measure in ("orderedness", "stability")),
        _explains(results["sections"]),
        _fixed_first_group(results["curves"], first),
        _early_units(results["curves"], first),
        _cost_of_crossing(results),
        _same_seed(results),
        _with_tokens(results["over_time"]),
        _stitching(results["stitching"]),
    ]


def _above_matryoshka(curves: Mapping[str, Any], method: str, first: int) -> dict[str, str]:
    claim = f"Orderedness of `{method}` is above both Matryoshka kinds at every prefix from {first} units on."
    return _always_above(claim, curves, method, MATRYOSHKA, "orderedness", first)


def _above_sorted(curves: Mapping[str, Any], measure: str) -> dict[str, str]:
    rivals = ("topk-sorted", *MATRYOSHKA, "osae-paper")
    claim = (
        f"{measure.capitalize()} of `osae` is above TopK sorted afterwards, both Matryoshka kinds and "
        "`osae-paper`, from the same start, at every prefix from 64 units on (our own claim)."
    )
    return _always_above(claim, curves, "osae", rivals, measure, 64)


def _always_above(
    claim: str, curves: Mapping[str, Any], method: str, rivals: Sequence[str], measure: str, since: int
) -> dict[str, str]:
    """Whether a method's curve is above its rivals' at every length from `since` on, in every setting."""
    won, clear, lost = 0, 0, []
    for place, by_method in curves.items():
        for rival in rivals:
            if method not in by_method or rival not in by_method:
                continue
            ours, theirs = by_method[method][measure], by_method[rival][measure]
            for i, length in enumerate(ours["prefix"]):
                if length < since:
                    continue
                mine, other = ours["mean"][i], theirs["mean"][i]
                if mine > other:
                    won += 1
                    clear += _apart(ours, theirs, i)
                else:
                    lost.append(
                        (other - mine, f"{rival} at {length:g} ({place}): {mine:.3f}, not {other:.3f}")
                    )
    if not won and not lost:
        return claimed(claim, UNTESTED, "the methods were not trained.")
    found = (
        f"above at {won} of {won + len(lost)} lengths, rivals and settings, "
        f"at {clear} of them with intervals that do not overlap"
    )
    if lost:
        return claimed(claim, PARTLY if won else FAILS, f"{found}; furthest behind {max(lost)[1]}.")
    if absent := [name for name in rivals if not any(name in by_method for by_method in curves.values())]:
        return claimed(claim, UNTESTED, f"{found}; not trained: {', '.join(absent)}.")
    return claimed(claim, HOLDS, f"{found}.")


def _apart(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], i: int) -> bool:
    """Whether the interval lies above the other; that of a single pair has no width, and says nothing."""
    known = ours["low"][i] < ours["high"][i] and theirs["low"][i] < theirs["high"][i]
    return known and ours["low"][i] > theirs["high"][i]


def _explains(sections: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    claim = (
        f"`osae` explains at most {CLOSE} less of the variance than TopK from the same start (our own claim)."
    )
    found, close = [], []
    for section in sections:
        rows = {row["method"]: row for row in section["rows"]}
        if "osae" in rows and "explained_variance" in rows.get("topk", {}):
            ours, theirs = (rows[name]["explained_variance"]["mean"] for name in ("osae", "topk"))
            close.append(theirs - ours <= CLOSE)
            found.append(f"{ours:.4f} against {theirs:.4f} ({section['title']})")
    if not found:
        return claimed(claim, UNTESTED, "`osae` and TopK were not both trained.")
    return claimed(claim, verdict_of(close), "; ".join(found) + ".")


def _fixed_first_group(curves: Mapping[str, Any], first: int) -> dict[str, str]:
    claim = f"Fixed Matryoshka has no order inside its first group of {first} units."
    # the longest prefix within the group: on a few units, chance alone gives large correlations
    found = {
        place: points[-1]
        for place, by_method in curves.items()
        if "matryoshka-fixed" in by_method
        and (points := _points(by_method["matryoshka-fixed"]["orderedness"], first))
    }
    if not found:
        return claimed(claim, UNTESTED, "it was not trained, or no prefix is so short.")
    text = "; ".join(f"{value:.3f} at {length:g} ({place})" for place, (length, value) in found.items())
    verdict = verdict_of([abs(value) <= NEAR_ZERO for _, value in found.values()])
    return claimed(claim, verdict, f"orderedness {text}.")


def _early_units(curves: Mapping[str, Any], first: int) -> dict[str, str]:
    claim = "Stability of ordered SAEs is high for early units and falls later."
    found, falls = [], []
    for place, by_method in curves.items():
        for method in ORDERED:
            if method in by_method:
                curve = by_method[method]["stability_of_full"]
                points = _points(curve)
                for length, early in _points(curve, first)[-1:]:
                    falls.append(early > points[-1][1])
                    found.append(f"{method} ({place}) {early:.3f} at {length:g}, {points[-1][1]:.3f} at all")
    if not found:
        return claimed(claim, UNTESTED, "no ordered SAE was trained, or no prefix is as short as a group.")
    return claimed(claim, verdict_of(falls), "; ".join(found) + " (units matched over the whole dictionary).")


def _cost_of_crossing(results: Mapping[str, Any]) -> dict[str, str]:
    claim = "Another text costs 0.1 to 0.2 in orderedness and stability."
    found, within = [], []
    for crossed in results["crossed"].values():
        if crossed["method"] not in ORDERED:
            continue
        same = [
            by_method[crossed["method"]]
            for place, by_method in results["curves"].items()
            if place.endswith(f", {crossed['start']}")
        ]
        costs = []
        for measure in ("orderedness", "stability"):
            level = sum(curves[measure]["mean"][-1] for curves in same) / len(same)
            costs.append(level - crossed["other_seed"][measure]["mean"][-1])
        within.append(all(0.1 <= cost <= 0.2 for cost in costs))
        found.append(f"{crossed['method']} (start from {crossed['start']}) {costs[0]:.3f} and {costs[1]:.3f}")
    if not found:
        return claimed(claim, UNTESTED, "it needs two texts, and an ordered SAE trained on both.")
    return claimed(claim, verdict_of(within), "; ".join(found) + ", whole dictionary.")


def _same_seed(results: Mapping[str, Any]) -> dict[str, str]:
    claim = (
        "With the same seed, another text changes little (nearly 1.0): late units hardly leave their start."
    )
    found, near = [], []
    for crossed in results["crossed"].values():
        if crossed["method"] in ORDERED and crossed["start"] == "noise":
            order, stay = (crossed["same_seed"][m]["mean"][-1] for m in ("orderedness", "stability"))
            near.append(min(order, stay) >= NEAR_ONE)
            found.append(f"{crossed['method']}: orderedness {order:.3f}, stability {stay:.3f}")
    if not found:
        return claimed(
            claim, UNTESTED, "it needs two texts trained from noise, where a seed fixes the start."
        )
    return claimed(claim, verdict_of(near), "; ".join(found) + ", whole dictionary.")


def _with_tokens(over_time: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    claim = "From noise, orderedness and stability grow over training."
    found, grows = [], []
    for name, moments in over_time.items():
        method, *text, start = name.split(", ")
        if method in ORDERED and start == "noise":
            for measure in ("orderedness", "stability"):
                values = [moment[measure][-1] for moment in moments]
                grows.append(all(a < b for a, b in pairwise(values)))
                course = ", ".join(f"{value:.3f}" for value in values)
                found.append(f"{measure} of {method} ({', '.join(text)}) {course}")
    if not found:
        return claimed(claim, UNTESTED, "no ordered SAE was trained from noise.")
    tokens = ", ".join(f"{moment['tokens']:,}" for moment in next(iter(over_time.values())))
    return claimed(
        claim, verdict_of(grows), f"{'; '.join(found)} after {tokens} tokens (whole dictionary, two seeds)."
    )


def _stitching(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    claim = (
        "Of a larger SAE's units, fewer are novel to a smaller O-SAE than to a BatchTopK or Matryoshka SAE."
    )
    novel = {row["method"]: row["novel"] for row in rows}
    if "batchtopk" not in novel or "osae-paper" not in novel:
        return claimed(claim, UNTESTED, "no larger BatchTopK SAE and O-SAE were trained.")
    others = [novel[name] for name in ("batchtopk", "matryoshka-random") if name in novel]
    beats = [novel["osae-paper"] < other for other in others]
    shares = "; ".join(
        f"{row['method']} {_shares(row)}" + (f" (paper {_shares(row['paper'])})" if row["paper"] else "")
        for row in rows
    )
    return claimed(claim, verdict_of(beats), f"novel / reconstruction / no change: {shares}.")


def _shares(row: Mapping[str, Any]) -> str:
    return " / ".join(f"{row[key]:.3f}" for key in SHARES)


def _points(curve: Mapping[str, Sequence[float]], longest: float = float("inf")) -> list[tuple[float, float]]:
    """Prefix lengths up to `longest`, and the mean at each."""
    return [point for point in zip(curve["prefix"], curve["mean"], strict=True) if point[0] <= longest]
