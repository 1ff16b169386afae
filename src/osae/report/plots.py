"""Figures as data: the content of a plot in a few kinds of panels, for the page's script.

Does not need torch.

A plot can be stored as JSON, so that an experiment can keep it next to its figure. Every method has its own
colour and dash pattern, the same in all figures.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from osae.files import atomic_write, read_json
from osae.measures import Measure, base_key, measure
from osae.results.base import Number, as_interval
from osae.results.codec import from_json, to_json
from osae.results.experiment import MethodRow, Section

Numbers = tuple[float | None, ...]

THIN = 1.25  # width of secondary lines
LOG_FROM = 20.0  # errors that span more than this factor are drawn on a log scale
MOST_DOTS = 3000  # more dots than this are shown as a density map
CELLS = 96  # of a map, along each side
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
GREY = "#888888"
COLORS = {
    "untrained": (GREY, ":"),
    "vanilla": (GREY, ":"),
    "topk": ("#56B4E9", "-"),
    "topk-sorted": ("#0072B2", "--"),
    "topk-sorted-by-gain": ("#0072B2", "-."),
    "batchtopk": ("#882255", "-."),
    "matryoshka-fixed": ("#E69F00", "-"),
    "matryoshka-random": ("#D55E00", "--"),
    "nested-dropout": ("#CC79A7", "-."),
    "osae-paper": ("#009E73", "--"),
    "osae": ("#000000", "-"),
}
_SEED = re.compile(r"^(\S+)-seed\d+$")  # the name of an SAE
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000")


@dataclass(frozen=True)
class Line:
    """A line with a name; `low` and `high` are the ends of its intervals, None for missing numbers."""

    name: str
    x: tuple[float, ...]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    color: str = "#000000"
    dash: str = "solid"
    width: float = 2.0


@dataclass(frozen=True)
class Dots:
    """A dot for each pair of numbers, coloured by a third."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    color: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Map:
    """A matrix as colours between `low` and `high`; x and y are the centres of its columns and rows.

    With `places`, x and y count units or samples, and a cell may contain several of them.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    z: tuple[Numbers, ...]
    low: float
    high: float
    square: bool = True
    places: bool = True


@dataclass(frozen=True)
class Bars:
    """A number with its interval for each name in y."""

    name: str
    x: Numbers
    y: tuple[str, ...]
    low: Numbers | None = None
    high: Numbers | None = None
    color: str = "#0072B2"
    symbol: str = "circle"


@dataclass(frozen=True)
class Panel:
    """One pair of axes with lines, dots, a map or bars; the panels of a `group` are shown together."""

    title: str
    x_label: str = ""
    y_label: str = ""
    color_label: str = ""
    group: str = ""
    lines: tuple[Line, ...] | None = None
    dots: Dots | None = None
    map: Map | None = None
    bars: tuple[Bars, ...] | None = None
    log_x: bool = False
    log_y: bool = False
    ticks: tuple[float, ...] | None = None
    square: bool = False


@dataclass(frozen=True)
class Plot:
    """Panels that belong together; plots of the same `family` are shown as one figure."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    family: str = ""


def join_plots(figures: Iterable[Any]) -> list[Any]:
    """Return the figures with the plots of each family joined into one, at the position of the first."""
    joined: list[Any] = []
    places: dict[str, int] = {}
    for figure in figures:
        family = getattr(figure, "family", "")
        if family in places:
            before = joined[places[family]]
            joined[places[family]] = replace(before, panels=before.panels + figure.panels)
            continue
        if family:
            places[family] = len(joined)
        joined.append(replace(figure, title=family) if family else figure)
    return joined


# --- files next to figures --------------------------------------------------------------------------


def write_plot(plot: Plot, path: Path | str) -> None:
    """Write the plot as JSON next to the image at this path."""
    with atomic_write(Path(path).with_suffix(".json")) as part:
        part.write_text(json.dumps(to_json(plot), allow_nan=False), encoding="utf-8")


def read_plot(image: Path) -> Plot | None:
    """Return the plot stored next to an image, if there is one."""
    path = image.with_suffix(".json")
    return from_json(Plot, read_json(path)) if path.is_file() else None


# --- lines ------------------------------------------------------------------------------------------


def style_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and dash of each name: its own if it is a known method, else the next of a cycle.

    The SAEs of several methods have the colours of their methods, with a dash pattern for each seed.
    """
    names = list(dict.fromkeys(names))
    methods = {name: _SEED.sub(r"\1", name) for name in names}
    if len(set(methods.values())) == 1:
        methods = {name: name for name in names}
    others = cycle((color, dash) for dash in ("-", "--", "-.") for color in OTHERS)
    own = {method: COLORS.get(method) or next(others) for method in dict.fromkeys(methods.values())}
    dashes = {method: cycle(DASHES.values()) for method in own}
    styles = {}
    for name, method in methods.items():
        color, dash = own[method]
        pattern = DASHES[dash] if name == method else next(dashes[method])
        styles[name] = {"color": color, "dash": pattern, "width": 3.0 if name == "osae" else 2.0}
    return styles


def plot_prefixes(
    curves: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    title: str,
    caption: str = "",
    chance: Mapping[str, Any] | None = None,
    thin: Iterable[str] = (),
) -> Plot:
    """Return a panel per measure: mean and 95 % interval against prefix length, a line per method.

    `curves[measure][method]` has the lists `prefix` and `mean`, and may have `low` and `high`;
    `chance[measure]` is a number, or has the lists `prefix` and `mean`, and may have `low` and `high`, one
    standard deviation away. The lines in `thin` are secondary.
    """
    styles = style_of(method for lines in curves.values() for method in lines)
    for name in styles.keys() & set(thin):
        styles[name] |= {"width": THIN}
    panels = []
    for key, lines in curves.items():
        lengths = sorted({length for line in lines.values() for length in line["prefix"]})
        drawn = [_curve_line(name, line, styles[name]) for name, line in lines.items()]
        drawn += _chance_line((chance or {}).get(key), lengths)
        label = "prefix length (units)"
        panels.append(_line_panel(measure(key), drawn, x_label=label, log_x=True, ticks=_thin(lengths)))
    return Plot(title, caption, tuple(panels))


def _curve_line(name: str, line: Mapping[str, Any], style: Mapping[str, Any]) -> Line:
    ends = {end: tuple(line[end]) for end in ("low", "high") if line.get(end) is not None}
    if not any(value is not None for each in ends.values() for value in each):
        ends = {}
    return Line(name, tuple(map(float, line["prefix"])), tuple(line["mean"]), **ends, **style)


def _chance_line(level: Any, lengths: Sequence[float]) -> list[Line]:
    if level is None or not lengths:
        return []
    style: dict[str, Any] = {"color": GREY, "dash": "dot"}
    if isinstance(level, Mapping):
        return [_curve_line("chance level", level, style)]
    return [Line("chance level", (float(lengths[0]), float(lengths[-1])), (float(level),) * 2, **style)]


def _line_panel(entry: Measure, lines: Sequence[Line], **axes: Any) -> Panel:
    return Panel(_describe(entry), lines=tuple(lines), **axes)


def _thin(lengths: Sequence[float]) -> tuple[float, ...]:
    """Return at most nine of the lengths, evenly spaced and including the last."""
    step = max(1, math.ceil(len(lengths) / 9))
    return tuple(lengths[::-1][::step][::-1])


def plot_sweep(
    sections: Sequence[Section], keys: Sequence[str], *, title: str, x_label: str, log_x: bool = False
) -> Plot:
    """Return a panel per measure: its mean and 95 % interval against the sections' `x`, a line per method."""
    rows = sorted(((section.x or 0.0, row) for section in sections for row in section.rows), key=_first)
    styles = style_of(row.method for _, row in rows)
    panels = []
    for key in keys:
        lines = []
        for method, style in styles.items():
            points = [(x, row.measures.get(key)) for x, row in rows if row.method == method]
            lines.append(_points_line(method, points, style))
        log_y = wants_log(measure(key), [row.measures.get(key) for _, row in rows])
        ticks = tuple(sorted({x for x, _ in rows})) if log_x else None
        axes = {"x_label": x_label, "log_x": log_x, "log_y": log_y, "ticks": ticks}
        panels.append(_line_panel(measure(key), [line for line in lines if line.x], **axes))
    return Plot(title, "", tuple(panels))


def _first(pair: tuple[float, Any]) -> float:
    return pair[0]


def _points_line(name: str, points: Sequence[tuple[float, Number]], style: Mapping[str, Any]) -> Line:
    known = [(float(x), found) for x, value in points if (found := as_interval(value)) is not None]
    ends = [found.ends() for _, found in known]
    wide = any(low != high for low, high in ends)
    return Line(
        name,
        tuple(x for x, _ in known),
        tuple(found.mean for _, found in known),
        tuple(low for low, _ in ends) if wide else None,
        tuple(high for _, high in ends) if wide else None,
        **style,
    )


def plot_courses(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Number]]]],
    key: str,
    *,
    title: str,
    x_label: str,
    log_x: bool = False,
) -> Plot:
    """Return one measure with a panel per method; each has lines by name, given as lists of points."""
    styles = style_of(name for lines in panels.values() for name in lines)
    drawn = tuple(
        Panel(
            f"{method}: {measure(key).phrase}",
            x_label=x_label,
            lines=tuple(_points_line(name, points, styles[name]) for name, points in lines.items()),
            log_x=log_x,
        )
        for method, lines in panels.items()
    )
    return Plot(f"{title}: {measure(key).phrase}", "", drawn)


def plot_lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    caption: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Plot:
    """Return one panel with a few lines, each given by its x and y values."""
    styles = style_of(lines)
    drawn = tuple(Line(name, tuple(x), tuple(y), **styles[name]) for name, (x, y) in lines.items())
    panel = Panel("", x_label, y_label, lines=drawn, log_x=log_x, log_y=log_y)
    return Plot(title, caption, (panel,))


def wants_log(entry: Measure, values: Iterable[Number]) -> bool:
    """Return whether an error spans so many orders of magnitude that it needs a log scale."""
    means = [found.mean for value in values if (found := as_interval(value)) is not None]
    wide = bool(means) and min(means) > 0 and max(means) / min(means) > LOG_FROM
    return entry.format == "significant" and wide


def _describe(entry: Measure) -> str:
    return f"{entry.phrase} ({entry.direction})" if entry.direction else entry.phrase


# --- bars, dots and maps ----------------------------------------------------------------------------


def plot_bars(
    rows: Sequence[MethodRow], keys: Sequence[str], *, title: str, chance: Mapping[str, Any] | None = None
) -> Plot:
    """Return a panel per measure: each row's mean with its 95 % interval, and the published mean."""
    panels = []
    for key in keys:
        bars = [_bars("ours", [(row.method, row.measures.get(key)) for row in rows])]
        published = [(row.method, row.paper.measures.get(key)) for row in rows if row.paper]
        bars.append(_bars("published", published, color="#D55E00", symbol="diamond-open"))
        level = (chance or {}).get(key, (chance or {}).get(base_key(key)))
        if level is not None:
            bars.append(
                _bars(
                    "chance level",
                    [(row.method, float(level)) for row in rows],
                    color=GREY,
                    symbol="line-ns-open",
                )
            )
        values = [value for row in rows for value in (row.measures.get(key),)]
        log_x = wants_log(measure(key), values)
        panels.append(Panel(_describe(measure(key)), bars=tuple(bar for bar in bars if bar.x), log_x=log_x))
    return Plot(title, "", tuple(panels))


def _bars(name: str, values: Sequence[tuple[str, Number]], **style: Any) -> Bars:
    known = [(label, found) for label, value in values if (found := as_interval(value)) is not None]
    ends = [found.ends() for _, found in known]
    wide = any(low != high for low, high in ends)
    return Bars(
        name,
        tuple(found.mean for _, found in known),
        tuple(label for label, _ in known),
        tuple(low for low, _ in ends) if wide else None,
        tuple(high for _, high in ends) if wide else None,
        **style,
    )


def plot_matchings(
    panels: Sequence[Mapping[str, Any]], *, title: str, x_label: str, y_label: str, caption: str = ""
) -> Plot:
    """Return a panel per matching: a dot per pair of units or, for very many pairs, counts per cell.

    A panel has `title`, `left`, `right`, `similarity` and `units`; its other keys are measures.
    """
    drawn = tuple(_matching_panel(panel, x_label, y_label) for panel in panels)
    return Plot(title, caption, drawn)


_PANEL_KEYS = frozenset({"title", "left", "right", "similarity", "units"})


def _matching_panel(panel: Mapping[str, Any], x_label: str, y_label: str) -> Panel:
    numbers = [
        f"{measure(key).title} {measure(key).text(value)}"
        for key, value in panel.items()
        if key not in _PANEL_KEYS and value is not None
    ]
    title = ": ".join(part for part in (str(panel["title"]), ", ".join(numbers)) if part)
    left, right, similarity = ([float(v) for v in panel[key]] for key in ("left", "right", "similarity"))
    if len(left) > MOST_DOTS:
        counts = count_cells(left, right, (0.0, float(panel["units"])), (0.0, float(panel["units"])))
        return Panel(title, x_label, y_label, "pairs", map=counts)
    dots = Dots(tuple(left), tuple(right), tuple(round(value, 4) for value in similarity))
    return Panel(title, x_label, y_label, "cosine", dots=dots, square=True)


def plot_dots(
    panels: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    caption: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> Plot:
    """Return a panel per name with a dot for each pair of numbers or, for very many, a density map."""
    drawn = []
    for name, (x, y) in panels.items():
        if len(x) <= MOST_DOTS:
            dots = Dots(tuple(map(float, x)), tuple(map(float, y)))
            drawn.append(Panel(name, x_label, y_label, dots=dots, log_x=log_x))
            continue
        known = [(math.log10(a) if log_x else a, b) for a, b in zip(x, y, strict=True) if a > 0 or not log_x]
        first, second = ([pair[side] for pair in known] for side in (0, 1))
        ranges = [(min(values), max(values) + 1e-9) for values in (first, second)]
        label = f"log10 of {x_label}" if log_x else x_label
        drawn.append(
            Panel(name, label, y_label, "units", map=count_cells(first, second, *ranges, places=False))
        )
    return Plot(title, caption, tuple(drawn))


def count_cells(
    x: Sequence[float],
    y: Sequence[float],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    *,
    places: bool = True,
) -> Map:
    """Return the number of points in each cell."""
    import numpy as np

    counts, x_edges, y_edges = np.histogram2d(x, y, bins=CELLS, range=(x_range, y_range))
    return _map(counts.T, x_edges, y_edges, 0.0, float(max(counts.max(), 1)), places=places)


def plot_maps(panels: Sequence[tuple[str, str, str, str, Any]], *, title: str, caption: str = "") -> Plot:
    """Return a panel per matrix, given as title, x label, y label, colour label, and the matrix.

    Large matrices are binned: a cell shows the value in it that is farthest from zero.
    """
    return Plot(title, caption, tuple(_map_panel(*panel) for panel in panels))


def plot_binned(
    panels: Mapping[str, tuple[Sequence[Sequence[float]], int, int]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    color_label: str,
    caption: str = "",
) -> Plot:
    """Return a panel per matrix of cosines that is already binned, given with its numbers of units."""
    drawn = []
    for name, (values, rows, columns) in panels.items():
        x_edges, y_edges = _cut(columns, len(values[0])), _cut(rows, len(values))
        low = -1.0 if min(map(min, values)) < 0 else 0.0
        drawn.append(Panel(name, x_label, y_label, color_label, map=_map(values, x_edges, y_edges, low, 1.0)))
    return Plot(title, caption, tuple(drawn))


def _map_panel(title: str, x_label: str, y_label: str, color_label: str, matrix: Any) -> Panel:
    import numpy as np

    values = np.asarray(matrix, dtype=float)
    limit = float(np.quantile(np.abs(values[values != 0]), 0.98)) if values.any() else 1.0
    limit = 1.0 if np.abs(values).max() <= 1.001 and limit > 0.5 else limit
    y_edges, x_edges = (_cut(size, min(size, CELLS)) for size in values.shape)
    binned = _farthest(_farthest(values, y_edges, 0), x_edges, 1)
    low = -limit if (values < 0).any() else 0.0
    return Panel(title, x_label, y_label, color_label, map=_map(binned, x_edges, y_edges, low, limit))


def _cut(size: int, cells: int) -> Any:
    """Return the edges of that many bins of nearly equal size."""
    import numpy as np

    return np.linspace(0, size, cells + 1).astype(int)


def _farthest(values: Any, edges: Any, axis: int) -> Any:
    """Return, for each bin between two edges, the number that is farthest from zero."""
    import numpy as np

    high = np.maximum.reduceat(values, edges[:-1], axis=axis)
    low = np.minimum.reduceat(values, edges[:-1], axis=axis)
    return np.where(high >= -low, high, low)


def _map(values: Any, x_edges: Any, y_edges: Any, low: float, high: float, *, places: bool = True) -> Map:
    x, y = ((edges[:-1] + edges[1:] - places) / 2 for edges in (x_edges, y_edges))
    z = tuple(tuple(round(float(value), 3) for value in row) for row in values)
    square = places and x_edges[-1] == y_edges[-1]
    return Map(tuple(x.tolist()), tuple(y.tolist()), z, low, high, bool(square), places)
