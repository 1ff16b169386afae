"""Score the units of compared SAEs: the partners of each unit in the other SAEs, and where it is found again.

Shapes: n units that take part, d width. See `osae.metrics.reproducibility` for the rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics
from osae.devices import map_in_threads
from osae.metrics.reproducibility import (
    chance_of,
    level_of_different,
    level_of_shuffled,
    support_of,
)
from osae.progress import Steps
from osae.results.comparison import MatchingResult, PairResult
from osae.results.units import Numbers, Partners, SAEUnits, Split, UnitTable
from osae.seeds import generator
from osae.studies.activity import Activity

_INSIDE = 2048  # units sampled to find how near different units of the same SAE are
_PARTS = 8  # maximum number of parts of a split unit
_EXPLAINED = 0.5  # minimum share of a unit's squared length that its parts explain together
_DIGITS = 6

_Pairs = dict[int, tuple[int, float]]  # the partner of a unit and how similar it is, by unit
_Matched = dict[tuple[int, int], _Pairs]


@dataclass(frozen=True, eq=False)
class UnitSide:
    """One SAE: the rows that are compared, their units, and what else is known about them."""

    name: str
    recipe: str | None
    rows: Float[Tensor, "n d"]
    units: Int[Tensor, "n"]
    encoder: Float[Tensor, "n d"] | None = None
    activity: Activity | None = None

    @property
    def frequency(self) -> Float[Tensor, "n"] | None:
        """How often each unit fires; None without activations."""
        return None if self.activity is None else self.activity.frequency


@dataclass(frozen=True, eq=False)
class _Found:
    """The neighbours of one SAE's units in another, indexed by position among the units that take part."""

    near: metrics.Neighbours
    mutual: Bool[Tensor, "n"]
    different: Float[Tensor, "n"]  # the cosine that different units stay below
    level: Float[Tensor, "n"]  # the cosine above which a unit counts as found
    found: Bool[Tensor, "n"]
    support: Float[Tensor, "n"]
    chance: Float[Tensor, "n"]
    encoder: Float[Tensor, "n"] | None
    correlation: Float[Tensor, "n"] | None


def score_units(
    sides: Sequence[UnitSide],
    pairs: Sequence[PairResult],
    *,
    same: float,
    absolute: bool,
    steps: Steps,
    cosines: Mapping[tuple[int, int], metrics.CosineMap],
    threads: int = 1,
) -> UnitTable:
    """Return every unit of every SAE with its partners in the other SAEs.

    `same` is the cosine above which two units count as the same. The cosines of every pair are added to its
    map in `cosines`. Pairs are processed on `threads` threads.
    """
    inside = map_in_threads(lambda side: _nearest_inside(side, absolute), sides, threads)

    def judge(pair: PairResult) -> tuple[_Found, _Found]:
        a, b = sides[pair.a], sides[pair.b]
        ahead, back = metrics.find_neighbours(
            a.rows, b.rows, absolute=absolute, cosines=cosines[pair.a, pair.b]
        )
        ways = ((a, b, ahead, back, inside[pair.b]), (b, a, back, ahead, inside[pair.a]))
        found = tuple(_judge(*way, same, absolute) for way in ways)
        steps(f"{pair.a} and {pair.b}, units")
        return found[0], found[1]

    found: dict[tuple[int, int], _Found] = {}
    splits: list[Split] = []
    for pair, both in zip(pairs, map_in_threads(judge, pairs, threads), strict=True):
        a, b = pair.a, pair.b
        found[a, b], found[b, a] = both
        splits += _find_splits(sides, found, a, b) + _find_splits(sides, found, b, a)
    matched = _matched_partners({(pair.a, pair.b): pair.matching for pair in pairs})
    streams = _matched_partners(
        {(pair.a, pair.b): pair.stream_matching for pair in pairs if pair.stream_matching}
    )
    counted = [_choose_counted(sides, place) for place in range(len(sides))]
    expected = _expect(counted, found)
    saes = tuple(
        _describe(sides, place, found, matched, streams, counted[place], expected)
        for place in range(len(sides))
    )
    return UnitTable(saes, tuple(splits))


def _nearest_inside(side: UnitSide, absolute: bool) -> tuple[Tensor, Tensor | None]:
    """Return the cosine of the nearest other unit in the SAE, and the frequency, for a sample of units."""
    chosen = torch.randperm(len(side.rows), generator=generator(0, "units inside"))[:_INSIDE]
    frequency = None if side.frequency is None else side.frequency[chosen]
    return metrics.nearest_inside(side.rows, chosen, absolute=absolute), frequency


def _judge(
    side: UnitSide,
    other: UnitSide,
    near: metrics.Neighbours,
    reverse: metrics.Neighbours,
    inside: tuple[Tensor, Tensor | None],
    same: float,
    absolute: bool,
) -> _Found:
    """Return which units are found again in the other SAE."""
    different = level_of_different(*inside, side.frequency, len(side.rows))
    level = different.clamp_min(same)
    correlation, fires = _compare_firing(side, other, near.nearest)
    return _Found(
        near=near,
        mutual=reverse.nearest[near.nearest] == torch.arange(len(near.nearest)),
        different=different,
        level=level,
        found=(near.cosine > level) & fires,
        support=support_of(near.cosine, level, correlation),
        chance=chance_of(near.second > level, side.frequency),
        encoder=_compare_encoders(side, other, near.nearest, absolute),
        correlation=correlation,
    )


def _compare_firing(side: UnitSide, other: UnitSide, nearest: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the correlation with the nearest units, and where it exceeds that of shuffled pairs."""
    if side.activity is None or other.activity is None:
        return None, torch.ones(len(nearest), dtype=torch.bool)
    a, b = side.activity.stream, other.activity.stream
    own = torch.arange(len(nearest))
    correlation = metrics.correlate_pairs(a, b, own, nearest)
    shuffled = metrics.correlate_pairs(a, b.shift(b.samples // 2), own, nearest)
    return correlation, correlation > level_of_shuffled(shuffled, side.frequency).clamp_min(0)


def _compare_encoders(
    side: UnitSide, other: UnitSide, nearest: Tensor, absolute: bool
) -> Float[Tensor, "n"] | None:
    if side.encoder is None or other.encoder is None or side.encoder.shape[1] != other.encoder.shape[1]:
        return None  # a transcoder may read inputs of another width
    return metrics.pair_cosines(side.encoder, other.encoder[nearest], absolute=absolute)


# --- splits -----------------------------------------------------------------------------------------


def _find_splits(
    sides: Sequence[UnitSide], found: dict[tuple[int, int], _Found], one: int, other: int
) -> list[Split]:
    """Return the units of one SAE that the other SAE splits into several parts.

    The parts of a unit are the units of the other SAE that have it as their nearest unit, and are nearer to
    it than different units are. Together they explain more than half of it.
    """
    back = found[other, one]
    parts = (back.near.cosine > back.different).nonzero().flatten()
    whole = back.near.nearest[parts]
    several = (torch.bincount(whole, minlength=len(sides[one].rows)) > 1).nonzero().flatten()
    made = [_split(sides, one, other, int(unit), parts[whole == unit], back) for unit in several]
    return [split for split in made if split.explained > _EXPLAINED]


def _split(sides: Sequence[UnitSide], one: int, other: int, unit: int, parts: Tensor, back: _Found) -> Split:
    cosines = back.near.cosine[parts]
    best = cosines.argsort(descending=True, stable=True)[:_PARTS]
    parts, cosines = parts[best], cosines[best]
    target = torch.nn.functional.normalize(sides[one].rows[unit].double(), dim=0)
    atoms = sides[other].rows[parts].double()
    weights = torch.linalg.lstsq(atoms.T, target[:, None], driver="gelsd").solution
    explained = 1.0 - float((target - (atoms.T @ weights)[:, 0]).square().sum())
    return Split(
        sae=one,
        unit=int(sides[one].units[unit]),
        other=other,
        units=tuple(sides[other].units[parts].tolist()),
        cosines=tuple(round(value, _DIGITS) for value in cosines.tolist()),
        explained=round(explained, _DIGITS),
    )


# --- the table --------------------------------------------------------------------------------------


def _matched_partners(matchings: Mapping[tuple[int, int], MatchingResult]) -> _Matched:
    """Return the partner of every matched unit and how similar it is, by pair of SAEs and by unit."""
    found: _Matched = {}
    for (a, b), matching in matchings.items():
        found[a, b] = {left: (right, similarity) for left, right, similarity in matching.pairs}
        found[b, a] = {right: (left, similarity) for left, right, similarity in matching.pairs}
    return found


def _choose_counted(sides: Sequence[UnitSide], place: int) -> list[int]:
    """Return the SAEs that count for reproducibility: those of the same recipe, or else all others.

    SAEs of unknown recipes are not taken to share one.
    """
    others = [other for other in range(len(sides)) if other != place]
    recipe = sides[place].recipe
    return [other for other in others if recipe is not None and sides[other].recipe == recipe] or others


def _expect(
    counted: Sequence[Sequence[int]], found: dict[tuple[int, int], _Found]
) -> dict[int, Float[Tensor, "n"]]:
    """Return the share of further runs in which each unit is expected, if at least two SAEs count.

    SAEs that count for each other are treated as runs of the same kind, so their units are judged together.
    """
    groups: dict[frozenset[int], list[int]] = {}
    for place, others in enumerate(counted):
        groups.setdefault(frozenset((place, *others)), []).append(place)
    expected: dict[int, Tensor] = {}
    for group, places in groups.items():
        if len(group) > 2:
            times = [
                torch.stack([found[one, other].found for other in counted[one]]).sum(0) for one in places
            ]
            shares = metrics.expected_share(torch.cat(times), len(group) - 1)
            expected |= zip(places, shares.split([len(one) for one in times]), strict=True)
    return expected


def _describe(
    sides: Sequence[UnitSide],
    place: int,
    found: dict[tuple[int, int], _Found],
    matched: _Matched,
    streams: _Matched,
    counted: Sequence[int],
    expected: Mapping[int, Float[Tensor, "n"]],
) -> SAEUnits:
    side = sides[place]
    others = [other for other in range(len(sides)) if other != place]
    rest = [other for other in others if other not in counted]
    partners = {
        other: _describe_partners(
            side,
            sides[other],
            other,
            found[place, other],
            matched[place, other],
            streams.get((place, other)),
        )
        for other in others
    }
    measures = _average([found[place, other] for other in counted])
    if place in expected:
        measures["expected"] = expected[place]
    measures["matched_cosine"] = _average_known([partners[other].matched_cosine for other in counted])
    if correlations := [each for other in counted if (each := partners[other].stream_correlation)]:
        measures["matched_correlation"] = _average_known(correlations)
    if rest:
        measures["across"] = _mean([found[place, other].found for other in rest])
    if side.activity is not None:
        measures |= {key: getattr(side.activity, key) for key in ("frequency", "energy", "gain", "place")}
    return SAEUnits(
        sae=place,
        name=side.name,
        unit=tuple(side.units.tolist()),
        counted=tuple(counted),
        partners=tuple(partners.values()),
        measures={key: _numbers(values) for key, values in measures.items()},
    )


def _describe_partners(
    side: UnitSide,
    other: UnitSide,
    place: int,
    found: _Found,
    matched: _Pairs,
    streams: _Pairs | None,
) -> Partners:
    units, cosines = _list_partners(side, matched)
    active, correlations = (None, None) if streams is None else _list_partners(side, streams)
    return Partners(
        sae=place,
        matched=units,
        matched_cosine=cosines,
        nearest=tuple(other.units[found.near.nearest].tolist()),
        nearest_cosine=_rounded(found.near.cosine),
        mutual=tuple(found.mutual.tolist()),
        level=_rounded(found.level),
        found=tuple(found.found.tolist()),
        encoder_cosine=None if found.encoder is None else _numbers(found.encoder),
        correlation=None if found.correlation is None else _numbers(found.correlation),
        stream_matched=active,
        stream_correlation=correlations,
    )


def _list_partners(side: UnitSide, matched: _Pairs) -> tuple[tuple[int | None, ...], Numbers]:
    """Return the partner of each unit and how similar it is; None for unmatched units."""
    pairs = [matched.get(unit) for unit in side.units.tolist()]
    similar = tuple(None if pair is None else round(pair[1], _DIGITS) for pair in pairs)
    return tuple(None if pair is None else pair[0] for pair in pairs), similar


def _average(counted: Sequence[_Found]) -> dict[str, Tensor]:
    """Return the measures of each unit, averaged over the SAEs that count."""
    measures = {
        "reproducibility": _mean([one.found for one in counted]),
        "reproducibility_chance": _mean([one.chance for one in counted]),
        "support": _mean([one.support for one in counted]),
        "nearest_cosine": _mean([one.near.cosine for one in counted]),
        "mutual": _mean([one.mutual for one in counted]),
    }
    for key, values in (
        ("encoder_cosine", [one.encoder for one in counted]),
        ("correlation", [one.correlation for one in counted]),
    ):
        known = [value for value in values if value is not None]
        if known:
            measures[key] = _mean(known)
    return measures


def _average_known(columns: Sequence[Numbers]) -> Float[Tensor, "n"]:
    """Return the mean of each unit's known values; NaN if there are none."""
    numbers = torch.tensor([[float("nan") if x is None else x for x in column] for column in columns])
    return numbers.double().nanmean(0)


def _mean(columns: Sequence[Tensor]) -> Float[Tensor, "n"]:
    return torch.stack([column.double() for column in columns]).mean(0)


def _numbers(values: Tensor) -> Numbers:
    """Return the values rounded for a file; NaN becomes None."""
    return tuple(None if isnan(value) else _round(value) for value in values.tolist())


def _rounded(values: Tensor) -> tuple[float, ...]:
    """Return cosines rounded to six decimals."""
    return tuple((values.double() * 10**_DIGITS).round().div(10**_DIGITS).tolist())


def _round(value: float) -> float:
    """Return the value rounded to six significant digits, since energies may be very small."""
    return float(f"{value:.{_DIGITS}g}")
