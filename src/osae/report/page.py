"""Results as one HTML page that needs no server and no network: style, scripts and data are embedded.

With a folder, the contexts of units are stored in files next to the page and loaded on demand.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.context_files import ABOUT, ContextFiles, folder_of, read_contexts
from osae.files import atomic_write
from osae.measures import Measure
from osae.report.about import About, describe
from osae.report.cells import BEST, BOLD, Grid, explain, lay_out_all, name_best
from osae.report.markdown import render_markdown
from osae.report.packing import pack, write_pieces
from osae.report.plots import Plot, join_plots, read_plot
from osae.report.text import visible
from osae.report.units import Browser, make_browser
from osae.results import AnyResult, Comparison, ExperimentResult, write_json
from osae.results.base import count
from osae.results.codec import to_json
from osae.results.experiment import Claim, Figure

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
# the page may show embedded content only and, with a folder, load the scripts there
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'{more}"
)
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".svg": "image/svg+xml"}
BROAD = 1100  # pixels: wider images scroll on a small screen instead of shrinking
LONGEST_LIST = 256  # list entries that the page shows as JSON; the JSON file contains all of them
LARGEST = 15_000_000  # bytes of a page; larger ones need a folder
OPEN = 4  # tables and figures of a part that are shown at once; others are folded
NEXT_TO_UNITS = {"tables": 2, "drawings": 1}  # the same, in the part with the unit browser
LINES = 6  # notes that are shown at once
NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Part:
    """What a page shows about one result or run."""

    title: str
    kicker: str
    summary: Sequence[str] = ()
    grids: Sequence[Mapping[str, Any]] = ()
    legend: Mapping[str, str] = field(default_factory=dict)
    cells: str = ""
    intervals: bool = False
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    figures: Sequence[Figure | Plot] = ()
    facts: Sequence[tuple[str, str]] = ()
    json: str = ""


@dataclass(frozen=True)
class Page:
    """A page: its parts, the unit browser if there are units, and its refresh interval in seconds.

    The unit browser is shown in the first part, below the results.
    """

    parts: Sequence[Part]
    browser: Browser | None = None
    refresh: int | None = None
    folder: str = ""


# --- writing ----------------------------------------------------------------------------------------


def write_experiment(result: ExperimentResult, folder: Path | str) -> Path:
    """Write results.json, table.md, results.csv and report.html, and return the path of the last.

    The figures of the result must already be in the folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(result, folder / "results.json", indent=2)
    write_text(render_markdown(result), folder / "table.md")
    result.to_csv(folder / "results.csv")
    write_page(result, folder / "report.html")
    return folder / "report.html"


def write_page(result: AnyResult, path: Path | str) -> None:
    """Write the result as one HTML page; its figures are read from the page's folder."""
    write_text(render_page(result, Path(path).parent), path)


def write_report(page: Page, path: Path, *, folder: bool = False) -> None:
    """Write a page; with `folder`, the contexts of units are written to a folder next to it.

    Raise `ValueError` if the page would be too large.
    """
    if folder and page.browser is not None:
        beside = path.with_name(f"{path.stem}-files")
        write_pieces([("units", page.browser.index)], beside)
        write_pieces(page.browser.pieces, beside)
        write_text(render(replace(page, browser=Browser({}, ()), folder=beside.name)), path)
        return
    text = render(page)
    if len(text) > LARGEST:
        raise ValueError(
            f"the page would take {len(text) / 1e6:.0f} MB, more than {LARGEST // 10**6}: add --folder to "
            "store the contexts in files next to it."
        )
    write_text(text, path)


def write_text(text: str, path: Path | str) -> None:
    """Write the text to a file atomically."""
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


# --- from results to parts --------------------------------------------------------------------------


def render_page(result: AnyResult, folder: Path | str = ".") -> str:
    """Return the result as one HTML page; its figures are read from `folder`.

    Units that were compared can be browsed, with their contexts if these are next to the SAEs.
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
    """Return the contexts stored next to the SAEs of a comparison, if the SAEs have not changed."""
    found = []
    for sae in comparison.saes:
        folder = folder_of(Path(sae.path))
        if (folder / ABOUT).is_file():
            one = read_contexts(folder)
            found += [one] if one.about.sae.sha256 == sae.sha256 else []
    return found


def part_of(result: AnyResult, folder: Path) -> Part:
    """Return what a page shows about a result."""
    about = describe(result, folder)
    grids = lay_out_all(result)
    summary = _experiment_summary(result, grids) if isinstance(result, ExperimentResult) else result.summary()
    return Part(
        title=about.title,
        kicker=result.KIND,
        summary=summary,
        grids=[_describe_grid(grid, about) for grid in grids],
        legend=explain(grids),
        cells=_explain_cells(grids),
        intervals=any(grid.has("interval") for grid in grids),
        claims=about.claims,
        notes=[line for line in result.remarks() if line not in summary],
        figures=about.figures,
        facts=[(name, text) for name, text in about.facts.items() if text],
        json=_json(result),
    )


def _experiment_summary(result: ExperimentResult, grids: Sequence[Grid]) -> list[str]:
    """Return the size of an experiment, the best methods of its first table and how many claims hold.

    The page shows the claims and notes themselves below.
    """
    seeds, rows = count(len(result.seeds), "seed"), result.rows
    size = (
        f"{seeds} of {count(len(rows), 'method')}"
        if rows
        else f"{seeds}, {count(len(result.sections), 'setting')}"
    )
    said = [f"{size}.", *(name_best(grids[0]) if rows else ())]
    if result.claims:
        verdicts = Counter(claim.verdict for claim in result.claims)
        counts = ", ".join(f"{verdict} ({number})" for verdict, number in verdicts.most_common())
        said.append(f"Verdicts on {count(len(result.claims), 'claim')}: {counts}.")
    return said


def join_contexts(parts: Sequence[Part]) -> list[Part]:
    """Return one part about the contexts of several SAEs, instead of one part each."""
    if len(parts) < 2:
        return list(parts)
    first = parts[0]
    rows = [row for part in parts for row in part.grids[0]["body"]]
    facts: dict[str, list[str]] = {}
    for place, part in enumerate(parts):
        for name, text in part.facts:
            facts.setdefault(f"SAE {place}" if name == "SAE 0" else name, []).append(text)
    return [
        replace(
            first,
            title=f"Contexts of {len(parts)} SAEs",
            summary=[line for part in parts for line in part.summary],
            grids=[{**first.grids[0], "body": rows}],
            notes=list(dict.fromkeys(line for part in parts for line in part.notes)),
            facts=[
                (name, "; ".join(dict.fromkeys(texts)))
                for name, texts in sorted(facts.items(), key=_sae_first)
            ],
            json="",
        )
    ]


def _sae_first(fact: tuple[str, Any]) -> bool:
    return not fact[0].startswith("SAE ")


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
    title = "\u00a0".join(filter(None, (column.title, column.arrow)))
    return {"title": title, "hint": ", ".join(filter(None, (column.phrase, column.direction)))}


def _explain_cells(grids: Sequence[Grid]) -> str:
    """Return what parentheses, intervals and bold numbers mean, as far as there are any."""
    parts = ["In parentheses: the standard deviation."] if any(grid.has("spread") for grid in grids) else []
    intervals = any(grid.has("interval") for grid in grids)
    if intervals:
        parts.append("Intervals take into account that pairs share training runs.")
    if any(grid.has("best") for grid in grids):
        parts.append(BOLD if intervals else BEST)
    return " ".join(parts)


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
    browsed = page.browser is not None
    parts = [_describe_part(part, pieces, i, units=browsed and i == 0) for i, part in enumerate(page.parts)]
    drawn = bool(pieces)
    if page.browser is not None and not page.folder:
        pieces |= {"units": page.browser.index, **dict(page.browser.pieces)}
    from markupsafe import Markup

    scripts = ["page.js", *(["units.js"] if page.browser else [])]
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=page.parts[0].title,
            parts=parts,
            browser=browsed,
            refresh=page.refresh,
            folder=page.folder,
            policy=POLICY.format(more=" 'self' file:" if page.folder else ""),
            pieces=[(name, pack(data)) for name, data in pieces.items()],
            style=Markup(_read("page.css")),
            script=Markup("\n".join(map(_read, scripts))),
            plotly=Markup(_plotly()) if drawn else "",
        )
    )


def _describe_part(part: Part, pieces: dict[str, Any], place: int, *, units: bool) -> dict[str, Any]:
    """Return the template's data for a part; plots that belong together form one figure."""
    shown = NEXT_TO_UNITS if units else {"tables": OPEN, "drawings": OPEN}
    found = [one for one in map(_find_plot, part.figures) if isinstance(one, Plot) or _is_image(one)]
    figures = [_figure(one, pieces) for one in join_plots(found)]
    missing = len(part.figures) - len(found)
    about = {"id": f"part-{place + 1}", "units": units, "lines": LINES, "missing": missing, **shown}
    return vars(part) | about | {"figures": figures}


def _is_image(figure: Figure) -> bool:
    path = Path(figure.file)
    return path.is_file() and path.suffix in IMAGES


def _find_plot(figure: Figure | Plot) -> Figure | Plot:
    """Return the plot stored next to an image, if there is one."""
    plot = read_plot(Path(figure.file)) if isinstance(figure, Figure) else None
    if plot is None or not isinstance(figure, Figure):
        return figure
    return plot if plot.family else replace(plot, caption=figure.caption or plot.caption)


def _figure(figure: Figure | Plot, pieces: dict[str, Any]) -> dict[str, Any]:
    """Return the template's data for a figure; the data of a drawn figure become a piece."""
    if isinstance(figure, Figure):
        return _image(figure, Path(figure.file))
    name = f"plot-{len(pieces)}"
    pieces[name] = to_json(figure)
    return {"plot": name, "title": figure.title, "caption": figure.caption}


def _image(figure: Figure, path: Path) -> dict[str, Any]:
    image = path.read_bytes()
    source = f"data:{IMAGES[path.suffix]};base64,{base64.b64encode(image).decode('ascii')}"
    alt = figure.alt or figure.caption or path.name
    about = {"alt": alt, "title": alt, "caption": figure.caption, "broad": _image_width(image) > BROAD}
    return {"plot": "", "image": source, **about}


def _image_width(image: bytes) -> int:
    """Return the width of a PNG in pixels; 0 for other images."""
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
