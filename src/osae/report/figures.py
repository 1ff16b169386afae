"""Draw results as figures, one PNG file each, of any measures in `osae.measures`, and their data.

Every method has the same colour, marker and line style in all figures. Colours are safe for colour-blind
readers (Okabe and Ito) and never the only difference. Figures are drawn without pyplot, so no figure stays
open.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from osae.files import atomic_write
from osae.measures import Measure, base_key, measure
from osae.report.plots import (
    Plot,
    plot_bars,
    plot_courses,
    plot_lines,
    plot_maps,
    plot_matchings,
    plot_prefixes,
    plot_sweep,
    wants_log,
    write_plot,
)
from osae.report.text import visible
from osae.results.base import Interval, as_interval
from osae.results.experiment import MethodRow, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
INK, MUTED, FAINT = "#222222", "#666666", "#e4e4e4"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "figure.titlesize": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
}
LONGEST_NAME, LONGEST_TITLE = 48, 120
PANEL_KEYS = frozenset({"title", "left", "right", "similarity", "units"})


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    color: str
    marker: str = "o"
    line: str = "-"
    width: float = 1.4


LOOKS = {
    "untrained": Look("#888888", "+", ":"),
    "vanilla": Look("#888888", "x", ":"),
    "topk": Look("#56B4E9", "o"),
    "topk-sorted": Look("#0072B2", "v", "--"),
    "topk-sorted-by-gain": Look("#0072B2", "^", "-."),
    "topk-our-settings-sorted-by-gain": Look("#0072B2", "^", "-."),
    "batchtopk": Look("#882255", "P", "-."),
    "matryoshka-fixed": Look("#E69F00", "s"),
    "matryoshka-random": Look("#D55E00", "D", "--"),
    "matryoshka-piecewise": Look("#882255", "d", ":"),
    "nested-dropout": Look("#CC79A7", "<", "-."),
    "osae-paper": Look("#009E73", "h", "--"),
    "osae": Look("#000000", "o", "-", 2.2),
}
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000")


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the style of each name: its own if it is a known method, else the next of a fixed cycle."""
    others = cycle(zip(OTHERS * 3, "osD^vPh<" * 3, ("-",) * 8 + ("--",) * 8 + ("-.",) * 8, strict=True))
    return {name: LOOKS[name] if name in LOOKS else Look(*next(others)) for name in dict.fromkeys(names)}


def matching_scatter(
    panels: Sequence[Mapping[str, Any]],
    path: Path | str,
    *,
    title: str = "Position of each true atom in the learned dictionary",
    x_label: str = "position of the true atom",
    y_label: str = "position of the matched unit",
    across: int = 4,
) -> None:
    """Draw one panel per method: a dot per matched pair of units, coloured by their cosine.

    A panel has `title`, `left` (positions of the true atoms), `right` (positions of the matched units),
    `similarity` and `units` (the length of both axes). Its other keys are measures to show above it. There
    are at most `across` panels per row.
    """
    write_plot(plot_matchings(panels, title=title, x_label=x_label, y_label=y_label), path)
    across = min(len(panels), across)
    down = math.ceil(len(panels) / across)
    with _figure(path, (2.35 * across + 0.9, 2.7 * down + 0.8)) as figure:
        grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        lowest = min((float(np.min(panel["similarity"])) for panel in panels), default=0.0)
        dots = None
        for axes, panel in zip(grid.flat, panels, strict=False):
            units = int(panel["units"])
            axes.plot([0, units - 1], [0, units - 1], color="#bbbbbb", linewidth=0.8, zorder=1)
            dots = axes.scatter(
                np.asarray(panel["left"]),
                np.asarray(panel["right"]),
                c=np.asarray(panel["similarity"]),
                cmap="viridis_r",
                vmin=min(0.0, lowest),
                vmax=1.0,
                s=float(np.clip(1400 / units, 3, 22)),
                linewidths=0,
                zorder=2,
            )
            axes.set(title=_matching_title(panel), box_aspect=1)
            axes.margins(0.03)
        _label_lowest(grid, len(panels), x_label)
        figure.suptitle(_plain(title))
        figure.supylabel(_plain(y_label), fontsize=9)
        if dots is not None:
            figure.colorbar(dots, ax=grid, label="cosine of the pair", shrink=0.8, aspect=30, pad=0.015)


def _matching_title(panel: Mapping[str, Any]) -> str:
    numbers = [
        f"{measure(key).title} {measure(key).text(value)}"
        for key, value in panel.items()
        if key not in PANEL_KEYS and value is not None
    ]
    return "\n".join(text for text in (_name(str(panel["title"])), _plain(", ".join(numbers))) if text)


def seed_pair_panel(data: Mapping[str, Any], path: Path | str) -> None:
    """Draw the three rows that compare two seeds with the truth: codes, correlations and cosines.

    `data` has `title` and three lists of three matrices: `rasters` (units x inputs: the true code, seed 0,
    seed 1), `pearson` and `cosine` (seed 0 by truth, seed 1 by truth, seed 0 by seed 1).
    """
    truth, first, second = "truth", "first seed", "second seed"
    rows = [
        ("rasters", "activation", [truth, first, second], [("input", "unit")] * 3),
        *(
            (key, words, [f"{first} and truth", f"{second} and truth", f"{first} and {second}"], pairs)
            for key, words, pairs in (
                ("pearson", "Pearson correlation\nof activations", _axes_of_pairs("unit")),
                ("cosine", "cosine of atoms", _axes_of_pairs("atom")),
            )
        ),
    ]
    write_plot(_plot_pairs(rows, data), path)
    # always the same shape, so positions are fixed: an experiment draws ten of these
    places = {"left": 0.065, "right": 0.918, "top": 0.925, "bottom": 0.055, "wspace": 0.3, "hspace": 0.36}
    with _figure(path, (9.6, 9.2), arranged=False) as figure:
        grid = figure.subplots(3, 4, width_ratios=(1, 1, 1, 0.06), gridspec_kw=places)
        for axes_row, (key, words, titles, names) in zip(grid, rows, strict=True):
            matrices = [np.asarray(matrix, dtype=float) for matrix in data[key]]
            limit = _limit(matrices) if key == "rasters" else 1.0
            for axes, matrix, title, (x_name, y_name) in zip(axes_row, matrices, titles, names, strict=False):
                axes.imshow(
                    matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
                )
                axes.set(title=title, xlabel=x_name, ylabel=y_name)
                axes.grid(visible=False)
                axes.locator_params(nbins=5, integer=True)
                axes.spines[:].set_visible(True)
            image, beyond = axes_row[0].images[0], _extend(matrices, limit)
            bar = figure.colorbar(image, cax=axes_row[3], label=words, extend=beyond)
            if all((matrix >= 0).all() for matrix in matrices):
                bar.ax.set_ylim(0, limit)
        figure.suptitle(
            _plain(f"{data['title']}: two seeds and the ground truth, with units in their original order")
        )


def cosine_maps(
    maps: Mapping[str, np.ndarray],
    path: Path | str,
    *,
    title: str,
    x_label: str = "principal direction",
    y_label: str = "unit",
) -> None:
    """Draw one matrix of |cosines| per name, from white (0) to dark (1)."""
    panels = [(name, x_label, y_label, "|cosine|", cosines) for name, cosines in maps.items()]
    write_plot(plot_maps(panels, title=title), path)
    with _figure(path, (3.2 * len(maps) + 0.9, 4.0)) as figure:
        grid = figure.subplots(1, len(maps), squeeze=False)
        image = None
        for axes, (name, cosines) in zip(grid.flat, maps.items(), strict=True):
            image = axes.imshow(cosines, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.set(title=_name(name), xlabel=_plain(x_label), ylabel=_plain(y_label))
            axes.grid(visible=False)
            axes.locator_params(nbins=6, integer=True)
        figure.suptitle(_plain(title))
        if image is not None:
            figure.colorbar(image, ax=grid, label="|cosine|", shrink=0.8, pad=0.02)


def _plot_pairs(rows: Sequence[tuple[str, str, list[str], Any]], data: Mapping[str, Any]) -> Plot:
    """Return the nine matrices as maps, grouped by kind, with the atoms first."""
    panels = []
    for key, words, titles, axes in reversed(rows):
        maps = [
            (title, *names, words.split(" ")[0], matrix)
            for title, names, matrix in zip(titles, axes, data[key], strict=True)
        ]
        group = f"{data['title']}: {words.replace(chr(10), ' ')}"
        panels += [replace(panel, group=group) for panel in plot_maps(maps, title="").panels]
    return Plot(
        f"{data['title']}: two seeds and the ground truth",
        "Cosines of all pairs of atoms, correlations of their activations, and the activations on a few "
        "inputs, with units in their original order.",
        tuple(panels),
        family="Two seeds and the ground truth",
    )


def _axes_of_pairs(word: str) -> list[tuple[str, str]]:
    first, second, true = f"{word} of the first seed", f"{word} of the second seed", "true atom"
    return [(true, first), (true, second), (second, first)]


def _limit(matrices: Sequence[np.ndarray]) -> float:
    """Return a shared colour limit, chosen so that one outlier does not wash out the rest."""
    active = np.abs(np.concatenate([matrix[matrix != 0] for matrix in matrices]))
    return float(np.quantile(active, 0.98)) if active.size else 1.0


def _extend(matrices: Sequence[np.ndarray], limit: float) -> Literal["neither", "min", "max", "both"]:
    """Return the ends at which values exceed the colour bar, ignoring rounding."""
    over = any((matrix > 1.001 * limit).any() for matrix in matrices)
    under = any((matrix < -1.001 * limit).any() for matrix in matrices)
    if over and under:
        return "both"
    return "max" if over else "min" if under else "neither"


def sweep(
    sections: Sequence[Section],
    keys: Sequence[str],
    path: Path | str,
    *,
    title: str = "How every measure changes with the skew of the world",
    x_label: str = "Zipf exponent of the world",
    log_x: bool = False,
) -> None:
    """Draw one panel per measure: its mean and 95 % interval against the sections' `x`, a line per method."""
    write_plot(plot_sweep(sections, keys, title=title, x_label=x_label, log_x=log_x), path)
    rows = [(section.x or 0.0, row) for section in sections for row in section.rows]
    across = min(len(keys), 3)
    down = math.ceil(len(keys) / across)
    with _figure(path, (3.1 * across + 0.4, 2.5 * down + 1.2)) as figure:
        grid = figure.subplots(down, across, squeeze=False, sharex=True)
        for axes, key in zip(grid.flat, keys, strict=False):
            for method, look in looks(row.method for _, row in rows).items():
                points = [(x, as_interval(row.measures.get(key))) for x, row in rows if row.method == method]
                _line_and_band(axes, sorted(points, key=lambda point: point[0]), method, look)
            if wants_log(measure(key), [row.measures.get(key) for _, row in rows]):
                axes.set_yscale("log")
            if log_x:
                axes.set_xscale("log")
                axes.set_xticks(
                    sorted({x for x, _ in rows}), [f"{x:g}" for x in sorted({x for x, _ in rows})]
                )
                axes.xaxis.minorticks_off()
            axes.set_title(_panel_title(measure(key)))
        figure.suptitle(_plain(title))
        _label_lowest(grid, len(keys), x_label)
        _legend_below(figure, grid)


def lines_by_prefix(
    curves: Mapping[str, Mapping[str, Mapping[str, Any]]],
    path: Path | str,
    *,
    title: str = "Consistency by prefix",
    chance: Mapping[str, Any] | None = None,
) -> None:
    """Draw one panel per measure: mean and 95 % interval against prefix length, a line per method.

    `curves[measure][method]` has the lists `prefix` and `mean`, and may have `low` and `high`, in which None
    is a missing number; `chance[measure]` is a number, or has the lists `prefix` and `mean`, and may have
    `low` and `high`, one standard deviation away.
    """
    write_plot(plot_prefixes(curves, title=title, chance=chance), path)
    looks_of = looks(method for lines in curves.values() for method in lines)
    with _figure(path, (4.1 * len(curves) + 0.3, 4.2)) as figure:
        grid = figure.subplots(1, len(curves), squeeze=False)
        for axes, (key, lines) in zip(grid.flat, curves.items(), strict=True):
            for method, line in lines.items():
                _line_and_band(axes, _points(line), method, looks_of[method])
            lengths = sorted({length for line in lines.values() for length in line["prefix"]})
            _draw_chance(axes, (chance or {}).get(key), lengths)
            _log2_axis(axes, lengths)
            axes.set(title=_panel_title(measure(key)), xlabel="prefix length (units)")
        figure.suptitle(_plain(title))
        _legend_below(figure, grid)


def panels_by_method(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Interval | None]]]],
    key: str,
    path: Path | str,
    *,
    title: str,
    x_label: str,
    log_x: bool = False,
) -> None:
    """Draw one measure with a panel per method; each has lines by name, from light to dark, with intervals.

    A line is a list of points (x, value).
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    write_plot(plot_courses(panels, key, title=title, x_label=x_label, log_x=log_x), path)
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    shades = colormaps["viridis_r"]
    with _figure(path, (3.1 * across + 0.4, 2.5 * down + 1.2)) as figure:
        grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for axes, (method, lines) in zip(grid.flat, panels.items(), strict=False):
            for place, (name, points) in enumerate(lines.items()):
                shade = shades(0.1 + 0.9 * place / max(1, len(lines) - 1))
                _line_and_band(axes, points, name, Look(to_hex(shade), "osD^vPh<"[place % 8]))
            if log_x:
                axes.set_xscale("log")
            axes.set_title(_name(method))
        figure.suptitle(_plain(f"{title}: {_panel_title(measure(key))}"))
        _label_lowest(grid, len(panels), x_label)
        _legend_below(figure, grid)


def _points(line: Mapping[str, Any]) -> list[tuple[float, Interval | None]]:
    """Return each length of a curve with its mean and interval; None for missing numbers."""
    nothing = [None] * len(line["prefix"])
    lows, highs = (nothing if line.get(end) is None else line[end] for end in ("low", "high"))
    numbers = zip(line["prefix"], line["mean"], lows, highs, strict=True)
    return [
        (float(x), None if mean is None else Interval(mean, None, low, high))
        for x, mean, low, high in numbers
    ]


def _draw_chance(axes: "Axes", level: Any, lengths: Sequence[float]) -> None:
    if level is None or not lengths:
        return
    if isinstance(level, Mapping):
        x, y = level["prefix"], level["mean"]
        if level.get("low") is not None:
            axes.fill_between(x, level["low"], level["high"], color=MUTED, alpha=0.12, linewidth=0)
    else:
        x, y = [lengths[0], lengths[-1]], [float(level)] * 2
    axes.plot(x, y, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label="chance level")


def _log2_axis(axes: "Axes", lengths: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    step = max(1, math.ceil(len(lengths) / 9))
    axes.set_xticks(
        list(lengths[::-1][::step][::-1]), [f"{length:g}" for length in lengths[::-1][::step][::-1]]
    )
    axes.minorticks_off()


def bars_with_intervals(
    rows: Sequence[MethodRow],
    keys: Sequence[str],
    path: Path | str,
    *,
    title: str = "Each choice in isolation",
    chance: Mapping[str, Any] | None = None,
) -> None:
    """Draw one panel per measure: each row's mean as a dot with its 95 % interval, published means hollow."""
    write_plot(plot_bars(rows, keys, title=title, chance=chance), path)
    names = [_name(row.method) for row in rows]
    room = max(1.6, 0.5 + 0.068 * max(map(len, names), default=0))
    with _figure(path, (2.2 * len(keys) + room, 0.3 * len(rows) + 1.5)) as figure:
        grid = figure.subplots(1, len(keys), squeeze=False, sharey=True)
        for axes, key in zip(grid.flat, keys, strict=True):
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="y", labelcolor=INK, length=0)
            shown = [
                (row.measures.get(key), row.paper.measures.get(key) if row.paper else None) for row in rows
            ]
            for place, (ours, paper) in enumerate(shown):
                _dot(axes, place, as_interval(ours), as_interval(paper))
            levels = chance or {}
            if (level := levels.get(key, levels.get(base_key(key)))) is not None:
                dashed: dict[str, Any] = {"color": MUTED, "linestyle": (0, (4, 3)), "linewidth": 1}
                axes.axvline(float(level), label="chance level", **dashed)
            if wants_log(measure(key), [value for both in shown for value in both]):
                axes.set_xscale("log")
            else:
                axes.locator_params(axis="x", nbins=4)
            axes.set_title(_plain(measure(key).phrase))
            axes.margins(x=0.12)
        grid[0, 0].set_yticks(range(len(rows)), names)
        grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
        figure.suptitle(_plain(title))
        _legend_below(figure, grid)


def _dot(axes: "Axes", place: float, ours: Interval | None, paper: Interval | None) -> None:
    if ours is not None:
        low, high = ours.ends()
        reach = [[max(ours.mean - low, 0.0)], [max(high - ours.mean, 0.0)]]
        thick: dict[str, Any] = {"color": "#0072B2", "elinewidth": 1.8, "markersize": 5.5}
        label = "ours" if ours.low is None else "ours, with 95 % interval"
        axes.errorbar([ours.mean], [place], xerr=reach, fmt="o", label=label, **thick)
    if paper is not None:
        hollow = {"markerfacecolor": "white", "markeredgecolor": "#D55E00", "markersize": 5.5}
        axes.plot(paper.mean, place, "D", label="published", zorder=1.9, **hollow)


def curve(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path | str,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Draw a small plot of a few lines, each given by its x and y values, such as training curves."""
    about = {"title": title, "x_label": x_label, "y_label": y_label}
    write_plot(plot_lines(lines, **about, log_x=log_x, log_y=log_y), path)
    with _figure(path, (5.2, 3.5)) as figure:
        axes = figure.subplots()
        for (name, (x, y)), look in zip(lines.items(), looks(lines).values(), strict=True):
            marks = look.marker if len(x) <= 30 else ""
            drawn: dict[str, Any] = {"color": look.color, "marker": marks, "markersize": 4, "linewidth": 1.6}
            axes.plot(x, y, look.line, label=_name(name), **drawn)
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        axes.set(title=_plain(title), xlabel=_plain(x_label), ylabel=_plain(y_label))
        if len(lines) > 1:
            axes.legend()


def _line_and_band(
    axes: "Axes", points: Sequence[tuple[float, Interval | None]], name: str, look: Look
) -> None:
    known = [(x, found) for x, found in points if found is not None]
    x, ends = [x for x, _ in known], [found.ends() for _, found in known]
    drawn: dict[str, Any] = {"color": look.color, "marker": look.marker, "markersize": 4.5}
    means = [found.mean for _, found in known]
    axes.plot(x, means, look.line, linewidth=look.width, label=_name(name), **drawn)
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    axes.fill_between(x, lows, highs, color=look.color, alpha=0.14, linewidth=0)


def _panel_title(entry: Measure) -> str:
    return _plain(f"{entry.phrase} ({entry.direction})" if entry.direction else entry.phrase)


def _name(text: str) -> str:
    """Return a name suitable for a legend, which omits names that begin with an underscore."""
    shown = _plain(visible(text, LONGEST_NAME))
    return f" {shown}" if shown.startswith("_") else shown


def _plain(text: str) -> str:
    r"""Return the text escaped for matplotlib, where a dollar sign would start a formula."""
    return visible(text, LONGEST_TITLE).replace("$", r"\$")


def _label_lowest(grid: np.ndarray, count: int, x_label: str) -> None:
    """Label the lowest used panel of each column, and blank the panels after the first `count`."""
    across = grid.shape[1]
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_axis_off()
        elif place + across >= count:
            axes.set_xlabel(_plain(x_label))
            axes.tick_params(labelbottom=True)


def _legend_below(figure: "Figure", grid: np.ndarray) -> None:
    """Draw one legend below all panels, with each name once."""
    entries: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        inches = 0.6 + 0.072 * max(map(len, entries))
        across = max(2, min(len(entries), int(figure.get_figwidth() / inches)))
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=across)


@contextmanager
def _figure(path: Path | str, inches: tuple[float, float], *, arranged: bool = True) -> Iterator["Figure"]:
    """Yield a figure to draw on, in our style, and write it to `path` as PNG unless the block fails.

    With `arranged`, panels are laid out so that no text overlaps, which takes longer than drawing them.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), atomic_write(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a name in another script
        figure = Figure(figsize=inches, facecolor="white")
        if arranged:
            figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06, hspace=0.03)
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(part, format="png", dpi=DPI)
