"""Results as one HTML page that needs no server and no network: style, scripts and data are inside it.

With a folder, the contexts of units are in files beside the page instead, loaded when they are needed.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.context_files import ABOUT, ContextFiles, folder_of, read_contexts
from osae.files import atomic_write
from osae.measures import Measure
from osae.report.about import About, describe
from osae.report.cells import BEST, BOLD, Grid, explain, lay_out_all
from osae.report.markdown import render_markdown
from osae.report.packing import pack, write_pieces
from osae.report.plots import Plot, read_plot
from osae.report.text import visible
from osae.report.units import Browser, make_browser
from osae.results import AnyResult, Comparison, ExperimentResult, write_json
from osae.results.codec import to_json
from osae.results.experiment import Claim, Figure

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
# the page may show what is inside it and load nothing but, with a folder, the scripts there
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'{more}"
)
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".svg": "image/svg+xml"}
BROAD = 1100  # pixels: images wider than this scroll on a small screen instead of shrinking
LONGEST_LIST = 256  # entries of a list that the page shows as JSON; the JSON file has all of them
LARGEST = 15_000_000  # bytes of a page; larger ones need a folder
NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Part:
    """What a page shows of one result or run."""

    title: str
    kicker: str
    summary: Sequence[str] = ()
    grids: Sequence[Mapping[str, Any]] = ()
    legend: str = ""
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    figures: Sequence[Figure | Plot] = ()
    facts: Sequence[tuple[str, str]] = ()
    json: str = ""


@dataclass(frozen=True)
class Page:
    """A page: its parts, the unit browser if there are units, and how often it reloads itself, in seconds."""

    parts: Sequence[Part]
    browser: Browser | None = None
    refresh: int | None = None
    folder: str = ""


# --- writing ----------------------------------------------------------------------------------------


def write_experiment(result: ExperimentResult, folder: Path | str) -> Path:
    """Write results.json, table.md, results.csv and report.html, and return the path of the last.

    The figures that the result names must be in the folder already.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(result, folder / "results.json", indent=2)
    write_text(render_markdown(result), folder / "table.md")
    result.to_csv(folder / "results.csv")
    write_page(result, folder / "report.html")
    return folder / "report.html"


def write_page(result: AnyResult, path: Path | str) -> None:
    """Write the result as one HTML page; figures that it names are read from the page's folder."""
    write_text(render_page(result, Path(path).parent), path)


def write_report(
    parts: Sequence[Part], path: Path, *, browser: Browser | None = None, folder: bool = False
) -> None:
    """Write a page of several parts; with `folder`, the contexts of units go to files in a folder beside it.

    Raise `ValueError` if the page would be too large.
    """
    if folder and browser is not None:
        beside = path.with_name(f"{path.stem}-files")
        write_pieces([("units", browser.index)], beside)
        write_pieces(browser.pieces, beside)
        browser = Browser({}, ())
        write_text(render(Page(parts, browser, folder=beside.name)), path)
        return
    text = render(Page(parts, browser))
    if len(text) > LARGEST:
        raise ValueError(
            f"the page would have {len(text) / 1e6:.0f} MB, more than {LARGEST // 10**6}: add --folder, "
            "which keeps the contexts in files beside it."
        )
    write_text(text, path)


def write_text(text: str, path: Path | str) -> None:
    """Write the text to a file, whole or not at all."""
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


# --- from results to parts --------------------------------------------------------------------------


def render_page(result: AnyResult, folder: Path | str = ".") -> str:
    """Return the result as one HTML page; figures that it names are read from `folder`.

    Units that were compared can be browsed, with their contexts if these are beside the SAEs.
    """
    part = part_of(result, Path(folder))
    if not isinstance(result, Comparison):
        return render(Page([part]))
    for contexts in (find_contexts(result), []):
        text = render(Page([part], make_browser(result, contexts)))
        if len(text) <= LARGEST or not contexts:
            break
        said = "The contexts of the units do not fit into one page: `osae report --folder` shows them."
        part = replace(part, notes=[*part.notes, said])
    return text


def find_contexts(comparison: Comparison) -> list[ContextFiles]:
    """Return the contexts that are kept beside the SAEs of a comparison, of those that are still the same."""
    found = []
    for sae in comparison.saes:
        folder = folder_of(Path(sae.path))
        if (folder / ABOUT).is_file():
            one = read_contexts(folder)
            found += [one] if one.about.sae.sha256 == sae.sha256 else []
    return found


def part_of(result: AnyResult, folder: Path) -> Part:
    """Return what a page shows of a result."""
    about = describe(result, folder)
    grids = lay_out_all(result)
    summary = [line for line in result.summary() if not any(line.startswith(c.claim) for c in about.claims)]
    return Part(
        title=about.title,
        kicker=result.KIND,
        summary=summary,
        grids=[_describe_grid(grid, about) for grid in grids],
        legend=_legend(grids),
        claims=about.claims,
        notes=[line for line in result.remarks() if line not in summary],
        figures=about.figures,
        facts=[(name, text) for name, text in about.facts.items() if text],
        json=_json(result),
    )


def _describe_grid(grid: Grid, about: About) -> dict[str, Any]:
    return {
        "title": grid.title,
        "name": grid.title or "Results",
        "notes": [text for text in (about.notes.get(grid.title, ""), grid.note) if text],
        "beside": "; the published number below ours" if grid.has("paper") else "",
        "head": grid.head,
        "columns": [_describe_column(column) for column in grid.columns],
        "body": grid.body,
        "foot": grid.foot,
        "chance": grid.chance,
    }


def _describe_column(column: Measure) -> dict[str, str]:
    arrow = {"high": "\u00a0↑", "low": "\u00a0↓"}.get(column.better, "")
    better = {"high": ", higher is better", "low": ", lower is better"}.get(column.better, "")
    return {"title": f"{column.title}{arrow}", "hint": f"{column.phrase}{better}"}


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


def _json(result: AnyResult) -> str:
    return json.dumps(_shorten(result.to_json()), indent=2, ensure_ascii=False)


def _shorten(data: Any) -> Any:
    """Return the data with long lists and objects replaced by their length."""
    if isinstance(data, Mapping):
        if len(data) > LONGEST_LIST:
            return f"{len(data):,} entries, in the JSON file"
        return {key: _shorten(item) for key, item in data.items()}
    if isinstance(data, list):
        long = len(data) > LONGEST_LIST
        return f"{len(data):,} entries, in the JSON file" if long else [_shorten(item) for item in data]
    return data


# --- from parts to HTML -----------------------------------------------------------------------------


def render(page: Page) -> str:
    """Return the page as HTML."""
    pieces: dict[str, Any] = {}
    parts = [vars(part) | {"figures": [_figure(one, pieces) for one in part.figures]} for part in page.parts]
    drawn = bool(pieces)
    if page.browser is not None and not page.folder:
        pieces |= {"units": page.browser.index, **dict(page.browser.pieces)}
    from markupsafe import Markup

    scripts = ["page.js", *(["units.js"] if page.browser else [])]
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=page.parts[0].title if page.parts else "osae",
            parts=parts,
            browser=page.browser is not None,
            refresh=page.refresh,
            folder=page.folder,
            policy=POLICY.format(more=" 'self' file:" if page.folder else ""),
            pieces=[(name, pack(data)) for name, data in pieces.items()],
            style=Markup(_read("page.css")),
            script=Markup("\n".join(map(_read, scripts))),
            plotly=Markup(_plotly()) if drawn else "",
        )
    )


def _figure(figure: Figure | Plot, pieces: dict[str, Any]) -> dict[str, Any]:
    """Return what the template shows of a figure; the data of one that is drawn becomes a piece."""
    if isinstance(figure, Figure):
        path = Path(figure.file)
        plot = read_plot(path)
        if plot is None:
            return _image(figure, path)
        figure = Plot(plot.title, figure.caption or plot.caption, plot.panels)
    name = f"plot-{len(pieces)}"
    pieces[name] = to_json(figure)
    return {"plot": name, "title": figure.title, "caption": figure.caption}


def _image(figure: Figure, path: Path) -> dict[str, Any]:
    if not path.is_file() or path.suffix not in IMAGES:
        return {"plot": "", "image": "", "caption": f"{path.name} is missing. {figure.caption}"}
    image = path.read_bytes()
    source = f"data:{IMAGES[path.suffix]};base64,{base64.b64encode(image).decode('ascii')}"
    alt = figure.alt or figure.caption or path.name
    about = {"alt": alt, "caption": figure.caption, "broad": _image_width(image) > BROAD}
    return {"plot": "", "image": source, **about}


def _image_width(image: bytes) -> int:
    """Return the width of a PNG in pixels; 0 of other images."""
    return int.from_bytes(image[16:20], "big") if image.startswith(b"\x89PNG") else 0


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE / "templates")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    found.filters |= {"visible": _visible, "words": _words, "lines": _lines}
    return found


def _visible(text: str) -> str:
    return visible(str(text), NO_LIMIT)


def _words(text: str) -> str:
    """Return escaped text in which `backticks` mark code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(text)))))


def _lines(text: str) -> str:
    return "\n".join(visible(line, NO_LIMIT) for line in text.split("\n"))


@cache
def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """Return the plotting library's script."""
    from importlib.resources import files

    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
