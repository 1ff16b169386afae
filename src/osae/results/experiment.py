"""Results of an experiment: measures by method, claims with verdicts, and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from osae.measures import ISOTROPIC, Listing, base_key, list_columns, orderedness_spread, prefix_of
from osae.results.base import Interval, Record, Result, Row, Table, as_interval, count
from osae.results.codec import doc, flat, optional

ACTIVATIONS = ": activations"  # suffix of the title of their table


@dataclass(frozen=True)
class Tested:
    """A statement behind a claim: a quantity that should be above zero if the claim holds."""

    about: str = doc("what is compared, and where")
    outcome: str = doc('"true", "false" or "undecided", corrected for the number of statements')
    part: str = doc("the part of the statement with the weakest support, such as a prefix", default="")
    mean: float | None = doc("the quantity for that part; null if it was not measured", default=None)
    low: float | None = doc("lower end of its 95 % interval; null if there is none", default=None)
    high: float | None = doc("upper end of the interval", default=None)
    p_value: float | None = doc(
        "p-value of the statement, corrected for its parts, but not for the number of statements",
        default=None,
    )


@dataclass(frozen=True)
class Claim:
    """A claim checked against the results: its text, what was found, and the verdict."""

    claim: str
    verdict: str
    found: str
    tested: tuple[Tested, ...] = doc("the statements behind the verdict", default=())


@dataclass(frozen=True)
class Figure:
    """An image file stored with the results, and its caption."""

    file: str
    caption: str
    alt: str = ""


@dataclass(frozen=True)
class PublishedRow:
    """The published numbers of a method."""

    label: str = doc("name of the method in the paper")
    measures: Mapping[str, Interval | float] = flat("published numbers by measure", of="method")


@dataclass(frozen=True)
class MethodRow:
    """The measures of one method."""

    method: str = doc("name of the recipe or variant")
    paper: PublishedRow | None = doc("the published numbers; null if there are none", default=None)
    reference: bool = doc("shown for reference only", default=False)
    recipe: Mapping[str, Any] | None = optional("full recipe of the training runs")
    measures: Mapping[str, Interval | float | None] = flat("numbers by measure", of="method")

    def mean(self, key: str) -> float:
        """Return the mean of a measure; raise `KeyError` if it was not measured."""
        found = as_interval(self.measures[key])
        if found is None:
            raise KeyError(key)
        return found.mean

    def interval(self, key: str) -> Interval:
        """Return a measure with its interval; raise `KeyError` if it was not measured."""
        found = as_interval(self.measures[key])
        if found is None:
            raise KeyError(key)
        return found


@dataclass(frozen=True)
class Section:
    """A table of methods in one setting."""

    title: str = doc("heading")
    rows: tuple[MethodRow, ...] = doc("one row per method")
    chance: Mapping[str, float] | None = doc("levels of unrelated dictionaries, by measure", default=None)
    world: Mapping[str, Any] | None = doc(
        "data of this setting, if different from the common data", default=None
    )
    x: float | None = doc("value of this setting in a sweep", default=None)
    columns: tuple[str, ...] | None = doc(
        "measures to show, if they differ from the common ones", default=None
    )
    head: str | None = optional("what a row is, if not a method")

    def by_method(self) -> dict[str, MethodRow]:
        """Return the rows by the name of their method."""
        return {row.method: row for row in self.rows}


@dataclass(frozen=True, repr=False)
class ExperimentResult(Result):
    """The result of an experiment."""

    KIND: ClassVar[str] = "experiment"

    experiment: str = doc("name of the experiment")
    title: str = doc("heading")
    world: Mapping[str, Any] = doc("the data and their sizes")
    seeds: tuple[int, ...] = doc("training seeds")
    rows: tuple[MethodRow, ...] = doc("one row per method; empty if there are sections", default=())
    sections: tuple[Section, ...] = doc("tables of further settings", default=())
    chance: Mapping[str, Any] | None = doc("levels of unrelated dictionaries, by measure", default=None)
    columns: tuple[str, ...] | None = doc("measures to show; null for the usual ones", default=None)
    claims: tuple[Claim, ...] = doc("claims with verdicts", default=())
    figures: tuple[Figure, ...] = doc("images stored with the results", default=())
    notes: tuple[str, ...] = doc("additional notes", default=())
    command: str = doc("the command line", default="")
    versions: Mapping[str, str] = doc("versions by name, and the processor as cpu", default_factory=dict)
    commit: str | None = optional('commit of osae\'s repository, with "+" if files were changed since')
    seconds: float | None = doc("duration of the last run of the command, in seconds", default=None)
    training_seconds: float | None = optional(
        "total training time of all SAEs in the folder, in seconds, whenever they were trained"
    )
    training_commits: tuple[str, ...] | None = optional(
        "commits at which these SAEs were trained; more than one if the repository changed in between"
    )

    def by_method(self) -> dict[str, MethodRow]:
        """Return the rows by the name of their method."""
        return {row.method: row for row in self.rows}

    def all_sections(self) -> list[Section]:
        """Return the top-level rows as a section without a heading, followed by the other sections."""
        own = [Section("", self.rows, self.chance, None)] if self.rows or not self.sections else []
        return [*own, *self.sections]

    def shown_columns(self) -> tuple[str, ...]:
        """Return the measures to show: the requested ones, or else the usual ones that were measured."""
        if self.columns:
            return self.columns
        return _measured([row for section in self.all_sections() for row in section.rows], "main")

    def tables(self) -> list[Table]:
        common = self.shown_columns()
        units = {
            section.title: (section.world or self.world).get("units", 0) for section in self.all_sections()
        }
        return [
            Table(
                title=f"{section.title or self.title}{more}",
                head=section.head or "Method",
                columns=columns,
                rows=tuple(map(_table_row, section.rows)),
                chance=_chance_lines(columns, section.chance or self.chance or {}, units[section.title]),
            )
            for section in self.all_sections()
            for columns, more in (
                (section.columns or common, ""),
                (_measured(section.rows, "activations"), ACTIVATIONS),
            )
            if columns or not more
        ]

    def summary(self) -> list[str]:
        verdicts = [f"{claim.claim} {claim.verdict.capitalize()}: {claim.found}" for claim in self.claims]
        return [f"{self.title}, {count(len(self.seeds), 'seed')}", *verdicts, *self.notes]

    def remarks(self) -> list[str]:
        return list(self.notes)

    def count_runs(self) -> int:
        return len(self.seeds)

    def records(self) -> list[Record]:
        return [
            {"section": section.title, "x": "" if section.x is None else section.x, "method": row.method}
            | line
            for section in self.all_sections()
            for row in section.rows
            for line in _lines(row)
        ]


def _table_row(row: MethodRow) -> Row:
    paper = row.paper.measures if row.paper else {}
    label = row.paper.label if row.paper else ""
    return Row(row.method, dict(row.measures), dict(paper), label, row.reference)


def _measured(rows: Sequence[MethodRow], listing: Listing) -> tuple[str, ...]:
    """Return the measures of a listing that at least one of the rows has."""
    found = (key for row in rows for key, value in row.measures.items() if value is not None)
    return list_columns(found, listing)


def _chance_lines(
    columns: Sequence[str], levels: Mapping[str, Any], units: int
) -> dict[str, dict[str, Interval]]:
    """Return the chance level of each column that has one: its own, or its base measure's."""
    lines = {
        "chance level": {key: levels.get(key, levels.get(base_key(key))) for key in columns},
        "isotropic": {key: levels.get(f"{base_key(key)}_{ISOTROPIC}") for key in columns},
    }
    known = {
        name: {
            key: Interval(float(level), _spread_by_chance(key, units))
            for key, level in line.items()
            if isinstance(level, int | float)
        }
        for name, line in lines.items()
    }
    return {name: line for name, line in known.items() if line}


def _spread_by_chance(key: str, units: int) -> float | None:
    """Return the standard deviation of orderedness by chance; None for other measures."""
    matched = prefix_of(key) or units
    return orderedness_spread(matched) if base_key(key).endswith("orderedness") and matched > 1 else None


def _lines(row: MethodRow) -> list[Record]:
    """Return a record per measure, with the published number."""
    paper = row.paper.measures if row.paper else {}
    lines = []
    for key in dict.fromkeys([*row.measures, *paper]):
        ours, theirs = as_interval(row.measures.get(key)), as_interval(paper.get(key))
        if ours is None and theirs is None:
            continue
        numbers = (
            {} if ours is None else {"mean": ours.mean, "std": ours.std, "low": ours.low, "high": ours.high}
        )
        published = {} if theirs is None else {"paper_mean": theirs.mean, "paper_std": theirs.std}
        empty = dict.fromkeys(("mean", "std", "low", "high", "paper_mean", "paper_std"))
        lines.append({"measure": key} | empty | numbers | published)
    return lines
