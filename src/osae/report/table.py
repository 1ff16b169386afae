"""Results as tables: ours with the published numbers beside them, in markdown, in the terminal and as CSV."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.files import atomic_write
from osae.report.columns import MISSING, Column, columns_of, measured, sections_of, tables_of

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Cell",
    "Column",
    "Row",
    "comparison",
    "markdown",
    "rich_table",
    "rich_tables",
    "terminal_table",
    "write_csv",
]

LEGEND = "Each cell: mean (standard deviation) over seeds, or over pairs of seeds where the column says so."
INTERVALS = (
    "95 % intervals of the means are in results.csv and results.json; they come from a bootstrap over seeds, "
    "not over pairs, because pairs share seeds."
)
BOLD = "Bold: the best mean of a column, and every mean whose interval overlaps the interval of the best."


@dataclass(frozen=True)
class Cell:
    """One measure of one method, as text: ours and, if there is one, the published number."""

    mean: str = MISSING
    spread: str = ""
    interval: str = ""
    paper: str = ""
    paper_spread: str = ""
    value: float | None = None
    best: bool = False

    @property
    def ours(self) -> str:
        return f"{self.mean} ({self.spread})" if self.spread else self.mean

    @property
    def published(self) -> str:
        return f"{self.paper} ({self.paper_spread})" if self.paper_spread else self.paper

    def __str__(self) -> str:
        return f"{self.ours} · paper {self.published}" if self.paper else self.ours


@dataclass(frozen=True)
class Row:
    """One method: its name, what the paper calls it (or nothing), and a cell per column."""

    method: str
    paper_label: str
    cells: tuple[Cell, ...]


def comparison(results: Mapping[str, Any], columns: Sequence[Column] | None = None) -> list[Row]:
    """One row per method of the results (or of one section of them), with a text cell for each column."""
    if columns is None:
        columns = columns_of(results)
    rows = results.get("rows") or []
    best = {column.key: best_methods(rows, column) for column in columns}
    return [
        Row(
            method=row["method"],
            paper_label=(row.get("paper") or {}).get("label", ""),
            cells=tuple(_cell(row, column, best=row["method"] in best[column.key]) for column in columns),
        )
        for row in rows
    ]


def _cell(row: Mapping[str, Any], column: Column, *, best: bool) -> Cell:
    ours = measured(row.get(column.key))
    paper = measured((row.get("paper") or {}).get(column.key))
    ends = "low" in ours and "high" in ours
    return Cell(
        mean=column.text(ours.get("mean")),
        spread=column.spread(ours.get("std")),
        interval=f"{column.text(ours['low'])} to {column.text(ours['high'])}" if ends else "",
        paper=column.text(paper["mean"]) if paper else "",
        paper_spread=column.spread(paper.get("std")),
        value=ours.get("mean"),
        best=best,
    )


def best_methods(rows: Sequence[Mapping[str, Any]], column: Column) -> set[str]:
    """The methods with the best mean, or whose interval overlaps that of the best; none if all are.

    Rows that are there for reference take no part.
    """
    competing = [row for row in rows if not row.get("reference")]
    found = {row["method"]: numbers for row in competing if (numbers := measured(row.get(column.key)))}
    if not column.better or len(found) < 2:
        return set()
    choose = max if column.better == "high" else min
    top = choose(found.values(), key=lambda numbers: numbers["mean"])
    low, high = _ends(top)
    best = {method for method, ours in found.items() if _ends(ours)[0] <= high and low <= _ends(ours)[1]}
    return best if len(best) < len(found) else set()


def _ends(numbers: Mapping[str, float]) -> tuple[float, float]:
    return numbers.get("low", numbers["mean"]), numbers.get("high", numbers["mean"])


def chance_cells(chance: Mapping[str, Any] | None, columns: Sequence[Column]) -> list[str]:
    """What two random dictionaries of the same shape would score, per column; empty if it is not known."""
    found = []
    for column in columns:
        level = measured((chance or {}).get(column.key, (chance or {}).get(column.key.partition("_")[0])))
        found.append(column.text(level["mean"]) if level else "")
    return found


def describe_world(world: Mapping[str, Any] | None) -> str:
    """The world in one line: its kind, then each of its numbers by name."""
    if not world:
        return ""
    numbers = {key: value for key, value in world.items() if key != "kind" and value is not None}
    parts = [f"{key.replace('_', ' ')} {_plain(value)}" for key, value in numbers.items()]
    kind = str(world.get("kind", ""))
    return f"{kind}: {', '.join(parts)}" if kind and parts else kind or ", ".join(parts)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({describe_world(value)})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, list | tuple):
        shown = [_plain(item) for item in value]
        return f"({', '.join(shown)})" if len(shown) <= 8 else f"({shown[0]}, {shown[1]}, ..., {shown[-1]})"
    return str(value)


def describe_seeds(seeds: Sequence[int] | None) -> str:
    """How many seeds and pairs there are, and which seeds."""
    if not seeds:
        return ""
    count, first, last = len(seeds), seeds[0], seeds[-1]
    if count == 1:
        return f"1 (seed {first})"
    named = (
        f"{first} to {last}" if list(seeds) == list(range(first, last + 1)) else ", ".join(map(str, seeds))
    )
    pairs = count * (count - 1) // 2
    return f"{count} (seeds {named}), {pairs} pair{'s' if pairs > 1 else ''}"


def markdown(results: Mapping[str, Any]) -> str:
    """The results as a markdown page: what was run, the tables, and what is to be said about them."""
    lines = [f"# {results.get('title') or results.get('experiment') or 'Results'}", ""]
    if results.get("world"):
        lines += [f"- World: {describe_world(results['world'])}"]
    if results.get("seeds"):
        lines += [f"- Seeds: {describe_seeds(results['seeds'])}"]
    lines += [f"- {LEGEND}", f"- {INTERVALS}", f"- {BOLD}", ""]
    for section, columns in tables_of(results):
        if section["title"]:
            lines += [f"## {section['title']}", ""]
        if section["world"] and section["world"] != results.get("world"):
            lines += [f"World: {describe_world(section['world'])}", ""]
        lines += [*_markdown_table(section, columns), ""]
    if results.get("claims"):
        lines += ["## Claims", "", *markdown_claims(results["claims"]), ""]
    if results.get("notes"):
        lines += ["## Notes", "", *(f"- {' '.join(str(note).split())}" for note in results["notes"]), ""]
    for figure in results.get("figures") or []:
        lines += [f"![{_in_line(figure['caption'])}]({figure['file']})", "", f"*{figure['caption']}*", ""]
    return "\n".join(lines)


def markdown_claims(claims: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The lines of a table of claims, each with what was found and the verdict."""
    yield _line(["Claim", "Found", "Verdict"])
    yield _line([":--"] * 3)
    for claim in claims:
        yield _line([claim["claim"], claim["found"], claim["verdict"]])


def _markdown_table(section: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[str]:
    yield _line(["Method", *(column.title for column in columns)])
    yield _line([":--", *("--:" for _ in columns)])
    for row in comparison(section, columns):
        yield _line([f"`{row.method}`", *(_markdown_cell(cell) for cell in row.cells)])
    chance = chance_cells(section.get("chance"), columns)
    if any(chance):
        yield _line(["*chance level*", *(text and f"*{text}*" for text in chance)])


def _markdown_cell(cell: Cell) -> str:
    ours = f"**{cell.ours}**" if cell.best else cell.ours
    return f"{ours} · paper {cell.published}" if cell.paper else ours


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_in_line(cell) for cell in cells)} |"


def _in_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rich_tables(results: Mapping[str, Any]) -> list["Table"]:
    """One table for the terminal per section of the results."""
    title = results.get("title") or results.get("experiment")
    return [
        rich_table({**section, "title": section["title"] or title, "columns": [c.key for c in columns]})
        for section, columns in tables_of(results)
    ]


def rich_table(results: Mapping[str, Any]) -> "Table":
    """The results for a terminal of 100 columns: means, below them the spread, then published numbers."""
    title = str(results.get("title") or results.get("experiment") or "")
    caption = "± standard deviation; bold: best, or not told apart from the best"
    return terminal_table(sections_of(results), columns_of(results), title=title, caption=caption)


def terminal_table(
    sections: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    *,
    title: str,
    caption: str = "",
    head: str = "Method",
) -> "Table":
    """The sections below one another, with a line per row; `head` says what a row is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold"),
        caption=Text(caption, style="dim") if caption else None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(head, no_wrap=True)
    for column in columns:
        table.add_column("\n".join(column.title.rsplit(" ", 1)), justify="right", no_wrap=True)
    for section in sections:
        for cells in _terminal_lines(section, columns):
            table.add_row(*(Text(text, style=style) for text, style in cells))
        table.add_section()
    return table


def _terminal_lines(section: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[list[tuple[str, str]]]:
    """The lines of a section, each cell with its style."""
    if section.get("title"):
        yield [(section["title"], "bold underline")]
    for row in comparison(section, columns):
        yield [(row.method, ""), *((cell.mean, "bold" if cell.best else "") for cell in row.cells)]
        if any(cell.spread for cell in row.cells):
            yield [("", ""), *((_plus_minus(cell.spread), "dim") for cell in row.cells)]
        if any(cell.paper for cell in row.cells):
            yield [("  paper", "dim cyan"), *((cell.paper, "dim cyan") for cell in row.cells)]
    chance = chance_cells(section.get("chance"), columns)
    if any(chance):
        yield [(text, "dim italic") for text in ("chance level", *chance)]


def _plus_minus(spread: str) -> str:
    return f"±{spread}" if spread and not spread.startswith("<") else spread


CSV_HEAD: tuple[str, ...] = (
    "section",
    "x",
    "method",
    "measure",
    "mean",
    "std",
    "low",
    "high",
    "paper_mean",
    "paper_std",
)


def write_csv(results: Mapping[str, Any], path: Path | str) -> None:
    """Write a CSV file with one line per section, method and measure, at full precision."""
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, CSV_HEAD, restval="")
        table.writeheader()
        for section in sections_of(results):
            for row in section["rows"]:
                about = {"section": section["title"], "x": section.get("x", ""), "method": row["method"]}
                table.writerows({**about, **line} for line in _csv_lines(row))


def _csv_lines(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    paper = row.get("paper") or {}
    for key in [*row, *(key for key in paper if key not in row)]:
        if key in ("paper", "reference"):
            continue
        ours, theirs = measured(row.get(key)), measured(paper.get(key))
        if ours or theirs:
            published = {f"paper_{name}": theirs[name] for name in ("mean", "std") if name in theirs}
            yield {"measure": key, **ours, **published}
