"""The measures a report may show: how each is called, written and judged."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A measure: its key in a row of results, its titles, and how its numbers are written.

    `fixed` writes `digits` decimals; `significant` writes `digits` significant digits, with an exponent
    below 0.001 and from 100,000 on. `better` says which end of the scale is good, if either is.
    """

    key: str
    title: str
    words: str = ""
    digits: int = 3
    format: Literal["fixed", "significant"] = "fixed"
    better: Literal["high", "low", ""] = ""

    def text(self, value: float | None) -> str:
        """The number as text; an en dash if it is missing."""
        if value is None or not math.isfinite(value):
            return MISSING
        if self.format == "significant":
            return significant(value, self.digits)
        return fixed(value, self.digits)

    def spread(self, std: float | None) -> str:
        """A standard deviation as text, to the places of `text`; nothing if it is missing."""
        if std is None or not math.isfinite(std):
            return ""
        if self.format == "significant":
            return significant(std, max(self.digits - 1, 1))
        text = fixed(std, self.digits)
        return f"<{10.0**-self.digits:.{self.digits}f}" if std > 0 and float(text) == 0 else text


def fixed(value: float, digits: int) -> str:
    """The number with so many decimals, and never a negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def significant(value: float, digits: int) -> str:
    """The number with so many significant digits: 0.0257, but 2.53e-04 and 1.20e+06."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 0.9999 counts as 1.00
    if not -3 <= exponent < 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


# title: short, for the head of a table; words: long, for the axis of a figure
COLUMNS = {
    column.key: column
    for column in (
        Column("stability_pairs", "Stab pairs", "stability across seeds", better="high"),
        Column("stability_truth", "Stab truth", "stability to truth", better="high"),
        Column("orderedness_pairs", "Ord pairs", "orderedness across seeds", better="high"),
        Column("orderedness_truth", "Ord truth", "orderedness to truth", better="high"),
        Column("mse", "MSE", "mean squared error", format="significant", better="low"),
        Column("explained_variance", "EV", "explained variance", better="high"),
        Column("dead", "Dead", "share of dead units", better="low"),
        Column("fifr", "FIFR", "FIFR error", format="significant", better="low"),
        Column("seconds", "Seconds", "seconds of training", digits=0),
        Column("l0", "L0", "active units per sample", digits=2),
        Column("stability", "Stab", "stability", better="high"),
        Column("novel", "Novel", "share of units that lower the error"),
        Column("reconstruction", "Reconstruction", "share of units that raise the error"),
        Column("unchanged", "No change", "share of units that never speak"),
        Column("orderedness", "Ord", "orderedness", better="high"),
        Column("orderedness_frequency", "Ord by frequency", "orderedness by frequency", better="high"),
        Column("orderedness_energy", "Ord by energy", "orderedness by energy", better="high"),
        Column(
            "least_cosine", "Least |cosine|", "least |cosine| of a unit in its place", digits=4, better="high"
        ),
        Column(
            "cosine_in_place",
            "Mean |cosine|",
            "mean |cosine| of a unit in its place",
            digits=4,
            better="high",
        ),
        Column("least_possible_mse", "Least possible MSE", "least possible error", format="significant"),
        Column("stream_stability_pairs", "Stab Z pairs", "stream stability across seeds", better="high"),
        Column("stream_stability_truth", "Stab Z truth", "stream stability to truth", better="high"),
        Column("stream_orderedness_pairs", "Ord Z pairs", "stream orderedness across seeds", better="high"),
        Column("stream_orderedness_truth", "Ord Z truth", "stream orderedness to truth", better="high"),
    )
}

DEFAULT = (
    "stability_pairs",
    "stability_truth",
    "orderedness_pairs",
    "orderedness_truth",
    "mse",
    "explained_variance",
    "dead",
    "fifr",
    "seconds",
)


def column(key: str) -> Column:
    """The column of a measure; one with a title made from the key if the measure is new here."""
    if found := re.fullmatch(r"(stability|orderedness)_(\d+)", key):
        whole = COLUMNS[found[1]]
        return replace(
            whole, key=key, title=f"{whole.title} {found[2]}", words=f"{whole.words} at {found[2]} units"
        )
    words = re.sub(r"[_-]+", " ", key).strip()
    return COLUMNS.get(key) or Column(key, words.capitalize(), words, format="significant")


def columns_of(results: Mapping[str, Any]) -> list[Column]:
    """The columns that the results ask for, or else those of the usual ones for which there are numbers."""
    if results.get("columns"):
        return [column(key) for key in results["columns"]]
    rows = [row for section in sections_of(results) for row in section["rows"]]
    return [column(key) for key in DEFAULT if any(measured(row.get(key)) for row in rows)]


def sections_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of the results: its own rows, then its sections, each with rows, world and chance."""
    common = {"title": "", "world": results.get("world"), "chance": results.get("chance")}
    sections: Iterable[Mapping[str, Any]] = results.get("sections") or []
    found = [{**common, **section} for section in sections]
    if results.get("rows") or not found:
        found.insert(0, {**common, "rows": results.get("rows") or []})
    return found


def tables_of(results: Mapping[str, Any]) -> list[tuple[dict[str, Any], list[Column]]]:
    """The sections of the results, each with its columns: those it asks for itself, or else everyone's."""
    common = columns_of(results)
    return [
        (section, [column(key) for key in section.get("columns") or ()] or common)
        for section in sections_of(results)
    ]


def measured(value: Any) -> dict[str, float]:
    """A cell of results as a dict with mean and, where known, std, low and high; empty if it is missing.

    A bare number is a mean without a spread.
    """
    numbers = value if isinstance(value, Mapping) else {"mean": value}
    known = {name: numbers.get(name) for name in ("mean", "std", "low", "high")}
    found = {name: float(v) for name, v in known.items() if isinstance(v, Real) and math.isfinite(v)}
    return found if "mean" in found else {}
