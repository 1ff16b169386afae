"""Tables of results as text: the cells, which of them to highlight, and the footer."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from osae.measures import CHANCE, MISSING, Measure, legend
from osae.results import (
    AnyResult,
    Interval,
    Row,
    Table,
)
from osae.results.base import Number, as_interval

ALTERNATIVES = ("Method", "SAE")  # heads of tables whose rows compete, so that the best is highlighted
BEST = "Bold: the best number in a column, and numbers that print the same."
BOLD = (
    "Bold: the best mean in a column, and every mean that is not distinguishable from it, because their "
    "intervals overlap or the numbers print the same."
)
BY_CHANCE = (
    "Score of unrelated dictionaries of the same shape, with the mean and covariance of the atoms compared "
    "(isotropic: with neither); for activations, after shifting one side by half of the rows."
)


@dataclass(frozen=True)
class Cell:
    """One measure of one row, as text: our number and, if there is one, the published number."""

    mean: str = MISSING
    spread: str = ""
    interval: str = ""
    paper: str = ""
    paper_spread: str = ""
    value: float | None = None
    best: bool = False

    @property
    def ours(self) -> str:
        """Return the mean, with its spread in parentheses if there is one."""
        return f"{self.mean} ({self.spread})" if self.spread else self.mean

    @property
    def published(self) -> str:
        """Return the published mean, with its spread in parentheses if there is one."""
        return f"{self.paper} ({self.paper_spread})" if self.paper_spread else self.paper

    def __str__(self) -> str:
        return f"{self.ours} · paper {self.published}" if self.paper else self.ours


@dataclass(frozen=True)
class Line:
    """One row of a table as text; `number` is the sort key if its label contains a number."""

    label: str
    cells: tuple[Cell, ...]
    paper_label: str = ""
    number: float | None = None


@dataclass(frozen=True)
class Grid:
    """A table as text: `body` can be sorted; `foot` (means, for example) and `chance` stay below it."""

    title: str
    head: str
    columns: tuple[Measure, ...]
    body: tuple[Line, ...]
    foot: tuple[Line, ...] = ()
    chance: tuple[tuple[str, tuple[str, ...]], ...] = ()  # lines: their name and a text for each column
    note: str = ""

    @property
    def lines(self) -> tuple[Line, ...]:
        """Return the rows of the body, followed by those of the footer."""
        return self.body + self.foot

    def has(self, attribute: str) -> bool:
        """Return whether any cell has a spread, an interval or a published number, or is highlighted."""
        return any(getattr(cell, attribute) for line in self.lines for cell in line.cells)


def lay_out_all(result: AnyResult) -> list[Grid]:
    """Return every table of the result as text."""
    runs = result.count_runs()
    alone = runs is not None and runs < 3
    return [lay_out(_drop_empty_spreads(table) if alone else table) for table in result.tables()]


def lay_out(table: Table) -> Grid:
    """Return the table as text."""
    columns = tuple(table.measures())
    best = [_best_texts(table, column) for column in columns]
    body = [_line(row, columns, best) for row in table.rows if not row.summary]
    foot = [_line(row, columns, best) for row in table.rows if row.summary]
    numbers = _label_numbers([line.label for line in body])
    return Grid(
        title=table.title,
        head=table.head,
        columns=columns,
        body=tuple(replace(line, number=number) for line, number in zip(body, numbers, strict=True)),
        foot=tuple(foot),
        chance=_chance_texts(table, columns),
        note=table.note,
    )


def explain(grids: Sequence[Grid]) -> dict[str, str]:
    """Return the meaning of the columns by their titles."""
    keys = list(dict.fromkeys(column.key for grid in grids for column in grid.columns))
    levels = any(key.endswith(f"_{CHANCE}") for key in keys)
    return legend(keys) | ({"by chance": BY_CHANCE} if levels else {})


def name_best(grid: Grid, most: int = 5) -> list[str]:
    """Return a sentence for each of the first measures: the best rows and their number.

    A measure without a highlighted row is skipped, as is one in which most rows are highlighted.
    """
    said = []
    for place, column in enumerate(grid.columns):
        marked = [line for line in grid.body if line.cells[place].best]
        if not marked or 2 * len(marked) > len(grid.body):
            continue
        top = (
            max(marked, key=lambda line: column.ahead(line.cells[place].value or 0.0, 0.0)).cells[place].mean
        )
        best, near = (
            [line.label for line in marked if (line.cells[place].mean == top) == wanted]
            for wanted in (True, False)
        )
        level = next((texts[place] for _, texts in grid.chance if texts[place]), "")
        number = f"{top} (chance level {level})" if level else top
        rest = f"; not distinguishable from it: {_code(near)}" if near else ""
        said.append(f"Best {column.phrase}: {_code(best)} with {number}{rest}.")
    return said[:most]


def _code(labels: Sequence[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


# --- cells ------------------------------------------------------------------------------------------


def _chance_texts(table: Table, columns: Sequence[Measure]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the rows of chance levels, empty for columns without one; omit rows without any level."""
    lines = []
    for name, levels in table.chance.items():
        texts = [_level_text(column, levels.get(column.key)) for column in columns]
        lines += [(name, tuple(texts))] if any(texts) else []
    return tuple(lines)


def _level_text(column: Measure, level: Interval | None) -> str:
    if level is None:
        return ""
    spread = "" if level.std is None else f" ± {column.text(level.std)}"
    return f"{column.text(level.mean)}{spread}"


def _line(row: Row, columns: Sequence[Measure], best: Sequence[set[str]]) -> Line:
    competes = _competes(row)
    cells = [
        _cell(row, column, texts if competes else set()) for column, texts in zip(columns, best, strict=True)
    ]
    return Line(row.label, tuple(cells), row.paper_label)


def _cell(row: Row, column: Measure, best: set[str]) -> Cell:
    ours, paper = _known(row.values.get(column.key)), _known(row.paper.get(column.key))
    mean = column.text(ours.mean if ours else None)
    return Cell(
        mean=mean,
        spread=column.spread(ours.std) if ours else "",
        interval=_interval_text(column, ours),
        paper=column.text(paper.mean) if paper else "",
        paper_spread=column.spread(paper.std) if paper else "",
        value=float(ours.mean) if ours else None,
        best=mean in best,
    )


def _interval_text(column: Measure, found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{column.text(found.low)} to {column.text(found.high)}"


def _known(value: Number) -> Interval | None:
    """Return the number as an interval; None if it is missing or not finite."""
    found = as_interval(value)
    return found if found is not None and math.isfinite(found.mean) else None


def _competes(row: Row) -> bool:
    return not (row.reference or row.summary)


def _best_texts(table: Table, column: Measure) -> set[str]:
    """Return the printed means to highlight: the best, and those not distinguishable from it.

    Return none if that would be all of them. Means that print the same are highlighted together or not at
    all. Reference rows are excluded.
    """
    known = [_known(row.values.get(column.key)) for row in table.rows if _competes(row)]
    found = [each for each in known if each is not None]
    if not column.better or table.head not in ALTERNATIVES or len(found) < 2:
        return set()
    low, high = max(found, key=lambda each: column.ahead(each.mean, 0.0)).ends()
    near = [each for each in found if each.ends()[0] <= high and low <= each.ends()[1]]
    texts = {column.text(each.mean) for each in near}
    return texts if any(column.text(each.mean) not in texts for each in found) else set()


def _label_numbers(labels: Sequence[str]) -> list[float | None]:
    """Return the number in each label if the labels differ in one number only: "first 16", "first 128"."""
    found = [re.fullmatch(r"(\D*)(\d+)(\D*)", label) for label in labels]
    if any(each is None for each in found) or len({(each[1], each[3]) for each in found if each}) != 1:
        return [None] * len(labels)
    return [float(each[2]) for each in found if each]


# --- meaningless spreads ----------------------------------------------------------------------------


def _drop_empty_spreads(table: Table) -> Table:
    """Return the table without empty spreads: two runs form one pair, and a single value has no spread."""
    rows = [
        replace(row, values={key: _alone(value) for key, value in row.values.items()}) for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def _alone(value: Number) -> Number:
    found = as_interval(value)
    if found is None or found.std or found.low != found.high:
        return value
    return Interval(found.mean)
