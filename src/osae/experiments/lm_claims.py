"""What is said of language models, by the paper and by us, held against the results.

The paper trains from noise: where that was done, its claims are judged there, and other starts only reported.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from osae.experiments.claims import FAILS, HOLDS, MATRYOSHKA, PARTLY, UNTESTED, judge, state_claim
from osae.recipes import group_ends

O_SAE, RANDOM = "osae-paper", "matryoshka-random"
NEAR_ZERO, NEAR_ONE, SAME_SEED, CLOSE = 0.15, 0.95, 0.75, 0.01
SHARES = ("novel", "reconstruction", "unchanged")

Curves = Mapping[str, Mapping[str, Any]]  # by text and start, then by method


def claims(results: Mapping[str, Any], units: int, groups: int) -> list[dict[str, str]]:
    """Every claim, what was found, and the verdict."""
    first = group_ends(units, groups)[0]
    curves, crossed = results["curves"], results["crossed"].values()
    return [
        _above_matryoshka(curves, first),
        _fixed_first_group(curves, first),
        _early_units(curves, first),
        _crossover(curves, first),
        _explains_less(results["sections"]),
        _cost_of_crossing(curves, crossed),
        _ordered_across(crossed),
        _same_seed(crossed),
        _gain_of_the_same_seed(crossed),
        _own_start(results["own_start"]),
        _with_tokens(results["over_time"]),
        _stitching(results["stitching"]),
        *(_above_sorted(curves, measure) for measure in ("orderedness", "stability")),
        _explains(results["sections"]),
    ]


# --- agreement of seeds on one text -----------------------------------------------------------------


def _above_matryoshka(curves: Curves, first: int) -> dict[str, str]:
    claim = f"Orderedness of O-SAE is above both Matryoshka kinds at every prefix from {first} units on."
    found = {
        start: _always_above(there, O_SAE, MATRYOSHKA, "orderedness", first)
        for start, there in _by_start(curves).items()
    }
    verdict, _ = next(iter(found.values()), (UNTESTED, ""))
    return state_claim(
        claim, verdict, " ".join(f"Start from {start}: {text}" for start, (_, text) in found.items())
    )


def _above_sorted(curves: Curves, measure: str) -> dict[str, str]:
    rivals = ("topk-sorted", *MATRYOSHKA, O_SAE)
    claim = (
        f"{measure.capitalize()} of `osae` is above TopK sorted afterwards, both Matryoshka kinds and "
        "`osae-paper`, from the same start, at every prefix from 64 units on (our own claim)."
    )
    return state_claim(claim, *_always_above(curves, "osae", rivals, measure, 64))


def _always_above(
    curves: Curves, method: str, rivals: Sequence[str], measure: str, since: int
) -> tuple[str, str]:
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
        return UNTESTED, "the methods were not trained."
    found = (
        f"above at {won} of {won + len(lost)} lengths, rivals and settings, "
        f"at {clear} of them with intervals that do not overlap"
    )
    if lost:
        return PARTLY if won else FAILS, f"{found}; furthest behind {max(lost)[1]}."
    if absent := [name for name in rivals if not any(name in by_method for by_method in curves.values())]:
        return UNTESTED, f"{found}; not trained: {', '.join(absent)}."
    return HOLDS, f"{found}."


def _apart(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], i: int) -> bool:
    """Whether the interval lies above the other; that of a single pair has no width, and says nothing."""
    known = ours["low"][i] < ours["high"][i] and theirs["low"][i] < theirs["high"][i]
    return known and ours["low"][i] > theirs["high"][i]


def _fixed_first_group(curves: Curves, first: int) -> dict[str, str]:
    claim = f"Fixed Matryoshka has no order inside its first group of {first} units."
    found = _Found()
    for place, by_method in curves.items():
        if "matryoshka-fixed" in by_method:
            # the longest prefix within the group: on a few units, chance alone gives large correlations
            for length, value in _points(by_method["matryoshka-fixed"]["orderedness"], first)[-1:]:
                found.add(place, abs(value) <= NEAR_ZERO, f"orderedness {value:.3f} at {length:g} ({place})")
    return found.state_claim(claim, "it was not trained, or no prefix is so short.")


def _early_units(curves: Curves, first: int) -> dict[str, str]:
    claim = "Stability of O-SAE is high for early units and falls later."
    found = _Found()
    for place, by_method in curves.items():
        if O_SAE in by_method:
            within, whole = (_points(by_method[O_SAE][key]) for key in ("stability", "stability_of_full"))
            for i in [i for i, (length, _) in enumerate(within) if length <= first][-1:]:
                text = (
                    f"{within[i][1]:.3f} at {within[i][0]:g}, {within[-1][1]:.3f} at all; with units matched "
                    f"over the whole dictionary {whole[i][1]:.3f} and {whole[-1][1]:.3f} ({place})"
                )
                found.add(place, within[i][1] > within[-1][1], text)
    return found.state_claim(claim, "no O-SAE was trained, or no prefix is as short as a group.")


def _crossover(curves: Curves, first: int) -> dict[str, str]:
    claim = (
        "O-SAE is more stable than random Matryoshka on the first units, and less than both Matryoshka kinds "
        "on the whole dictionary."
    )
    found = _Found()
    for place, by_method in curves.items():
        if not {O_SAE, *MATRYOSHKA} <= set(by_method):
            continue
        stable = {name: _points(by_method[name]["stability"]) for name in (O_SAE, *MATRYOSHKA)}
        for i in [i for i, (length, _) in enumerate(stable[O_SAE]) if length <= first][-1:]:
            early, late = ({name: points[at][1] for name, points in stable.items()} for at in (i, -1))
            more = early[O_SAE] > early[RANDOM]
            less = late[O_SAE] < min(late[name] for name in MATRYOSHKA)
            text = f"{early[O_SAE]:.3f} against {early[RANDOM]:.3f} at {stable[O_SAE][i][0]:g}, "
            others = " and ".join(f"{late[name]:.3f}" for name in MATRYOSHKA)
            found.add(place, more, "")
            found.add(place, less, f"{text}{late[O_SAE]:.3f} against {others} at all ({place})")
    return found.state_claim(claim, "O-SAE and both Matryoshka kinds were not all trained.")


# --- error ------------------------------------------------------------------------------------------


def _explains_less(sections: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    claim = "O-SAE explains slightly less than both Matryoshka kinds."
    found = _Found()
    for title, explained in _explained(sections).items():
        if {O_SAE, *MATRYOSHKA} <= set(explained):
            ours, others = explained[O_SAE], [explained[name] for name in MATRYOSHKA]
            text = f"{ours:.4f} against {' and '.join(f'{other:.4f}' for other in others)} ({title})"
            found.add(title, ours < min(others), text)
    return found.state_claim(claim, "O-SAE and both Matryoshka kinds were not all trained.")


def _explains(sections: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    claim = (
        f"`osae` explains at most {CLOSE} less of the variance than TopK from the same start (our own claim)."
    )
    found = _Found(every_start=True)
    for title, explained in _explained(sections).items():
        if {"osae", "topk"} <= set(explained):
            ours, theirs = explained["osae"], explained["topk"]
            found.add(title, theirs - ours <= CLOSE, f"{ours:.4f} against {theirs:.4f} ({title})")
    return found.state_claim(claim, "`osae` and TopK were not both trained.")


def _explained(sections: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The explained variance of each method, by section."""
    key = "explained_variance"
    return {
        s["title"]: {row["method"]: row[key]["mean"] for row in s["rows"] if key in row} for s in sections
    }


# --- across texts -----------------------------------------------------------------------------------


def _cost_of_crossing(curves: Curves, crossed: Any) -> dict[str, str]:
    claim = "Another text costs 0.1 to 0.2 in orderedness and stability."
    found = _Found()
    for one in crossed:
        if one["method"] != O_SAE:
            continue
        same = [by[O_SAE] for place, by in curves.items() if _start_of(place) == one["start"]]
        costs = []
        for measure in ("orderedness", "stability"):
            level = sum(curve[measure]["mean"][-1] for curve in same) / len(same)
            costs.append(level - one["other_seed"][measure]["mean"][-1])
        within = all(0.1 <= cost <= 0.2 for cost in costs)
        found.add(one["start"], within, f"{costs[0]:.3f} and {costs[1]:.3f} (start from {one['start']})")
    return found.state_claim(claim, "it needs two texts, and an O-SAE trained on both.", ", whole dictionary")


def _ordered_across(crossed: Any) -> dict[str, str]:
    claim = "Across texts, with other seeds, O-SAE is more ordered than random Matryoshka."
    found = _Found()
    for start, by_method in _across(crossed).items():
        if {O_SAE, RANDOM} <= set(by_method):
            ours, theirs = (by_method[m]["other_seed"]["orderedness"]["mean"][-1] for m in (O_SAE, RANDOM))
            found.add(start, ours > theirs, f"{ours:.3f} against {theirs:.3f} (start from {start})")
    return found.state_claim(claim, "it needs two texts, and both trained on them.", ", whole dictionary")


def _same_seed(crossed: Any) -> dict[str, str]:
    claim = (
        "With the same seed from noise, O-SAEs of two texts have nearly the same order (paper: near 1.0; "
        f"here: at least {NEAR_ONE}) and stability 0.8 (here: at least {SAME_SEED})."
    )
    by_method = _across(crossed).get("noise", {})
    if O_SAE not in by_method:
        return state_claim(
            claim, UNTESTED, "it needs two texts trained from noise, where a seed fixes the start."
        )
    said = []
    for name, one in by_method.items():
        order, stay = (one["same_seed"][m]["mean"][-1] for m in ("orderedness", "stability"))
        said.append(f"`{name}` {order:.3f} and {stay:.3f}")
    ours = by_method[O_SAE]["same_seed"]
    near = [ours["orderedness"]["mean"][-1] >= NEAR_ONE, ours["stability"]["mean"][-1] >= SAME_SEED]
    text = f"orderedness and stability, whole dictionary: {', '.join(said)}."
    return state_claim(claim, judge(near), text)


def _gain_of_the_same_seed(crossed: Any) -> dict[str, str]:
    claim = "From noise, the same seed on two texts gains O-SAE more than it gains random Matryoshka."
    by_method = _across(crossed).get("noise", {})
    if not {O_SAE, RANDOM} <= set(by_method):
        return state_claim(claim, UNTESTED, "it needs two texts trained from noise, with both methods.")
    said, more = [], []
    for measure in ("orderedness", "stability"):
        ours, theirs = (
            by_method[m]["same_seed"][measure]["mean"][-1] - by_method[m]["other_seed"][measure]["mean"][-1]
            for m in (O_SAE, RANDOM)
        )
        more.append(ours > theirs)
        said.append(f"{measure} {ours:+.3f} against {theirs:+.3f}")
    return state_claim(claim, judge(more), f"{', '.join(said)}, whole dictionary.")


def _across(crossed: Any) -> dict[str, dict[str, Any]]:
    """The agreement across texts by start, then by method."""
    found: dict[str, dict[str, Any]] = {}
    for one in crossed:
        found.setdefault(one["start"], {})[one["method"]] = one
    return found


# --- over training ----------------------------------------------------------------------------------


def _own_start(own: Mapping[str, Any]) -> dict[str, str]:
    claim = (
        "The late units of O-SAE hardly leave their start: from noise the order of the whole dictionary "
        f"stays that of its start (here: at least {NEAR_ONE})."
    )
    said, stays = [], []
    for name, curves in own.items():
        method, *_, start = name.split(", ")
        if start == "noise" and method in (O_SAE, RANDOM):
            order, stay = (curves[m]["mean"][-1] for m in ("orderedness", "stability"))
            stays += [order >= NEAR_ONE] if method == O_SAE else []
            said.append(f"{name.removesuffix(', noise')}: orderedness {order:.3f}, stability {stay:.3f}")
    if not stays:
        return state_claim(claim, UNTESTED, "no O-SAE was trained from noise.")
    return state_claim(claim, judge(stays), f"with its own start, {'; '.join(said)}.")


def _with_tokens(over_time: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    claim = "From noise, orderedness and stability of O-SAE tend to grow over training."
    found, grows = [], []
    for name, moments in over_time.items():
        method, *text, start = name.split(", ")
        if method == O_SAE and start == "noise":
            for measure in ("orderedness", "stability"):
                values = [moment[measure][-1] for moment in moments]
                grows.append(all(a < b for a, b in pairwise(values)))
                course = ", ".join(f"{value:.3f}" for value in values)
                found.append(f"{measure} ({', '.join(text)}) {course}")
    if not found:
        return state_claim(claim, UNTESTED, "no O-SAE was trained from noise.")
    tokens = ", ".join(f"{moment['tokens']:,}" for moment in next(iter(over_time.values())))
    return state_claim(
        claim, judge(grows), f"{'; '.join(found)} after {tokens} tokens (whole dictionary, two seeds)."
    )


def _stitching(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    claim = (
        "Of a larger SAE's units, fewer are novel to a smaller O-SAE than to a BatchTopK or Matryoshka SAE."
    )
    novel = {row["method"]: row["novel"] for row in rows}
    if "batchtopk" not in novel or O_SAE not in novel:
        return state_claim(claim, UNTESTED, "no larger BatchTopK SAE and O-SAE were trained.")
    others = [novel[name] for name in ("batchtopk", RANDOM) if name in novel]
    beats = [novel[O_SAE] < other for other in others]
    shares = "; ".join(
        f"{row['method']} {_shares(row)}" + (f" (paper {_shares(row['paper'])})" if row["paper"] else "")
        for row in rows
    )
    return state_claim(claim, judge(beats), f"novel / reconstruction / no change: {shares}.")


def _shares(row: Mapping[str, Any]) -> str:
    return " / ".join(f"{row[key]:.3f}" for key in SHARES)


# --- what claims are made of ------------------------------------------------------------------------


class _Found:
    """Outcomes and words by start; the verdict is that of noise where there is any, or of every start."""

    def __init__(self, *, every_start: bool = False):
        self._outcomes: dict[str, list[bool]] = {}
        self._words: list[str] = []
        self._every = every_start

    def add(self, place: str, outcome: bool, words: str) -> None:
        self._outcomes.setdefault(_start_of(place), []).append(outcome)
        self._words += [words] if words else []

    def state_claim(self, claim: str, untested: str, of_what: str = "") -> dict[str, str]:
        if not self._outcomes:
            return state_claim(claim, UNTESTED, untested)
        every = [outcome for outcomes in self._outcomes.values() for outcome in outcomes]
        outcomes = every if self._every else self._outcomes.get("noise", every)
        return state_claim(claim, judge(outcomes), f"{'; '.join(self._words)}{of_what}.")


def _start_of(place: str) -> str:
    """The kind of start in a place's name: "wikipedia, noise", "linux, start from data", "noise"."""
    return place.rpartition(" ")[2]


def _by_start(curves: Curves) -> dict[str, Curves]:
    """The curves of each kind of start, noise first."""
    starts = sorted({_start_of(place) for place in curves}, key=lambda start: start != "noise")
    return {s: {place: by for place, by in curves.items() if _start_of(place) == s} for s in starts}


def _points(curve: Mapping[str, Sequence[float]], longest: float = float("inf")) -> list[tuple[float, float]]:
    """Prefix lengths up to `longest`, and the mean at each."""
    return [point for point in zip(curve["prefix"], curve["mean"], strict=True) if point[0] <= longest]
