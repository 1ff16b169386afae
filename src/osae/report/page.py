"""Results as one HTML page that needs no server and no network: style, script and figures are inside it."""

import base64
import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from osae.files import atomic_write
from osae.measures import Measure
from osae.report.about import About, describe
from osae.report.cells import BEST, BOLD, Cell, Grid, Line, explain, lay_out_all
from osae.report.markdown import markdown
from osae.report.style import SCRIPT, STYLE
from osae.report.text import visible
from osae.results import AnyResult, ExperimentResult, write_json
from osae.results.experiment import Claim, Figure

# the page may show what is inside it and load nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".svg": "image/svg+xml"}
BROAD = 1100  # pixels: images wider than this scroll on a small screen instead of shrinking
LONGEST_LIST = 256  # entries of a list that the page shows as JSON; the JSON file has all of them
NO_LIMIT = 1_000_000


def write_experiment(result: ExperimentResult, folder: Path | str) -> Path:
    """Write results.json, table.md, results.csv and report.html, and return the path of the last.

    The figures that the result names must be in the folder already.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(result, folder / "results.json", indent=2)
    _write(markdown(result), folder / "table.md")
    result.to_csv(folder / "results.csv")
    write_page(result, folder / "report.html")
    return folder / "report.html"


def write_page(result: AnyResult, path: Path | str) -> None:
    """Write the result as one HTML page; figures that it names are read from the page's folder."""
    _write(page(result, Path(path).parent), path)


def _write(text: str, path: Path | str) -> None:
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def page(result: AnyResult, folder: Path | str = ".") -> str:
    """Return the result as one HTML page; figures that it names are read from `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        about = describe(result, Path(folder), Path(scratch))
        return _document(about.title, result.KIND, [*_body(result, about)])


def _body(result: AnyResult, about: About) -> Iterator[str]:
    grids = lay_out_all(result)
    summary = [line for line in result.summary() if not any(line.startswith(c.claim) for c in about.claims)]
    yield from _list("Summary", summary)
    yield "<section><h2>Results</h2>"
    for grid in grids:
        yield from _table(grid, about)
    yield f'<p class="small">{_words(_legend(grids))}</p></section>'
    yield from _claims(about.claims)
    yield from _list("Notes", [line for line in result.remarks() if line not in summary])
    yield from _figures(about.figures)
    yield from _facts(about.facts)
    yield from _json(result)


def _document(title: str, kicker: str, body: Iterable[str]) -> str:
    """Return a whole HTML page: its title, a word above it that says what it is, and its body."""
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    header = [f'<header><p class="kicker">osae · {_text(kicker)}</p>', f"<h1>{_text(title)}</h1></header>"]
    top = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body><main>", *header]
    return "\n".join([*top, *body, "</main>", f"<script>{SCRIPT}</script>", "</body>", "</html>", ""])


def _text(text: str) -> str:
    """Return escaped text, also for an attribute in double quotes."""
    return escape(visible(text, NO_LIMIT), quote=True)


def _words(text: str) -> str:
    """Return escaped text in which `backticks` mark code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield a section with a list of sentences; nothing if there are none."""
    if lines:
        yield f'<section class="notes"><h2>{_text(title)}</h2><ul>'
        yield from (f"<li>{_words(line)}</li>" for line in lines)
        yield "</ul></section>"


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield each claim with what was found and the verdict; nothing if there is none."""
    if claims:
        yield '<section class="claims"><h2>Claims</h2><dl>'
        for claim in claims:
            said, found = _words(claim.claim), _words(claim.found)
            yield f"<dt>{said} <strong>{_text(claim.verdict)}</strong></dt><dd>{found}</dd>"
        yield "</dl></section>"


# --- tables -----------------------------------------------------------------------------------------


def _legend(grids: Sequence[Grid]) -> str:
    parts = [explain(grids)]
    if any(grid.has("spread") for grid in grids):
        parts.append("In parentheses: the standard deviation.")
    intervals = any(grid.has("interval") for grid in grids)
    if intervals:
        parts.append(
            "Hover over a number for its 95 % interval, which takes into account that pairs share training "
            "runs."
        )
    if any(grid.has("best") for grid in grids):
        parts.append(BOLD if intervals else BEST)
    return " ".join(part for part in parts if part)


def _table(grid: Grid, about: About) -> Iterator[str]:
    """Yield a table that can be sorted by its columns, under its title if the page does not bear the same."""
    if grid.title and grid.title != about.title:
        yield f"<h3>{_words(grid.title)}</h3>"
    notes = (about.notes.get(grid.title, ""), grid.note)
    yield from (f'<p class="small">{_words(text)}</p>' for text in notes if text)
    name = _text(grid.title or "Results")
    beside = "; the published number below ours" if grid.has("paper") else ""
    yield f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>'
    yield f'<caption class="unseen">{name}{beside}. Select a column title to sort.</caption>'
    heads = f'<th scope="col" aria-sort="none">{_text(grid.head)}</th>' + "".join(map(_head, grid.columns))
    yield f"<thead><tr>{heads}</tr></thead>"
    yield f"<tbody>{''.join(map(_row, grid.body))}</tbody>"
    last = "".join(itertools.starmap(_chance_row, grid.chance))
    if grid.foot or last:
        yield f"<tfoot>{''.join(map(_row, grid.foot))}{last}</tfoot>"
    yield "</table></div>"


def _chance_row(name: str, texts: Sequence[str]) -> str:
    cells = "".join(f"<td>{_text(text)}</td>" for text in texts)
    return f'<tr class="chance"><th scope="row">{_text(name)}</th>{cells}</tr>'


def _head(column: Measure) -> str:
    arrow = {"high": "\u00a0↑", "low": "\u00a0↓"}.get(column.better, "")
    better = {"high": ", higher is better", "low": ", lower is better"}.get(column.better, "")
    title = _text(f"{column.phrase}{better}")
    return f'<th scope="col" aria-sort="none" title="{title}">{_text(column.title)}{arrow}</th>'


def _row(line: Line) -> str:
    value = "" if line.number is None else f' data-value="{line.number!r}"'
    label = f'<span class="paper">paper: {_text(line.paper_label)}</span>' if line.paper_label else ""
    cells = "".join(map(_cell, line.cells))
    return f'<tr><th scope="row"{value}>{_text(line.label)}{label}</th>{cells}</tr>'


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    title = f' title="95 % interval: {_text(cell.interval)}"' if cell.interval else ""
    spread = f' <span class="spread">({_text(cell.spread)})</span>' if cell.spread else ""
    mean, published = _text(cell.mean), _text(cell.published)
    ours = f"<strong>{mean}</strong>" if cell.best else mean
    paper = f'<span class="paper"><span class="unseen">paper </span>{published}</span>' if cell.paper else ""
    return f"<td{value}{title}>{ours}{spread}{paper}</td>"


# --- figures, facts, numbers ------------------------------------------------------------------------


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the figures, embedded; nothing if there are none."""
    if figures:
        yield '<section class="figures"><h2>Figures</h2>'
        yield from map(_figure, figures)
        yield "</section>"


def _figure(figure: Figure) -> str:
    path = Path(figure.file)
    if not path.is_file() or path.suffix not in IMAGES:
        missing = f"{path.name} is missing. {figure.caption}"
        return f"<figure><figcaption>{_words(missing)}</figcaption></figure>"
    image = path.read_bytes()
    alt = _text(figure.alt or figure.caption or path.name)
    broad = ' class="broad"' if _image_width(image) > BROAD else ""
    source = f"data:{IMAGES[path.suffix]};base64,{base64.b64encode(image).decode('ascii')}"
    card = f'<div class="card" tabindex="0"><img{broad} alt="{alt}" src="{source}"></div>'
    return f"<figure>{card}<figcaption>{_words(figure.caption)}</figcaption></figure>"


def _image_width(image: bytes) -> int:
    """Return the width of a PNG in pixels; 0 of other images."""
    return int.from_bytes(image[16:20], "big") if image.startswith(b"\x89PNG") else 0


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    """Yield a list of names with what is known of each; nothing if nothing is."""
    items = [f"<dt>{_text(name)}</dt><dd>{_words(text)}</dd>" for name, text in facts.items() if text]
    if items:
        yield f"<section><h2>Provenance</h2><dl>{''.join(items)}</dl></section>"


def _json(result: AnyResult) -> Iterator[str]:
    """Yield the numbers, folded away."""
    text = json.dumps(_shorten(result.to_json()), indent=2, ensure_ascii=False)
    lines = "\n".join(escape(visible(line, NO_LIMIT)) for line in text.split("\n"))
    yield f"<details><summary>Numbers as JSON</summary>\n<pre>{lines}</pre></details>"


def _shorten(data: Any) -> Any:
    """Return the data with long lists replaced by their length."""
    if isinstance(data, Mapping):
        return {key: _shorten(item) for key, item in data.items()}
    if isinstance(data, list):
        long = len(data) > LONGEST_LIST
        return f"{len(data):,} entries, in the JSON file" if long else [_shorten(item) for item in data]
    return data
