"""Results of the language-model experiment: tables, curves by prefix length, and stitching."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from osae.measures import MEASURES
from osae.results.base import Interval, Over
from osae.results.codec import doc, flat, optional
from osae.results.experiment import ExperimentResult, MethodRow, Section
from osae.results.stitching import SHARES, SHARES_OF_FIRING


@dataclass(frozen=True)
class Place:
    """The text that SAEs were trained on, and the kind of start."""

    text: str = doc("name of the text")
    start: str = doc('kind of start: "data" or "noise"')

    def __str__(self) -> str:
        return f"{self.text}, {self.start}"

    @property
    def title(self) -> str:
        """The heading of the table."""
        return f"{self.text}, start from {self.start}"


@dataclass(frozen=True)
class Curve:
    """A measure at several prefix lengths, with its 95 % interval."""

    prefix: tuple[int, ...] = doc("prefix lengths")
    mean: tuple[float, ...] = doc("mean at each length")
    low: tuple[float, ...] | None = optional("lower ends of the intervals; absent if there are none")
    high: tuple[float, ...] | None = optional("upper ends of the intervals")
    over: Over | None = optional('what the values belong to: "runs", "pairs", or runs "crossed" with others')
    values: Mapping[str, tuple[float, ...]] | None = optional(
        'the values at each length, by seed ("3") or pair of seeds ("0-3")'
    )

    def at(self, i: int) -> Interval:
        """Return the mean at one of the lengths, with its interval."""
        low, high = (None if end is None else end[i] for end in (self.low, self.high))
        values = None if self.values is None else {key: found[i] for key, found in self.values.items()}
        return Interval(self.mean[i], None, low, high, self.over, values)


Curves = Mapping[str, Curve]  # by measure


@dataclass(frozen=True)
class MethodCurves:
    """The agreement of a method's SAEs at one place, by prefix length."""

    place: Place = doc("where they were trained")
    method: str = doc("name of the recipe or variant")
    curves: Curves = flat("curves by measure", of="prefix")


@dataclass(frozen=True)
class CrossedMoment:
    """The agreement of a method's SAEs across two texts at one point of training."""

    tokens: int = doc("tokens seen so far")
    other_seed: Curves = doc("of different seeds, by measure")
    same_seed: Curves = doc("of the same seed, by measure")


@dataclass(frozen=True)
class Crossing:
    """The agreement of a method's SAEs across two texts."""

    start: str = doc("kind of start")
    method: str = doc("name of the recipe or variant")
    other_seed: Curves = doc("of different seeds, by measure")
    same_seed: Curves = doc("of the same seed, by measure")
    moments: tuple[CrossedMoment, ...] = doc("the same during training", default=())


@dataclass(frozen=True)
class Moment:
    """A method's SAEs at one point of training."""

    tokens: int = doc("tokens seen so far")
    explained_variance: Interval | None = doc("explained variance on held-out text", default=None)
    seeds: Curves = doc("agreement of seeds, by measure", default_factory=dict)
    start: Curves = doc("agreement of SAEs with their own start, by measure", default_factory=dict)


@dataclass(frozen=True)
class Progression:
    """A method's SAEs during training."""

    place: Place = doc("where they were trained")
    method: str = doc("name of the recipe")
    moments: tuple[Moment, ...] = doc("points of training, in order")

    @staticmethod
    def json_upgrade(data: dict[str, Any]) -> dict[str, Any]:
        """Convert moments that had bare values at the lengths of the progression to the current layout."""
        if "prefix" not in data:
            return data
        lengths = data["prefix"]
        return data | {"moments": [_upgrade_moment(moment, lengths) for moment in data["moments"]]}


@dataclass(frozen=True)
class StitchingTable:
    """Effects of the units of larger SAEs in smaller ones, as shares."""

    small: int = doc("number of units of the smaller SAE")
    large: int = doc("number of units of the larger SAE")
    rows: tuple[MethodRow, ...] = doc("one row per method")
    start: str | None = optional("kind of start of all SAEs")

    def section(self) -> Section:
        """Return the table with its heading."""
        title = f"Stitching: shares of {self.large} units by what each does in an SAE of {self.small}"
        known = {key for row in self.rows for key in row.measures}
        firing = tuple(key for key in SHARES_OF_FIRING if key in known)  # absent in files of release 0.1.0
        return Section(title, self.rows, columns=SHARES + firing)


@dataclass(frozen=True)
class RateTrial:
    """A trial of a learning rate."""

    method: str = doc("name of the recipe")
    rate: float = doc("learning rate")
    explained_variance: float = doc("explained variance on validation rows")
    start: str = doc("kind of start", default="data")


@dataclass(frozen=True, repr=False)
class LMResult(ExperimentResult):
    """The result of the language-model experiment; `sections` contains a table for each text and start."""

    KIND: ClassVar[str] = "lm"

    groups: int = doc("number of Matryoshka's groups", default=5)
    curves: tuple[MethodCurves, ...] = doc("agreement of seeds on the same text", default=())
    crossings: tuple[Crossing, ...] = doc("agreement across texts", default=())
    progressions: tuple[Progression, ...] = doc("agreement during training", default=())
    own_starts: tuple[MethodCurves, ...] = doc(
        "agreement of SAEs with their own start, at the end of training", default=()
    )
    chance_curves: Curves = doc("levels of unrelated dictionaries, by measure", default_factory=dict)
    stitching: StitchingTable | None = doc(
        "shares of stitched units; null if none were stitched", default=None
    )
    trials: tuple[RateTrial, ...] = doc("trials of learning rates", default=())
    rates: Mapping[str, Mapping[str, float]] = doc(
        "learning rates by kind of start and method", default_factory=dict
    )

    def places(self) -> list[Place]:
        """Return the places at which SAEs were trained."""
        return list(dict.fromkeys(found.place for found in self.curves))

    def curves_at(self, place: Place) -> dict[str, Curves]:
        """Return the agreement of seeds at a place, by method and measure."""
        return {found.method: found.curves for found in self.curves if found.place == place}

    def section_of(self, place: Place) -> Section | None:
        """Return the table of a place."""
        return next((section for section in self.sections if section.title == place.title), None)

    def crossings_from(self, start: str) -> dict[str, Crossing]:
        """Return the agreement across texts for a kind of start, by method."""
        return {found.method: found for found in self.crossings if found.start == start}

    def all_sections(self) -> list[Section]:
        """Return the tables of the places, followed by the stitching table."""
        return [*super().all_sections(), *([self.stitching.section()] if self.stitching else [])]

    @staticmethod
    def json_upgrade(data: dict[str, Any]) -> dict[str, Any]:
        """Convert the layout of release 0.1.0 to the current one."""
        return _upgrade_rates(upgrade(data) if "crossed" in data else data)


# --- what release 0.1.0 wrote: places and methods in one text, such as "osae, wikipedia, noise" -------


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert results from the layout of release 0.1.0 to the current one."""
    chance, stitching = data["chance"], data["stitching"]
    lengths = list(map(int, chance["stability"]["prefix"]))
    curves = [
        {"place": _place(place), "method": method, **_upgrade_curves(found)}
        for place, by_method in data["curves"].items()
        for method, found in by_method.items()
    ]
    flat_chance = {"prefix": lengths, "mean": [chance["orderedness"]] * len(lengths)}
    rows = [{key: row[key] for key in ("method", "paper", *SHARES)} for row in stitching]
    table = {"small": stitching[0]["small"], "large": stitching[0]["large"], "rows": rows} if rows else None
    return {
        **{key: value for key, value in data.items() if key not in ("crossed", "over_time", "own_start")},
        "sections": [section for section in data["sections"] if section.get("columns") is None],
        "chance": None,
        "curves": curves,
        "crossings": [_upgrade_crossing(found) for found in data["crossed"].values()],
        "progressions": _by_method(data["over_time"], _upgrade_moments),
        "own_starts": _by_method(data["own_start"], _upgrade_curves),
        "chance_curves": {"stability": _upgrade_curve(chance["stability"]), "orderedness": flat_chance},
        "stitching": table,
    }


def _upgrade_rates(data: dict[str, Any]) -> dict[str, Any]:
    """Return the result with rates by start: rates tried from one kind of start were used for all."""
    rates, starts = data.get("rates") or {}, [one["place"]["start"] for one in data.get("curves") or ()]
    if not starts or any(isinstance(found, Mapping) for found in rates.values()):
        return data
    trials = [{"start": starts[0]} | trial for trial in data.get("trials") or ()]
    return {**data, "rates": dict.fromkeys(starts, rates), "trials": trials}


def _place(text: str) -> dict[str, str]:
    """Return the place named by text such as "wikipedia, noise"; names of texts may contain commas."""
    name, _, start = text.rpartition(", ")
    return {"text": name, "start": start}


def _by_method(found: Mapping[str, Any], convert: Callable[[Any], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries under "method, text, start" with the method and the place as keys."""
    names = {key: key.partition(", ") for key in found}
    return [
        {"place": _place(place), "method": method, **convert(found[key])}
        for key, (method, _, place) in names.items()
    ]


def _upgrade_curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {**curve, "prefix": list(map(int, curve["prefix"]))}


def _upgrade_curves(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _upgrade_curve(curve) for key, curve in found.items() if key in MEASURES}


def _upgrade_crossing(found: Mapping[str, Any]) -> dict[str, Any]:
    ways = {way: _upgrade_curves(found[way]) for way in ("other_seed", "same_seed")}
    return {"start": found["start"], "method": found["method"], **ways}


def _upgrade_moments(moments: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return moments of two seeds, with values at the prefix lengths, as curves without intervals."""
    return {"moments": [_upgrade_moment(moment, moment["lengths"]) for moment in moments]}


def _upgrade_moment(moment: Mapping[str, Any], lengths: list[int]) -> dict[str, Any]:
    values = {key: value for key, value in moment.items() if key not in ("tokens", "lengths")}
    curves = {key: {"prefix": lengths, "mean": value} for key, value in values.items()}
    return {"tokens": moment["tokens"], "seeds": curves}
