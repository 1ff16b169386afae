"""The units of SAEs that are compared: each with its partners in the others, and whether it is found again.

Shapes: n units that take part, d width. `osae.metrics.reproducibility` has the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics
from osae.metrics.reproducibility import (
    chance_of,
    level_of_different,
    level_of_shuffled,
)
from osae.progress import Steps
from osae.results.comparison import PairResult
from osae.results.units import Numbers, Partners, SAEUnits, Split, UnitTable
from osae.seeds import generator
from osae.studies.activity import Activity

_INSIDE = 2048  # units whose nearest neighbours in their own SAE give the level of different units
_PARTS = 8  # of a unit that is split
_EXPLAINED = 0.5  # of a unit's squared length that its parts explain together, at least
_DIGITS = 6


@dataclass(frozen=True, eq=False)
class UnitSide:
    """One SAE: the rows that are compared, their units, and what else is known of them."""

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
    """The neighbours of one SAE's units in another; everything by place among the units that take part."""

    near: metrics.Neighbours
    mutual: Bool[Tensor, "n"]
    different: Float[Tensor, "n"]  # the cosine that different units stay below
    level: Float[Tensor, "n"]  # the cosine above which a unit counts as found
    found: Bool[Tensor, "n"]
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
) -> UnitTable:
    """Return every unit of every SAE with its partners in the others.

    `same` is the least cosine of two units that count as the same.
    """
    inside = [_nearest_inside(side, absolute) for side in sides]
    found: dict[tuple[int, int], _Found] = {}
    splits: list[Split] = []
    for pair in pairs:
        a, b = pair.a, pair.b
        ahead, back = metrics.find_neighbours(sides[a].rows, sides[b].rows, absolute=absolute)
        for (one, near), (other, reverse) in (((a, ahead), (b, back)), ((b, back), (a, ahead))):
            found[one, other] = _judge(sides[one], sides[other], near, reverse, inside[other], same, absolute)
        splits += _find_splits(sides, found, a, b) + _find_splits(sides, found, b, a)
        steps(f"{a} and {b}, units")
    matched = _matched_partners(pairs)
    saes = tuple(_describe(sides, place, found, matched) for place in range(len(sides)))
    return UnitTable(saes, tuple(splits))


def _nearest_inside(side: UnitSide, absolute: bool) -> tuple[Tensor, Tensor | None]:
    """Return how near the nearest other unit of the SAE is, and the frequency, for a sample of its units."""
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
        chance=chance_of(near.second > level, side.frequency),
        encoder=_compare_encoders(side, other, near.nearest, absolute),
        correlation=correlation,
    )


def _compare_firing(side: UnitSide, other: UnitSide, nearest: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the correlation with the nearest units, and where it is above that of shuffled ones."""
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
    if side.encoder is None or other.encoder is None:
        return None
    return metrics.pair_cosines(side.encoder, other.encoder[nearest], absolute=absolute)


# --- splits -----------------------------------------------------------------------------------------


def _find_splits(
    sides: Sequence[UnitSide], found: dict[tuple[int, int], _Found], one: int, other: int
) -> list[Split]:
    """Return the units of one SAE that the other has in several parts.

    Parts are units of the other SAE whose nearest unit is this one, nearer than different units are. Together
    they explain more than half of it.
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


def _matched_partners(pairs: Sequence[PairResult]) -> dict[tuple[int, int], dict[int, tuple[int, float]]]:
    """Return the partner and the cosine of every matched unit, by the two SAEs and its number."""
    found: dict[tuple[int, int], dict[int, tuple[int, float]]] = {}
    for pair in pairs:
        found[pair.a, pair.b] = {left: (right, cosine) for left, right, cosine in pair.matching.pairs}
        found[pair.b, pair.a] = {right: (left, cosine) for left, right, cosine in pair.matching.pairs}
    return found


def _describe(
    sides: Sequence[UnitSide],
    place: int,
    found: dict[tuple[int, int], _Found],
    matched: dict[tuple[int, int], dict[int, tuple[int, float]]],
) -> SAEUnits:
    side = sides[place]
    others = [other for other in range(len(sides)) if other != place]
    same = [other for other in others if sides[other].recipe == side.recipe]
    counted = same or others
    rest = [other for other in others if other not in counted]
    partners = {
        other: _describe_partners(side, sides[other], other, found[place, other], matched[place, other])
        for other in others
    }
    measures = _average([found[place, other] for other in counted])
    measures["matched_cosine"] = _average_known([partners[other].matched_cosine for other in counted])
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
    side: UnitSide, other: UnitSide, place: int, found: _Found, matched: dict[int, tuple[int, float]]
) -> Partners:
    pairs = [matched.get(unit) for unit in side.units.tolist()]
    return Partners(
        sae=place,
        matched=tuple(None if pair is None else pair[0] for pair in pairs),
        matched_cosine=tuple(None if pair is None else round(pair[1], _DIGITS) for pair in pairs),
        nearest=tuple(other.units[found.near.nearest].tolist()),
        nearest_cosine=_rounded(found.near.cosine),
        mutual=tuple(found.mutual.tolist()),
        level=_rounded(found.level),
        found=tuple(found.found.tolist()),
        encoder_cosine=None if found.encoder is None else _numbers(found.encoder),
        correlation=None if found.correlation is None else _numbers(found.correlation),
    )


def _average(counted: Sequence[_Found]) -> dict[str, Tensor]:
    """Return the measures of each unit over the SAEs that count."""
    measures = {
        "reproducibility": _mean([one.found for one in counted]),
        "reproducibility_chance": _mean([one.chance for one in counted]),
        "nearest_cosine": _mean([one.near.cosine for one in counted]),
        "mutual": _mean([one.mutual for one in counted]),
    }
    if len(counted) > 1:
        times = torch.stack([one.found for one in counted]).sum(0)
        measures["expected"] = metrics.expected_share(times, len(counted))
    for key, values in (
        ("encoder_cosine", [one.encoder for one in counted]),
        ("correlation", [one.correlation for one in counted]),
    ):
        known = [value for value in values if value is not None]
        if known:
            measures[key] = _mean(known)
    return measures


def _average_known(columns: Sequence[Numbers]) -> Float[Tensor, "n"]:
    """Return the mean of what is known of each unit; NaN where nothing is."""
    numbers = torch.tensor([[float("nan") if x is None else x for x in column] for column in columns])
    return numbers.double().nanmean(0)


def _mean(columns: Sequence[Tensor]) -> Float[Tensor, "n"]:
    return torch.stack([column.double() for column in columns]).mean(0)


def _numbers(values: Tensor) -> Numbers:
    """Return the values rounded for a file; what does not exist is None."""
    return tuple(None if isnan(value) else _round(value) for value in values.tolist())


def _rounded(values: Tensor) -> tuple[float, ...]:
    """Return cosines with six decimals."""
    return tuple((values.double() * 10**_DIGITS).round().div(10**_DIGITS).tolist())


def _round(value: float) -> float:
    """Return the value with six significant digits: energies may be very small."""
    return float(f"{value:.{_DIGITS}g}")
