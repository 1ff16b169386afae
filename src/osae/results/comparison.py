"""Results of a comparison: the consistency of every pair of SAEs, with chance levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from osae.defaults import Chance, Dead, On
from osae.measures import ABOVE, AGREEMENT, CHANCE, ISOTROPIC, fixed, keys_of, measure, measures_of
from osae.results.base import (
    Activations,
    Interval,
    Provenance,
    Record,
    Result,
    Row,
    Table,
    known_columns,
    labels,
)
from osae.results.codec import doc, flat, optional
from osae.results.subject import (
    Reconstruction,
    SubjectInfo,
    difference_lines,
    explain_misfit,
    format_names,
    note_lines,
)
from osae.results.units import UnitTable

Measures = Mapping[str, float | None]
Intervals = Mapping[str, Interval | None]

# the columns of the CSV file since release 0.1.0; further measures come after them
CSV_COLUMNS = (
    *("a", "b", "length", "stability", "chance", "orderedness", "stability_of_full", "orderedness_of_full"),
    *(f"above_{level}" for level in ABOVE),
    *("stream_stability", "stream_orderedness", "optimal", "gap"),
)
_UNIT_SENTENCES = 4  # SAEs whose units get a sentence in the summary
_PREFIX_TABLES = 6  # pairs of different recipes whose prefixes are shown: there are no means of them


@dataclass(frozen=True)
class ComparedSAE(SubjectInfo):
    """An SAE that was compared."""

    compared: int = doc("number of units compared: all of them, or those that were not dropped")
    zero_units: tuple[int, ...] = doc("units whose row is zero and therefore has no direction")
    dead_units: tuple[int, ...] | None = doc(
        "units that never fire on the activations; null without activations"
    )
    reconstruction: Reconstruction | None = doc(
        "how well it reconstructs the activations; null without activations"
    )
    recipe: str | None = optional("name of the recipe it was trained with; absent if its file does not say")


@dataclass(frozen=True)
class ChanceLevel:
    """The scores of unrelated dictionaries of the same shape."""

    stability: float = doc(
        "mean stability of pairs of random dictionaries, drawn with the mean and covariance of all atoms "
        "compared unless options.chance says otherwise"
    )
    stability_std: float | None = doc("standard deviation over the draws; null for a single draw")
    orderedness: float = doc("mean orderedness: 0, or 1 for a single unit; exact")
    orderedness_std: float = doc(
        "standard deviation of orderedness: 1 / sqrt(n - 1) for n matched pairs; exact"
    )
    draws: int = doc("number of pairs of random dictionaries drawn")
    isotropic: float | None = optional("mean stability of isotropic random dictionaries")
    stream_stability: float | None = optional(
        "stability by activations after shifting those of one SAE by half of the rows"
    )

    def of(self, key: str) -> Interval | float | None:
        """Return the chance level of a measure; None if it has none."""
        levels = {
            "stability": self.stability,
            "orderedness": Interval(self.orderedness, self.orderedness_std),
            "stream_stability": self.stream_stability,
            "stream_orderedness": Interval(self.orderedness, self.orderedness_std),
        }
        return levels.get(key)


@dataclass(frozen=True)
class MatchingResult:
    """A best one-to-one matching of all units."""

    optimal: bool = doc("whether it is certified that no other matching has a larger total")
    gap: float = doc(
        "upper bound on how much larger the best total can be, relative to this one; certified up to 1e-6"
    )
    pairs: tuple[tuple[int, int, float], ...] = doc(
        "[unit of the first SAE, unit of the second SAE, their cosine] for each match, sorted by the first "
        "unit; the correlation of their activations if units are matched by these"
    )


@dataclass(frozen=True)
class PrefixResult:
    """A comparison of the first units of two SAEs; units that were dropped do not count."""

    length: int = doc("number of units of each SAE; all units if an SAE has fewer")
    chance: ChanceLevel | None = doc("chance level of prefixes of this length; null if not requested")
    measures: Measures = flat("numbers by measure", of="prefix")


def _object_schema(keys: Sequence[str], value: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(keys, value), "required": list(keys)}


_LEVELS = tuple(map(str, ABOVE))
_NUMBER = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_INTERVAL = {"anyOf": [{"$ref": "#/$defs/Interval"}, {"type": "null"}]}


@dataclass(frozen=True)
class PairResult:
    """A comparison of two SAEs. If their sizes differ, every unit of the smaller one is matched."""

    JSON_EXTRA: ClassVar[dict[str, Any]] = {
        "above": {"description": "the measures above_0.5, above_0.7 and above_0.9, by level"}
        | _object_schema(_LEVELS, _NUMBER),
        "stream": {
            "description": "the measures stream_stability and stream_orderedness; null without activations",
            "anyOf": [_object_schema(AGREEMENT, _NUMBER), {"type": "null"}],
        },
    }

    a: int = doc("index of the first SAE in `saes`")
    b: int = doc("index of the second SAE in `saes`")
    chance: ChanceLevel | None = doc("chance level of SAEs of these sizes; null if not requested")
    prefixes: tuple[PrefixResult, ...] = doc("one entry per prefix length")
    matching: MatchingResult = doc("the matching of all units")
    stream_matching: MatchingResult | None = optional(
        "the matching of all units by the correlation of their activations; absent without activations"
    )
    cosines: tuple[tuple[float, ...], ...] | None = optional(
        "cosines of all units compared, with the first SAE in rows; more than 64 units are divided into 64 "
        "bins of nearly equal size, and each entry is the largest cosine between two bins"
    )
    measures: Measures = flat("numbers by measure", of="pair")

    @property
    def stability(self) -> float:
        """Return the mean cosine of matched units."""
        return self._known("stability")

    @property
    def orderedness(self) -> float:
        """Return the Spearman correlation of the matched units' positions."""
        return self._known("orderedness")

    def _known(self, key: str) -> float:
        value = self.measures[key]
        assert value is not None, f"{key} exists for every pair"
        return value

    def json_extra(self) -> Record:
        """Return the nested forms of release 0.1.0."""
        stream = {key: self.measures.get(f"stream_{key}") for key in AGREEMENT}
        return {
            "above": {level: self.measures.get(f"above_{level}") for level in _LEVELS},
            "stream": None if stream["stability"] is None else stream,
        }

    @staticmethod
    def json_upgrade(data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with the measures of nested objects moved next to the others."""
        flat_keys = _flatten("above", data.get("above")) | _flatten("stream", data.get("stream"))
        return flat_keys | {key: value for key, value in data.items() if key not in ("above", "stream")}


def _flatten(name: str, nested: Any) -> dict[str, Any]:
    items = nested.items() if isinstance(nested, dict) else ()
    return {f"{name}_{key}": value for key, value in items}


@dataclass(frozen=True)
class PrefixSummary:
    """Means over the pairs that have a prefix of this length."""

    length: int = doc("number of units of each SAE")
    measures: Intervals = flat("intervals by measure", of="prefix")


@dataclass(frozen=True)
class Summary:
    """Means over pairs, with intervals that account for pairs sharing an SAE."""

    JSON_EXTRA: ClassVar[dict[str, Any]] = {
        "above": {"description": "the intervals above_0.5, above_0.7 and above_0.9, by level"}
        | _object_schema(_LEVELS, _INTERVAL)
    }

    pairs: int = doc("number of pairs")
    prefixes: tuple[PrefixSummary, ...] = doc("one entry per prefix length that any pair has")
    recipe: str | None = optional(
        "the recipe shared by all SAEs of these pairs; absent in the overall summary"
    )
    measures: Intervals = flat("intervals by measure", of="pair")

    def json_extra(self) -> Record:
        """Return the nested form of release 0.1.0."""
        return {"above": {level: self.measures.get(f"above_{level}") for level in _LEVELS}}

    @staticmethod
    def json_upgrade(data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with the intervals of nested objects moved next to the others."""
        rest = {key: value for key, value in data.items() if key != "above"}
        return _flatten("above", data.get("above")) | rest


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of the comparison."""

    prefixes: tuple[int, ...] | Literal["auto"] = doc(
        'prefix lengths; "auto" uses the powers of two from 16 up to the smaller number of units, and that '
        "number"
    )
    absolute: bool = doc("whether units are matched and measured by the absolute value of the cosine")
    on: On = doc("the matrix whose rows were compared")
    dead: Dead = doc("how zero rows and units that never fire were treated")
    chance_draws: int | Literal["auto"] = doc(
        "pairs of random dictionaries drawn for each chance level; 0 for no chance levels"
    )
    chance: Chance | None = optional(
        "how atoms were drawn for chance levels: with the mean and covariance of all atoms compared, or "
        "isotropic; absent in files of release 0.1.0, whose levels are isotropic"
    )
    same: float | None = optional("minimum cosine at which two units count as the same")


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """How consistent SAEs are, pair by pair."""

    KIND: ClassVar[str] = "comparison"

    options: ComparisonOptions = doc("what was asked for")
    provenance: Provenance = doc("where the numbers come from")
    activations: Activations | None = doc("the activations that were used; null if there were none")
    saes: tuple[ComparedSAE, ...] = doc("one entry per SAE, in the order given; those of a run by name")
    pairs: tuple[PairResult, ...] = doc("one entry per pair of SAEs")
    means: Summary = doc(
        "means over all pairs; of no pairs if the SAEs were trained with several recipes, see `groups`",
        key="summary",
    )
    groups: tuple[Summary, ...] = doc(
        "means over the pairs of each recipe, if the SAEs were trained with several", default=()
    )
    units: UnitTable | None = optional("every unit; absent in files of release 0.1.0")
    notes: tuple[str, ...] = doc("additional notes", default=())

    @cached_property
    def names(self) -> list[str]:
        """Return a short name for each SAE."""
        return labels([sae.path for sae in self.saes])

    def pair_name(self, pair: PairResult) -> str:
        """Return the names of the two SAEs of a pair."""
        return f"{self.names[pair.a]} – {self.names[pair.b]}"

    def tables(self) -> list[Table]:
        of_units = self.units.tables() if self.units else []
        return [self._sae_table(), self._pair_table(), *self._prefix_tables(), *of_units]

    def _sae_table(self) -> Table:
        names = format_names(self.names, self.saes)
        rows = tuple(
            Row(
                name,
                {"units": sae.units, "zero_units": len(sae.zero_units) or None}
                | {"dead_units": None if sae.dead_units is None else len(sae.dead_units)}
                # without the share of dead units, since their number is already shown
                | {key: value for key, value in _reconstruction(sae).items() if key != "dead"},
            )
            for name, sae in zip(names, self.saes, strict=True)
        )
        columns = (*keys_of("sae"), *keys_of("reconstruction"))
        return Table("SAEs", "SAE", known_columns(columns, rows), rows)

    def _pair_table(self) -> Table:
        rows = [Row(self.pair_name(pair), _values(pair.measures, pair.chance)) for pair in self.pairs]
        rows += [
            Row(_mean_label(means), dict(means.measures), summary=True)
            for means in self.shown_means()
            if means.pairs > 1
        ]
        return Table("Pairs", "SAEs", known_columns(_columns("pair"), rows), tuple(rows))

    def _prefix_tables(self) -> list[Table]:
        levels = {prefix.length: prefix.chance for pair in self.pairs for prefix in pair.prefixes}
        shown = self.shown_means()
        if not shown and len(self.pairs) <= _PREFIX_TABLES:
            return [_prefix_table(f" of {self.pair_name(p)}", p.prefixes, levels, "") for p in self.pairs]
        return [
            _prefix_table(
                f" of {means.recipe}" if means.recipe else "",
                means.prefixes,
                levels,
                f"Means over {means.pairs} pairs." if means.pairs > 1 else "",
            )
            for means in shown
        ]

    def shown_means(self) -> tuple[Summary, ...]:
        """Return the meaningful means: pairs of different recipes are not averaged."""
        return self.groups if self._mixed else (self.means,)

    @property
    def _mixed(self) -> bool:
        return len({sae.recipe for sae in self.saes}) > 1

    def summary(self) -> list[str]:
        said = [_sentence(means) for means in self.shown_means()]
        if between := self.pairs_across():
            unknown = any(sae.recipe is None for sae in self.saes)
            of = "Pairs of different or unknown recipes" if unknown else "Across recipes"
            said.append(_range_sentence(of, between))
        of_units = self.units.summary() if self.units else []
        if left := len(of_units[_UNIT_SENTENCES:]):
            rest = "SAE" if left == 1 else f"{left} SAEs"
            of_units[_UNIT_SENTENCES:] = [f"The table by number of SAEs also covers the other {rest}."]
        by_chance = self.units.chance_sentence() if self.units else []
        return said + self._chance_sentence() + of_units + by_chance

    def pairs_across(self) -> list[PairResult]:
        """Return the pairs of SAEs not known to share a recipe; none if all SAEs have the same one."""
        recipes = [sae.recipe for sae in self.saes]
        return [
            pair
            for pair in (self.pairs if self._mixed else ())
            if recipes[pair.a] is None or recipes[pair.a] != recipes[pair.b]
        ]

    def _chance_sentence(self) -> list[str]:
        levels = [pair.chance for pair in self.pairs if pair.chance]
        if not levels:
            return []
        stability = _range([level.stability for level in levels])
        widest = max(levels, key=lambda level: level.orderedness_std)
        order = f"{widest.orderedness:.0f} ± {fixed(widest.orderedness_std, 3)}"
        if self.options.chance != "fitted":
            return [f"Unrelated isotropic dictionaries have stability {stability}, orderedness {order}."]
        isotropic = _range([level.isotropic for level in levels if level.isotropic is not None])
        return [
            "Unrelated dictionaries with the mean and covariance of these atoms have stability "
            f"{stability} (isotropic ones {isotropic}), orderedness {order}."
        ]

    def remarks(self) -> list[str]:
        said = difference_lines(self.names, self.saes)
        matchings = [each for pair in self.pairs for each in (pair.matching, pair.stream_matching) if each]
        if uncertified := [each.gap for each in matchings if not each.optimal]:
            said.append(
                f"Matchings not certified as optimal: {len(uncertified)}. Their totals may be below the best "
                f"ones by a share of at most {max(uncertified):.1e}."
            )
        for name, sae in zip(self.names, self.saes, strict=True):
            said += _sae_remarks(name, sae, self.options.dead)
        return [*said, *self.notes, *note_lines(self.names, self.saes)]

    def count_runs(self) -> int:
        return len(self.saes)

    def records(self) -> list[Record]:
        return [record for pair in self.pairs for record in self._pair_records(pair)]

    def _pair_records(self, pair: PairResult) -> list[Record]:
        """Return a record for the pair, without a length, and one for each prefix."""
        ends = dict.fromkeys(CSV_COLUMNS) | {"a": self.names[pair.a], "b": self.names[pair.b]}
        certificate = {"optimal": pair.matching.optimal, "gap": pair.matching.gap}
        whole = ends | certificate | dict(pair.measures) | _chance_record(pair.chance)
        return [
            whole,
            *(
                ends | {"length": prefix.length} | dict(prefix.measures) | _chance_record(prefix.chance)
                for prefix in pair.prefixes
            ),
        ]


def _reconstruction(sae: ComparedSAE) -> Mapping[str, float | None]:
    return sae.reconstruction.measures if sae.reconstruction else {}


def _prefix_table(
    of: str,
    prefixes: Sequence[PrefixResult | PrefixSummary],
    levels: Mapping[int, ChanceLevel | None],
    note: str,
) -> Table:
    rows = tuple(
        Row(f"first {prefix.length}", _values(prefix.measures, levels.get(prefix.length)))
        for prefix in prefixes
    )
    return Table(f"Prefixes{of}", "Units", known_columns(_columns("prefix"), rows), rows, note=note)


def _columns(scope: Literal["pair", "prefix"]) -> tuple[str, ...]:
    """Return the measures in the order of their table, each followed by its chance levels.

    The levels of orderedness are nearly the same for all pairs, so the summary states them once.
    """
    found: list[str] = []
    for entry in measures_of(scope):
        found.append(entry.key)
        if entry.chance and (scope == "prefix" or not entry.key.endswith("orderedness")):
            found.append(f"{entry.key}_{CHANCE}")
        found += [f"{entry.key}_{ISOTROPIC}"] if entry.key == "stability" else []
    return tuple(found)


def _values(measures: Mapping[str, Any], chance: ChanceLevel | None) -> dict[str, Any]:
    """Return the measures together with their chance levels."""
    if chance is None:
        return dict(measures)
    known = {key for key, value in measures.items() if value is not None and measure(key).chance}
    levels: dict[str, Any] = {f"{key}_{CHANCE}": chance.of(key) for key in known}
    return {**measures, **levels, f"stability_{ISOTROPIC}": chance.isotropic}


def _chance_record(chance: ChanceLevel | None) -> Record:
    """Return the levels for the CSV file."""
    if chance is None:
        return {}
    extra = {"isotropic": chance.isotropic, "orderedness_std": chance.orderedness_std}
    extra |= {"stream_stability": chance.stream_stability}
    return {CHANCE: chance.stability} | {f"{CHANCE}_{key}": value for key, value in extra.items()}


def _range(values: Sequence[float]) -> str:
    low, high = fixed(min(values), 3), fixed(max(values), 3)
    return low if low == high else f"{low} to {high}"


def _mean_label(means: Summary) -> str:
    of = f"{means.recipe}, " if means.recipe else ""
    return f"{of}mean of {means.pairs} pairs"


def _sentence(means: Summary) -> str:
    """Return a sentence about stability and orderedness; a single pair is not called a mean."""
    known = {key: means.measures.get(key) for key in AGREEMENT}
    numbers = ", ".join(f"{key} {fixed(value.mean, 3)}" for key, value in known.items() if value)
    of = f"{means.recipe}: " if means.recipe else ""
    over = f", mean of {means.pairs} pairs" if means.pairs > 1 else ""
    text = f"{of}{numbers}{over}."
    return text if of else text[:1].upper() + text[1:]


def _range_sentence(of: str, pairs: Sequence[PairResult]) -> str:
    """Return the ranges of stability and orderedness over pairs that are not averaged."""
    ranges = []
    for key in AGREEMENT:
        values = [value for pair in pairs if (value := pair.measures.get(key)) is not None]
        ranges.append(f"{key} {_range(values)}")
    many = f" ({len(pairs)} pairs)" if len(pairs) > 1 else ""
    return f"{of}{many}: {', '.join(ranges)}."


def _sae_remarks(name: str, sae: ComparedSAE, dead: str) -> list[str]:
    said = []
    if zero := len(sae.zero_units):
        what = "they count with cosine 0" if dead == "keep" else "they are left out"
        said.append(f"{name}: {zero} of {sae.units} units have no direction; {what}.")
    if inactive := len(sae.dead_units or ()):
        what = "they are included" if dead == "keep" else "they are left out"
        said.append(f"{name}: {inactive} of {sae.units} units never fire; {what}.")
    explained = _reconstruction(sae).get("explained_variance")
    if explained is not None and explained < 0:
        said.append(explain_misfit(name, sae.notes))
    return said
