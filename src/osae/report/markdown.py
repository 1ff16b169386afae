"""Results as Markdown: an experiment as a page, or a single table."""

from collections.abc import Iterator, Sequence

from osae.report.cells import ALTERNATIVES, BOLD, Cell, Grid, lay_out, lay_out_all
from osae.report.text import describe_seeds, describe_world, visible
from osae.results import ExperimentResult, Table
from osae.results.experiment import Claim

LEGEND = (
    "Each cell shows the mean (standard deviation) over seeds, or over pairs of seeds if the column says so."
)
INTERVALS = (
    "95 % intervals of the means are in results.csv and results.json. Intervals over pairs account for pairs "
    "that share a seed."
)


def render_markdown(result: ExperimentResult) -> str:
    """Return the experiment as a Markdown page: settings, tables, claims, notes and figures."""
    lines = [f"# {_one_line(result.title or result.experiment or 'Results')}", ""]
    if result.world:
        lines += [f"- World: {_one_line(describe_world(result.world))}"]
    if result.seeds:
        lines += [f"- Seeds: {describe_seeds(result.seeds)}"]
    lines += [f"- {LEGEND}", f"- {INTERVALS}", f"- {BOLD}", ""]
    worlds = {section.title: section.world for section in result.sections}
    for grid in lay_out_all(result):
        if grid.title != result.title:
            lines += [f"## {_one_line(grid.title)}", ""]
        world = worlds.get(grid.title)
        if world and world != result.world:
            lines += [f"World: {_one_line(describe_world(world))}", ""]
        lines += [*_table(grid), ""]
    if result.claims:
        lines += ["## Claims", "", *_claims(result.claims), ""]
    if result.notes:
        lines += ["## Notes", "", *(f"- {_one_line(note)}" for note in result.notes), ""]
    for figure in result.figures:
        caption = _one_line(figure.caption)
        lines += [f"![{_in_cell(figure.caption)}]({figure.file})", "", f"*{caption}*", ""]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    """Return one table as Markdown."""
    return "\n".join(_table(lay_out(table)))


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield the lines of a table of claims, each with what was found and the verdict."""
    yield _row(["Claim", "Found", "Verdict"])
    yield _row([":--"] * 3)
    for claim in claims:
        yield _row([claim.claim, claim.found, claim.verdict])


def _table(grid: Grid) -> Iterator[str]:
    mark = "`" if grid.head in ALTERNATIVES else ""  # names of methods and SAEs are code
    yield _row([grid.head, *(column.title for column in grid.columns)])
    yield _row([":--", *("--:" for _ in grid.columns)])
    for line in grid.body:
        yield _row([f"{mark}{line.label}{mark}", *map(_cell, line.cells)])
    for line in grid.foot:
        yield _row([f"*{line.label}*", *map(_cell, line.cells)])
    for name, texts in grid.chance:
        yield _row([f"*{name}*", *(text and f"*{text}*" for text in texts)])


def _cell(cell: Cell) -> str:
    ours = f"**{cell.ours}**" if cell.best else cell.ours
    return f"{ours} · paper {cell.published}" if cell.paper else ours


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_in_cell, cells))} |"


def _in_cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()), limit=100_000)
