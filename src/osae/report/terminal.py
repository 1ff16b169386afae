"""Results in the terminal: tables that fit its width, followed by the summary."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from osae.report.cells import Grid, Line, lay_out_all
from osae.report.text import visible
from osae.results import AnyResult

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 110  # when output is not a terminal
LONGEST_LABEL = 120


def show(result: AnyResult) -> None:
    """Print the tables of the result, its summary and its remarks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in rich_tables(result, width=console.width):
        console.print(table)
    for line in dict.fromkeys([*result.summary(), *result.remarks()]):
        console.print(Text(f"- {visible(line)}"))


def rich_tables(result: AnyResult, *, width: int = WIDTH) -> list["Table"]:
    """Return the tables of the result for a terminal; columns that do not fit are dropped from the right.

    A row shows the means, with standard deviations and published numbers below them.
    """
    return [_fit(grid, width) for grid in lay_out_all(result)]


def _fit(grid: Grid, width: int) -> "Table":
    from rich.console import Console

    console = Console(width=max(width, 1000))
    for count in range(len(grid.columns), 1, -1):
        table = _draw(grid, count)
        if console.measure(table).minimum <= width:
            return table
    return _draw(grid, 1)


def _draw(grid: Grid, count: int) -> "Table":
    """Return the table with its first `count` columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = _caption(grid, count)
    table = Table(
        title=Text(visible(grid.title), style="bold") if grid.title else None,
        caption=Text(caption, style="dim") if caption else None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(Text(visible(grid.head)), overflow="fold", min_width=min(24, _label_width(grid)))
    for column in grid.columns[:count]:
        table.add_column(Text("\n".join(visible(column.title).rsplit(" ", 1))), justify="right", no_wrap=True)
    for line in grid.body:
        _add(table, line, count)
    table.add_section()
    for line in grid.foot:
        _add(table, line, count)
    for name, texts in grid.chance:
        lines = (text.replace(" ± ", "\n±") for text in texts[:count])  # the spread below the level
        table.add_row(*(Text(text, style="dim italic") for text in (name, *lines)))
    return table


def _label_width(grid: Grid) -> int:
    return max((len(visible(line.label, LONGEST_LABEL)) for line in grid.lines), default=0)


def _add(table: "Table", line: Line, count: int) -> None:
    from rich.text import Text

    for cells in _terminal_rows(line, count):
        table.add_row(*(Text(text, style=style) for text, style in cells))


def _terminal_rows(line: Line, count: int) -> Iterator[list[tuple[str, str]]]:
    """Yield the lines of a row in the terminal, each cell with its style."""
    cells = line.cells[:count]
    label = visible(line.label, LONGEST_LABEL)
    yield [(label, ""), *((cell.mean, "bold" if cell.best else "") for cell in cells)]
    if any(cell.spread for cell in cells):
        yield [("", ""), *((_plus_minus(cell.spread), "dim") for cell in cells)]
    if any(cell.paper for cell in cells):
        yield [("  paper", "dim cyan"), *((cell.paper, "dim cyan") for cell in cells)]


def _plus_minus(spread: str) -> str:
    return f"±{spread}" if spread and not spread.startswith("<") else spread


def _caption(grid: Grid, count: int) -> str:
    parts = [visible(grid.note)] if grid.note else []
    if grid.has("spread") and "standard deviation" not in grid.note:
        parts.append("± standard deviation.")
    if grid.has("best"):
        parts.append("Bold: best, or not distinguishable from the best.")
    if dropped := grid.columns[count:]:
        parts.append(
            f"Hidden, because the terminal is too narrow: {', '.join(column.title for column in dropped)}."
        )
    return " ".join(parts)
