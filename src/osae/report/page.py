"""Results as one HTML page that needs no server and no network: style, script and figures are inside it."""

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from osae.files import atomic_write
from osae.report.columns import Column, tables_of
from osae.report.look import SCRIPT, STYLE
from osae.report.table import (
    BOLD,
    INTERVALS,
    LEGEND,
    Cell,
    Row,
    chance_cells,
    comparison,
    describe_seeds,
    describe_world,
    markdown,
    write_csv,
)

# the page may show what is inside it and load nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".svg": "image/svg+xml"}


def write_report(results: Mapping[str, Any], folder: Path | str) -> Path:
    """The path of `report.html`, written with `results.json`, `table.md` and `results.csv` beside it.

    The figures that the results name must be in the folder already.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = plain(results)
    files = {
        "results.json": json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "table.md": markdown(results),
        "report.html": page(results, folder),
    }
    for name, text in files.items():
        with atomic_write(folder / name) as part:
            part.write_text(text, encoding="utf-8")
    write_csv(results, folder / "results.csv")
    return folder / "report.html"


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numpy numbers and arrays as Python's own, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def page(results: Mapping[str, Any], folder: Path | str) -> str:
    """The whole HTML page of the results; figures are read from the folder and embedded."""
    title = str(results.get("title") or results.get("experiment") or "Results")
    body = [
        *notes_part(results.get("notes") or []),
        "<section><h2>Results</h2>",
        *(part for section, columns in tables_of(results) for part in _section(section, columns, results)),
        f'<p class="small">{LEGEND} {BOLD} {INTERVALS} Point at a number for its interval.</p></section>',
        *_claims(results.get("claims") or []),
        *figures_part(results.get("figures") or [], Path(folder)),
        *_run(results),
        *json_part(results),
    ]
    return document(title, str(results.get("experiment", "report")), body)


def document(title: str, kicker: str, body: Iterable[str]) -> str:
    """A whole HTML page: its title, a word above it that says what it is, and the parts of its body."""
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    header = [f'<header><p class="kicker">osae · {escape(kicker)}</p>', f"<h1>{escape(title)}</h1></header>"]
    top = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body><main>", *header]
    return "\n".join([*top, *body, "</main>", f"<script>{SCRIPT}</script>", "</body>", "</html>", ""])


def notes_part(notes: Sequence[str]) -> Iterator[str]:
    """What there is to say in short; nothing if there is nothing."""
    if notes:
        yield '<section class="notes"><h2>In short</h2><ul>'
        yield from (f"<li>{_words(note)}</li>" for note in notes)
        yield "</ul></section>"


def _claims(claims: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Each claim with what was found and the verdict; nothing if there is none."""
    if claims:
        yield '<section class="claims"><h2>Claims</h2><dl>'
        for claim in claims:
            said, found = _words(claim["claim"]), _words(claim["found"])
            yield f"<dt>{said} <strong>{escape(claim['verdict'])}</strong></dt><dd>{found}</dd>"
        yield "</dl></section>"


def _words(text: Any) -> str:
    """Escaped text, in which `backticks` mark code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(str(text)))


def _section(
    section: Mapping[str, Any], columns: Sequence[Column], results: Mapping[str, Any]
) -> Iterator[str]:
    if section["title"]:
        yield f"<h3>{_words(section['title'])}</h3>"
    if section["world"] and section["world"] != results.get("world"):
        yield f'<p class="small">World: {_words(describe_world(section["world"]))}</p>'
    published = any(row.get("paper") for row in section["rows"])
    beside = "; the published number below ours" if published else ""
    name = str(section["title"] or results.get("title") or "Results")
    yield from table_part(section, columns, name=name, about=f"one row per method{beside}", head="Method")


def table_part(
    section: Mapping[str, Any], columns: Sequence[Column], *, name: str, about: str, head: str
) -> Iterator[str]:
    """The table of a section, sortable by its columns; `head` says what a row is, `about` what it shows."""
    yield f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
    yield f'<caption class="unseen">{escape(name)}: {escape(about)}.</caption>'
    heads = [f'<th scope="col" aria-sort="none">{escape(head)}</th>', *(_head(column) for column in columns)]
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield f"<tbody>{''.join(_row(row) for row in comparison(section, columns))}</tbody>"
    chance = chance_cells(section.get("chance"), columns)
    if any(chance):
        cells = "".join(f"<td>{escape(text)}</td>" for text in chance)
        yield f'<tfoot><tr><th scope="row">chance level</th>{cells}</tr></tfoot>'
    yield "</table></div>"


def _head(column: Column) -> str:
    arrow = {"high": "\u00a0↑", "low": "\u00a0↓"}.get(column.better, "")
    words = {"high": ", higher is better", "low": ", lower is better"}.get(column.better, "")
    title = escape(f"{column.words or column.title}{words}", quote=True)
    return f'<th scope="col" aria-sort="none" title="{title}">{escape(column.title)}{arrow}</th>'


def _row(row: Row) -> str:
    label = f'<span class="paper">paper: {escape(row.paper_label)}</span>' if row.paper_label else ""
    cells = "".join(_cell(cell) for cell in row.cells)
    return f'<tr><th scope="row">{escape(row.method)}{label}</th>{cells}</tr>'


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    title = f' title="95 % interval: {escape(cell.interval, quote=True)}"' if cell.interval else ""
    spread = f' <span class="spread">({escape(cell.spread)})</span>' if cell.spread else ""
    mean, published = escape(cell.mean), escape(cell.published)
    ours = f"<strong>{mean}</strong>" if cell.best else mean
    paper = f'<span class="paper"><span class="unseen">paper </span>{published}</span>' if cell.paper else ""
    return f"<td{value}{title}>{ours}{spread}{paper}</td>"


def figures_part(figures: Sequence[Mapping[str, str]], folder: Path) -> Iterator[str]:
    """The figures, read from the folder and embedded; nothing if there are none."""
    if figures:
        yield '<section class="figures"><h2>Figures</h2>'
        yield from (_figure(figure, folder) for figure in figures)
        yield "</section>"


def _figure(figure: Mapping[str, str], folder: Path) -> str:
    caption = figure.get("caption", "")
    alt = escape(figure.get("alt") or caption or figure["file"], quote=True)
    path = folder / figure["file"]
    if not path.is_file() or path.suffix not in IMAGES:
        missing = f"{figure['file']} is missing. {caption}"
        return f"<figure><figcaption>{_words(missing)}</figcaption></figure>"
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = f'<img alt="{alt}" src="data:{IMAGES[path.suffix]};base64,{data}">'
    return f"<figure>{image}<figcaption>{_words(caption)}</figcaption></figure>"


def _run(results: Mapping[str, Any]) -> Iterator[str]:
    known = {
        "Command": f"<code>{escape(results['command'])}</code>" if results.get("command") else "",
        "World": _words(describe_world(results.get("world"))),
        "Seeds": escape(describe_seeds(results.get("seeds"))),
        "Date": escape(str(results.get("date") or "")),
        "Time": f"{results['seconds']:,.0f} s" if results.get("seconds") else "",
        "Machine": escape(str(results.get("machine") or "")),
        "Versions": versions_text(results.get("versions") or {}),
    }
    yield from facts_part("What was run", known)


def facts_part(title: str, facts: Mapping[str, str]) -> Iterator[str]:
    """A list of names with what is known of each, as HTML; nothing if nothing is."""
    items = [f"<dt>{escape(name)}</dt><dd>{text}</dd>" for name, text in facts.items() if text]
    if items:
        yield f"<section><h2>{escape(title)}</h2><dl>{''.join(items)}</dl></section>"


def versions_text(versions: Mapping[str, str]) -> str:
    """The versions in one line of HTML."""
    return escape(", ".join(f"{name} {version}" for name, version in versions.items()))


def json_part(results: Mapping[str, Any]) -> Iterator[str]:
    """All numbers, folded away."""
    yield "<details><summary>All numbers as JSON</summary>"
    yield f"<pre>{escape(json.dumps(plain(results), indent=2, ensure_ascii=False))}</pre></details>"
