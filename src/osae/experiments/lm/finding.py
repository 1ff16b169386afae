"""Find what the results show about each claim on language models, case by case."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from osae.experiments.claims import Somewhere, Statement, shift, within
from osae.experiments.lm.cases import (
    Case,
    Compared,
    places_with,
    since_first_group,
    since_group,
    within_first_group,
)
from osae.metrics.statistics import Estimate, contrast, difference, estimate
from osae.results.base import Interval, Number, as_interval
from osae.results.experiment import MethodRow
from osae.results.lm import Crossing, Curve, LMResult, Moment, Progression

# --- agreement of seeds on one text -----------------------------------------------------------------


def find_near_zero(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the measure is near zero inside the first group."""
    (limit,) = claim.thresholds
    for place, by_method in places_with(claim, result):
        for measure in claim.measures:
            curve = by_method[claim.method][measure]
            for i in within_first_group(curve, result):
                words = f"{measure} {curve.mean[i]:.3f} at {curve.prefix[i]} units ({place})"
                parts = within(estimate(curve.at(i)), -limit, limit)
                yield Case(place.start, (Statement(f"{measure}, {place}", parts),), words)


def find_jump(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the measure of every prefix from the second group on is above that of the first group."""
    (measure,) = claim.measures
    for place, by_method in places_with(claim, result):
        curve = by_method[claim.method][measure]
        later = since_group(curve, result, 1)
        for i in within_first_group(curve, result) if later else ():
            parts = {f"{curve.prefix[j]} units": difference(curve.at(j), curve.at(i)) for j in later}
            course = ", ".join(f"{curve.mean[j]:.3f} at {curve.prefix[j]}" for j in (i, *later))
            yield Case(place.start, (Statement(str(place), parts),), f"{course} units ({place})")


def find_falling(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the stability of the first group is above that of the whole dictionary."""
    for place, by_method in places_with(claim, result):
        within_prefix, full = (by_method[claim.method][measure] for measure in claim.measures)
        for i in within_first_group(within_prefix, result):
            words = (
                f"{within_prefix.mean[i]:.3f} at {within_prefix.prefix[i]} units, "
                f"{within_prefix.mean[-1]:.3f} at all units; with units matched over the whole dictionary "
                f"{full.mean[i]:.3f} and {full.mean[-1]:.3f} ({place})"
            )
            found = difference(within_prefix.at(i), within_prefix.at(-1))
            yield Case(place.start, (Statement(str(place), {"": found}),), words)


def find_crossover(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether a method is ahead of its last rival in the first group, and behind all rivals overall."""
    (measure,), rivals = claim.measures, claim.rivals
    for place, by_method in places_with(claim, result):
        ours = by_method[claim.method][measure]
        others = {rival: by_method[rival][measure] for rival in rivals}
        last = others[rivals[-1]]
        for i in within_first_group(ours, result):
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
    """Describe where one curve falls below another."""
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
    """Yield whether the loss from one text to two lies between the thresholds, at every prefix."""
    for one in [crossing for crossing in result.crossings if crossing.method == claim.method]:
        found = [(place, by_method[claim.method]) for place, by_method in places_with(claim, result)]
        same = [curves for place, curves in found if place.start == one.start]
        for measure in claim.measures if same else ():
            across, parts, said = one.other_seed[measure], {}, []
            for i in since_first_group(across, result):
                mean = sum(curves[measure].mean[i] for curves in same) / len(same) - across.mean[i]
                inside = [(1 / len(same), curves[measure].at(i)) for curves in same]
                cost = contrast([*inside, (-1.0, across.at(i))])
                for side, part in within(cost, *claim.thresholds).items():
                    parts[f"{across.prefix[i]} units, {side}"] = part
                said.append(f"{mean:.3f} at {across.prefix[i]}")
            about = f"{measure}, start from {one.start}"
            words = f"{measure} {', '.join(said)} (start from {one.start})"
            yield Case(one.start, (Statement(about, parts),), words)


def _pair_across(claim: Compared, result: LMResult) -> Iterator[tuple[str, Curve, Curve]]:
    """Yield the agreement of different seeds across texts, for the method and its rival, by start."""
    (measure,), (rival,) = claim.measures, claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if claim.methods <= set(by_method):
            yield start, by_method[claim.method].other_seed[measure], by_method[rival].other_seed[measure]


def find_above_across(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether different seeds agree more across texts than those of the rival, at every prefix."""
    for start, ours, theirs in _pair_across(claim, result):
        lengths = since_first_group(ours, result)
        words = ", ".join(
            f"{ours.mean[i]:.3f} against {theirs.mean[i]:.3f} at {ours.prefix[i]}" for i in lengths
        )
        parts = {f"{ours.prefix[i]} units": difference(ours.at(i), theirs.at(i)) for i in lengths}
        yield Case(start, (Statement(f"start from {start}", parts),), f"{words} (start from {start})")


def find_early_across(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether different seeds agree more across texts than the rival's, within the first group."""
    for start, ours, theirs in _pair_across(claim, result):
        for i in within_first_group(ours, result):
            words = f"{ours.mean[i]:.3f} against {theirs.mean[i]:.3f} at {ours.prefix[i]} units"
            statement = Statement(f"start from {start}", {"": difference(ours.at(i), theirs.at(i))})
            yield Case(start, (statement,), f"{words} (start from {start})")


def find_alike(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether each method's seeds agree as much on one text as on the other, at every prefix."""
    (limit,) = claim.thresholds
    for start in dict.fromkeys(place.start for place in result.places()):
        texts = [result.curves_at(place) for place in result.places() if place.start == start][:2]
        for method in (claim.method, *claim.rivals):
            if len(texts) < 2 or not all(method in curves for curves in texts):
                continue
            for measure in claim.measures:
                one, other = (curves[method][measure] for curves in texts)
                lengths = since_first_group(one, result)
                gaps = {one.prefix[i]: difference(one.at(i), other.at(i)) for i in lengths}
                parts = {
                    f"{length} units, {side}": part
                    for length, gap in gaps.items()
                    for side, part in within(gap, -limit, limit).items()
                }
                at = max(lengths, key=lambda i: abs(one.mean[i] - other.mean[i]))
                words = (
                    f"{measure} of `{method}` {one.mean[at]:.3f} and {other.mean[at]:.3f} at "
                    f"{one.prefix[at]} units (start from {start})"
                )
                yield Case(start, (Statement(f"{measure}, {method}, {start}", parts),), words)


# --- checkpoints of similar loss --------------------------------------------------------------------


def find_above_at_similar_loss(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the method is above its rivals at every prefix, at moments of equal explained variance.

    The target is the explained variance of the method or of its rivals at the end of training, whichever is
    lower. Each is compared at its moment nearest to the target, unless these differ by more than the limit.
    """
    (measure,), (limit,) = claim.measures, claim.thresholds
    for place in dict.fromkeys(one.place for one in result.progressions):
        moments = {one.method: _measured(one) for one in result.progressions if one.place == place}
        for rival in claim.rivals:
            if not moments.get(claim.method) or not moments.get(rival):
                continue
            ours, theirs = _nearest(moments[claim.method], moments[rival])
            gap = abs(_explained(ours) - _explained(theirs))
            words = (
                f"`{rival}`, {place}: explained variance {_explained(ours):.3f} after {ours.tokens:,} tokens "
                f"and {_explained(theirs):.3f} after {theirs.tokens:,}"
            )
            if gap > limit:
                yield Case(place.start, (), f"{words}, too far apart")
                continue
            mine, others = ours.seeds[measure], theirs.seeds[measure]
            lengths = since_first_group(mine, result)
            parts = {f"{mine.prefix[i]} units": difference(mine.at(i), others.at(i)) for i in lengths}
            at = min(lengths, key=lambda i: mine.mean[i] - others.mean[i])
            words += f", least lead {mine.mean[at] - others.mean[at]:+.3f} at {mine.prefix[at]} units"
            yield Case(place.start, (Statement(f"{rival}, {place}", parts),), words)


def _measured(one: Progression) -> list[Moment]:
    """Return the moments whose explained variance is known."""
    return [moment for moment in one.moments if moment.explained_variance is not None]


def _explained(moment: Moment) -> float:
    return moment.explained_variance.mean if moment.explained_variance else 0.0


def _nearest(ours: Sequence[Moment], theirs: Sequence[Moment]) -> tuple[Moment, Moment]:
    """Return the moments of both that are nearest to the lower of their final explained variances."""
    target = min(_explained(ours[-1]), _explained(theirs[-1]))

    def distance(moment: Moment) -> float:
        return abs(_explained(moment) - target)

    return min(ours, key=distance), min(theirs, key=distance)


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


def find_seed_help(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the same seed agrees more across texts than different ones, early and as a whole."""
    for one in result.crossings:
        for measure in claim.measures if one.method in claim.methods else ():
            same, other = one.same_seed[measure], one.other_seed[measure]
            for i in dict.fromkeys([*within_first_group(same, result), len(same.prefix) - 1]):
                about = f"{measure}, {one.method}, {same.prefix[i]} units, start from {one.start}"
                gain = contrast([(1.0, same.at(i)), (-1.0, other.at(i))])
                words = f"{about}: {same.mean[i]:.3f} against {other.mean[i]:.3f}"
                yield Case(one.start, (Statement(about, {"": gain}),), words)


def find_seed_gain(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether using the same seed adds more to the agreement across texts than for the rival."""
    return _find_seed_gain(claim, result, lambda curve: [len(curve.prefix) - 1])


def find_early_seed_gain(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether using the same seed adds more within the first group than for the rival."""
    return _find_seed_gain(claim, result, lambda curve: within_first_group(curve, result))


def _find_seed_gain(
    claim: Compared, result: LMResult, choose: Callable[[Curve], Sequence[int]]
) -> Iterator[Case]:
    """Yield the gains of the method and of its rival at the chosen lengths."""
    (rival,) = claim.rivals
    for start in dict.fromkeys(one.start for one in result.crossings):
        by_method = result.crossings_from(start)
        if not claim.methods <= set(by_method):
            continue
        mine, other = by_method[claim.method], by_method[rival]
        statements, said = [], []
        for measure in claim.measures:
            for i in choose(mine.same_seed[measure]):
                gains = [
                    one.same_seed[measure].mean[i] - one.other_seed[measure].mean[i] for one in (mine, other)
                ]
                statements.append(
                    Statement(f"{measure}, start from {start}", {"": _gain_lead(mine, other, measure, i)})
                )
                said.append(f"{measure} {gains[0]:+.3f} against {gains[1]:+.3f}")
        if statements:
            yield Case(start, tuple(statements), ", ".join(said))


def _gain_lead(mine: Crossing, other: Crossing, measure: str, i: int) -> Estimate | None:
    """Return how much more using the same seed adds to the agreement across texts than for another method."""
    return contrast(
        [
            (sign, curves[measure].at(i))
            for sign, curves in (
                (1.0, mine.same_seed),
                (-1.0, mine.other_seed),
                (-1.0, other.same_seed),
                (1.0, other.other_seed),
            )
        ]
    )


# --- during training --------------------------------------------------------------------------------


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


def find_own_start_lead(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether the whole dictionary stays closer to its start than that of the rival."""
    (measure,), (rival,) = claim.measures, claim.rivals
    found = {(one.place, one.method): one.curves[measure].at(-1) for one in result.own_starts}
    for place in dict.fromkeys(place for place, _ in found):
        ours, theirs = found.get((place, claim.method)), found.get((place, rival))
        if ours is not None and theirs is not None:
            words = f"{measure} {ours.mean:.3f} against {theirs.mean:.3f} ({place.text})"
            yield Case(place.start, (Statement(str(place), {"": difference(ours, theirs)}),), words)


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
    """Yield whether some prefix agrees less at the end than at some moment, while all units agree more."""
    for one in result.progressions:
        moments = [moment for moment in one.moments if moment.tokens > 0]
        if one.method not in claim.methods or len(moments) < 2:
            continue
        for measure in claim.measures:
            last = moments[-1].seeds[measure]
            tried = {
                f"{last.prefix[i]} units from {moment.tokens:,} tokens on": (moment.seeds[measure], i)
                for moment in moments[:-1]
                for i in since_first_group(last, result)[:-1]
            }
            if not tried:
                continue
            cases = [
                Statement(
                    name,
                    {
                        "their fall": difference(first.at(i), last.at(i)),
                        "the rise of all units": difference(last.at(-1), first.at(-1)),
                    },
                )
                for name, (first, i) in tried.items()
            ]
            statement = Somewhere(f"{measure}, {one.method}, {one.place}", cases)
            best = statement.find_best().about
            first, i = tried[best]
            words = (
                f"{statement.about}: {first.mean[i]:.3f} to {last.mean[i]:.3f} at {best}, "
                f"{first.mean[-1]:.3f} to {last.mean[-1]:.3f} at all"
            )
            yield Case(one.place.start, (statement,), words)


# --- stitching --------------------------------------------------------------------------------------


def find_fewer_novel(claim: Compared, result: LMResult) -> Iterator[Case]:
    """Yield whether fewer units are novel to a method than to its rivals; the first rival is required."""
    rows = {row.method: row for row in result.stitching.rows} if result.stitching else {}
    if claim.method in rows and claim.rivals[0] in rows:
        key = claim.measures[0]
        if not all(key in row.measures for row in rows.values()):
            return
        ours = rows[claim.method].interval(key)
        statements = [
            Statement(rival, {"": difference(rows[rival].interval(key), ours)})
            for rival in claim.rivals
            if rival in rows
        ]
        start = result.stitching.start if result.stitching else None
        words = "; ".join(_quote_shares(row, claim.measures) for row in rows.values())
        yield Case(start or "", tuple(statements), f"{words}{_quote_sizes(result)}")


def _quote_sizes(result: LMResult) -> str:
    """Describe the sizes and the start of the stitched SAEs."""
    table = result.stitching
    if table is None or table.start is None:
        return ""
    return f" ({table.large:,} units in {table.small:,}, start from {table.start})"


def _quote_shares(row: MethodRow, keys: Sequence[str]) -> str:
    known = row.paper is not None and all(key in row.paper.measures for key in keys)
    paper = f" (paper {_shares(row.paper.measures, keys)})" if row.paper and known else ""
    return f"`{row.method}` {_shares(row.measures, keys)}{paper}"


def _shares(measures: Mapping[str, Number], keys: Sequence[str]) -> str:
    found = [as_interval(measures[key]) for key in keys]
    return " / ".join("–" if one is None else f"{one.mean:.3f}" for one in found)
