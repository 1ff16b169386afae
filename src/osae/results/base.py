"""What all results share: intervals, tables, files and a printed form. Nothing here needs torch."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from osae.files import atomic_write, seal
from osae.measures import Measure, measure
from osae.results.codec import doc, optional, to_json

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

Record = dict[str, Any]
Over = Literal["runs", "pairs", "crossed"]


@dataclass(frozen=True)
class Interval:
    """A mean with its standard deviation and its interval; a single value has neither."""

    mean: float = doc("mean of the values")
    std: float | None = doc("standard deviation of the values; null for a single one", default=None)
    low: float | None = doc(
        "lower end of the 95 % interval of the mean; null for a single value", default=None
    )
    high: float | None = doc("upper end of the interval", default=None)
    over: Over | None = optional(
        'what the values belong to: "runs", "pairs" of runs, or runs "crossed" with other runs'
    )
    values: Mapping[str, float] | None = optional('the values, by seed ("3") or pair of seeds ("0-3")')

    def ends(self) -> tuple[float, float]:
        """Return the ends of the interval; the mean itself if there is none."""
        return (
            self.mean if self.low is None else self.low,
            self.mean if self.high is None else self.high,
        )


Number = Interval | float | None


def as_interval(value: Number) -> Interval | None:
    """Return a bare number as an interval without a spread."""
    return value if isinstance(value, Interval | None) else Interval(float(value))


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from."""

    versions: dict[str, str] = doc(
        "versions by name: osae, python, the libraries that affect the numbers, and the processor as cpu"
    )
    command: str | None = optional("the command line; absent if called from Python")
    date: str | None = optional("date and time in UTC; absent if called from Python")


@dataclass(frozen=True)
class Activations:
    """The activations that were used."""

    path: str = doc('as given; "in memory" for a matrix passed in Python')
    rows: int = doc("number of rows")
    width: int = doc("width of a row, d")
    dtype: str = doc("type of the numbers, on disk or in memory")
    sha256: str = doc(
        "digest of the manifest, which contains the digests of its shards; for a single file, digest of the "
        "file"
    )


@dataclass(frozen=True)
class Row:
    """One line of a table: what it is about, and a number for each measure."""

    label: str
    values: Mapping[str, Number]
    paper: Mapping[str, Number] = field(default_factory=dict)  # published numbers, by measure
    paper_label: str = ""
    reference: bool = False  # shown for reference only: never the best of a column
    summary: bool = False  # shown below the other rows, and not sorted with them


@dataclass(frozen=True)
class Table:
    """Rows of measures, ready for the terminal, Markdown, HTML or CSV.

    `columns` are keys of `osae.measures`; a column such as "stability_chance" contains the chance level of
    the measure next to it, row by row. `head` says what a row is. `chance` contains additional last rows with
    chance levels, by name, if they are the same for all rows; those of orderedness have a standard deviation.
    """

    title: str
    head: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    chance: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    note: str = ""

    def measures(self) -> list[Measure]:
        """Return the measures of the columns, in their order."""
        return [measure(key) for key in self.columns]


@dataclass(frozen=True)
class Tabulated:
    """An object with flat records, which can be written as CSV or converted to a data frame."""

    def records(self) -> list[Record]:
        """Return the numbers as flat records, one per line of the CSV file."""
        raise AssertionError(f"{type(self).__name__} has no records")

    def to_csv(self, path: Path | str | None = None) -> str | None:
        """Write the records as CSV; return them as text if no path is given."""
        text = csv_text(self.records())
        if path is None:
            return text
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8", newline="")
        return None

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the records as a data frame; needs pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError as error:
            raise ValueError("data frames need pandas: pip install pandas.") from error
        return pandas.DataFrame(self.records())


@dataclass(frozen=True)
class Result(Tabulated):
    """A result of a study or an experiment: typed fields, tables, notes, and files."""

    KIND: ClassVar[str] = ""
    SCHEMA: ClassVar[int] = 1

    def tables(self) -> list[Table]:
        """Return the tables that show the result."""
        raise AssertionError(f"{type(self).__name__} has no tables")

    def summary(self) -> list[str]:
        """Return the result in a few sentences."""
        return []

    def remarks(self) -> list[str]:
        """Return remarks on the numbers."""
        return []

    def count_runs(self) -> int | None:
        """Return the number of training runs behind the standard deviations; None if there are none."""
        return None

    def json_extra(self) -> Record:
        """Return the keys that every file of results contains."""
        return {"schema": self.SCHEMA, "kind": self.KIND}

    def to_json(self) -> Record:
        """Return the result as plain dicts, lists and numbers."""
        return to_json(self)

    def __str__(self) -> str:
        return "\n".join([f"{type(self).__name__}:", *(f"  {line}" for line in self.summary())])

    __repr__ = __str__


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the records as CSV; the header lists every key in order of first occurrence."""
    head = dict.fromkeys(key for record in records for key in record)
    file = io.StringIO(newline="")
    table = csv.DictWriter(file, list(head), restval="", lineterminator="\r\n")
    table.writeheader()
    table.writerows({key: _inert_cell(value) for key, value in record.items()} for record in records)
    return file.getvalue()


def _inert_cell(value: Any) -> Any:
    """Return the value so that a spreadsheet shows it: text that looks like a formula is prefixed with '."""
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def write_json(result: Result, path: Path | str, *, indent: int | None = None) -> None:
    """Write the result as JSON, atomically."""
    held = seal(result.to_json())
    text = json.dumps(held, indent=indent, ensure_ascii=False, allow_nan=False)
    if not _is_encodable(text):  # it contains a file name that is not valid UTF-8
        text = json.dumps(held, indent=indent, allow_nan=False)
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def known_columns(columns: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns for which any row has a number."""
    return tuple(key for key in columns if any(row.values.get(key) is not None for row in rows))


def count(number: int, noun: str) -> str:
    """Return the number and the noun, in the singular or plural, such as "1 shard" or "2 shards"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def labels(paths: Sequence[str]) -> list[str]:
    """Return a short name for each path: as many of its last components as needed to make it unique."""
    parts = [[part for part in path.split("/") if part] or [path] for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{place}: {each[-1]}" for place, each in enumerate(parts)]


def flatten_measures(values: Mapping[str, Number]) -> Iterator[tuple[str, float | None]]:
    """Yield each measure's mean by key."""
    for key, value in values.items():
        found = as_interval(value)
        yield key, None if found is None else found.mean
