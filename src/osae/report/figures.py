"""Results as figures, one PNG file each.

Every method keeps its colour, marker and line in all figures. Colours are safe for colour-blind readers
(Okabe and Ito) and never the only difference. Figures are drawn without pyplot, so nothing stays open.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from osae.files import atomic_write
from osae.report.columns import Column, column, measured

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
SIX = ("stability_truth", "orderedness_truth", "mse", "stability_pairs", "orderedness_pairs", "fifr")
SCALES = {"stability": "mean cosine of matched atoms", "orderedness": "rank correlation of matched places"}
LOG_FROM = 20.0  # errors that span more than this factor are drawn on a log scale


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
    "batchtopk": Look("#882255", "P", "-."),
    "matryoshka-fixed": Look("#E69F00", "s"),
    "matryoshka-random": Look("#D55E00", "D", "--"),
    "nested-dropout": Look("#CC79A7", "<", "-."),
    "osae-paper": Look("#009E73", "h", "--"),
    "osae": Look("#000000", "o", "-", 2.2),
}
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000")


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each name: its own if it is a known method, else the next of a fixed cycle."""
    others = cycle(zip(OTHERS * 3, "osD^vPh<" * 3, ("-",) * 8 + ("--",) * 8 + ("-.",) * 8, strict=True))
    return {name: LOOKS[name] if name in LOOKS else Look(*next(others)) for name in dict.fromkeys(names)}


def matching_scatter(
    panels: Sequence[Mapping[str, Any]],
    path: Path | str,
    *,
    title: str = "Where each true atom is found in the learned dictionary",
    x_label: str = "place of the true atom",
    y_label: str = "place of the matched unit",
) -> None:
    """Draw one panel per method: a dot per matched pair of units, coloured by their cosine.

    A panel has `title`, `left` (places of the true atoms), `right` (places of the units matched with them),
    `similarity`, `units` (the length of both axes), and may have the numbers `stability` and `orderedness`.
    """
    across = min(len(panels), 4)
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
        figure.suptitle(title)
        figure.supylabel(y_label, fontsize=9)
        if dots is not None:
            figure.colorbar(dots, ax=grid, label="cosine of the pair", shrink=0.8, aspect=30, pad=0.015)


def _matching_title(panel: Mapping[str, Any]) -> str:
    numbers = [
        f"{name} {column(key).text(panel[key])}"
        for name, key in (("Stab", "stability"), ("Ord", "orderedness"))
        if panel.get(key) is not None
    ]
    return "\n".join([str(panel["title"]), ", ".join(numbers)] if numbers else [str(panel["title"])])


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
    # always the same shape, so the places are given: an experiment draws ten of these
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
        figure.suptitle(f"{data['title']}: two seeds beside the truth, units in their own order")


def _axes_of_pairs(word: str) -> list[tuple[str, str]]:
    first, second, true = f"{word} of the first seed", f"{word} of the second seed", "true atom"
    return [(true, first), (true, second), (second, first)]


def _limit(matrices: Sequence[np.ndarray]) -> float:
    """The common limit of colour: nearly the greatest activation, lest one of them pale all others."""
    active = np.abs(np.concatenate([matrix[matrix != 0] for matrix in matrices]))
    return float(np.quantile(active, 0.98)) if active.size else 1.0


def _extend(matrices: Sequence[np.ndarray], limit: float) -> Literal["neither", "min", "max", "both"]:
    """At which ends values lie beyond the colour bar; rounding does not count."""
    over = any((matrix > 1.001 * limit).any() for matrix in matrices)
    under = any((matrix < -1.001 * limit).any() for matrix in matrices)
    if over and under:
        return "both"
    return "max" if over else "min" if under else "neither"


def sweep(
    sections: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    path: Path | str,
    *,
    title: str = "How every measure changes with the skew of the world",
    x_label: str = "Zipf exponent of the world",
) -> None:
    """Draw one panel per measure: its mean and 95 % interval against the sections' `x`, a line per method."""
    keys = keys or SIX
    methods = list(dict.fromkeys(row["method"] for section in sections for row in section["rows"]))
    across = min(len(keys), 3)
    down = math.ceil(len(keys) / across)
    with _figure(path, (3.1 * across + 0.4, 2.5 * down + 1.2)) as figure:
        grid = figure.subplots(down, across, squeeze=False, sharex=True)
        for axes, key in zip(grid.flat, keys, strict=False):
            measure = column(key)
            for method, look in looks(methods).items():
                points = [
                    (float(section["x"]), found)
                    for section in sections
                    for row in section["rows"]
                    if row["method"] == method and (found := measured(row.get(key)))
                ]
                _line_and_band(axes, sorted(points, key=lambda point: point[0]), method, look)
            _finish(axes, measure, [row.get(key) for section in sections for row in section["rows"]])
        figure.suptitle(title)
        _label_lowest(grid, len(keys), x_label)
        _legend_below(figure, grid)


def lines_by_prefix(
    curves: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
    path: Path | str,
    *,
    title: str = "Consistency of the prefixes",
    chance: Mapping[str, Any] | None = None,
) -> None:
    """Draw one panel per measure: mean and 95 % interval against prefix length, a line per method.

    `curves[measure][method]` has the lists `prefix` and `mean`, and may have `low` and `high`;
    `chance[measure]` is a number, or has the lists `prefix` and `mean`.
    """
    methods = list(dict.fromkeys(method for lines in curves.values() for method in lines))
    looks_of = looks(methods)
    with _figure(path, (4.1 * len(curves) + 0.3, 4.2)) as figure:
        grid = figure.subplots(1, len(curves), squeeze=False)
        for axes, (key, lines) in zip(grid.flat, curves.items(), strict=True):
            for method, line in lines.items():
                _line_and_band(axes, _points(line), method, looks_of[method])
            lengths = sorted({length for line in lines.values() for length in line["prefix"]})
            _draw_chance(axes, (chance or {}).get(key), lengths)
            _log2_axis(axes, lengths)
            words = column(key).words
            scale = SCALES.get(key.partition("_")[0], words)
            axes.set(title=words, xlabel="prefix length (units)", ylabel=scale)
        figure.suptitle(title)
        _legend_below(figure, grid)


def _points(line: Mapping[str, Sequence[float]]) -> list[tuple[float, dict[str, float]]]:
    columns = [name for name in ("mean", "low", "high") if name in line]
    values = zip(*(line[name] for name in columns), strict=True)
    return [
        (float(x), measured(dict(zip(columns, found, strict=True))))
        for x, found in zip(line["prefix"], values, strict=True)
    ]


def _draw_chance(axes: "Axes", level: Any, lengths: Sequence[float]) -> None:
    if level is None:
        return
    dashed: dict[str, Any] = {
        "color": MUTED,
        "linestyle": (0, (4, 3)),
        "linewidth": 1.1,
        "label": "chance level",
    }
    if isinstance(level, Mapping) and "prefix" in level:
        axes.plot(level["prefix"], level["mean"], **dashed)
    elif (found := measured(level)) and lengths:
        axes.plot([lengths[0], lengths[-1]], [found["mean"]] * 2, **dashed)


def _log2_axis(axes: "Axes", lengths: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    step = max(1, math.ceil(len(lengths) / 9))
    axes.set_xticks(
        list(lengths[::-1][::step][::-1]), [f"{length:g}" for length in lengths[::-1][::step][::-1]]
    )
    axes.minorticks_off()


def bars_with_intervals(
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    path: Path | str,
    *,
    title: str = "Every choice by itself",
    chance: Mapping[str, Any] | None = None,
) -> None:
    """Draw one panel per measure: each row's mean as a dot with its 95 % interval, published ones hollow."""
    names = [row["method"] for row in rows]
    places = range(len(rows))
    with _figure(path, (2.2 * len(keys) + 1.6, 0.3 * len(rows) + 1.5)) as figure:
        grid = figure.subplots(1, len(keys), squeeze=False, sharey=True)
        for axes, key in zip(grid.flat, keys, strict=True):
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="y", labelcolor=INK, length=0)
            for place, row in zip(places, rows, strict=True):
                _dot(axes, place, measured(row.get(key)), measured((row.get("paper") or {}).get(key)))
            measure = column(key)
            level = measured((chance or {}).get(key, (chance or {}).get(key.partition("_")[0])))
            if level:
                axes.axvline(
                    level["mean"], color=MUTED, linestyle=(0, (4, 3)), linewidth=1, label="chance level"
                )
            shown = [row.get(key) for row in rows] + [(row.get("paper") or {}).get(key) for row in rows]
            if _wants_log(measure, shown):
                axes.set_xscale("log")
            axes.set_title(measure.words)
            axes.margins(x=0.12)
            if axes.get_xscale() == "linear":
                axes.locator_params(axis="x", nbins=4)
        grid[0, 0].set_yticks(places, names)
        grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
        figure.suptitle(title)
        _legend_below(figure, grid)


def _dot(axes: "Axes", place: float, ours: Mapping[str, float], paper: Mapping[str, float]) -> None:
    if ours:
        mean = ours["mean"]
        reach = [[max(mean - ours.get("low", mean), 0.0)], [max(ours.get("high", mean) - mean, 0.0)]]
        thick: dict[str, Any] = {"color": "#0072B2", "elinewidth": 1.8, "markersize": 5.5}
        label = "ours, with 95 % interval" if "low" in ours else "ours"
        axes.errorbar([mean], [place], xerr=reach, fmt="o", label=label, **thick)
    if paper:
        hollow = {"markerfacecolor": "white", "markeredgecolor": "#D55E00", "markersize": 5.5}
        axes.plot(paper["mean"], place, "D", label="published", zorder=1.9, **hollow)


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
    """Draw a small plot of a few lines, each given as its x and y values; for training logs and the like."""
    with _figure(path, (5.2, 3.5)) as figure:
        axes = figure.subplots()
        for (name, (x, y)), look in zip(lines.items(), looks(lines).values(), strict=True):
            marks = look.marker if len(x) <= 30 else ""
            axes.plot(
                x, y, look.line, color=look.color, marker=marks, markersize=4, linewidth=1.6, label=name
            )
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        if len(lines) > 1:
            axes.legend()


def _line_and_band(
    axes: "Axes", points: Sequence[tuple[float, Mapping[str, float]]], name: str, look: Look
) -> None:
    points = [(x, found) for x, found in points if found]
    x = [x for x, _ in points]
    ends = [(found.get("low", found["mean"]), found.get("high", found["mean"])) for _, found in points]
    axes.plot(
        x,
        [found["mean"] for _, found in points],
        look.line,
        color=look.color,
        marker=look.marker,
        markersize=4.5,
        linewidth=look.width,
        label=name,
    )
    axes.fill_between(
        x, [low for low, _ in ends], [high for _, high in ends], color=look.color, alpha=0.14, linewidth=0
    )


def _wants_log(measure: Column, values: Iterable[Any]) -> bool:
    """Whether an error spans so many sizes that only a log scale shows all of them."""
    means = [found["mean"] for value in values if (found := measured(value))]
    return (
        measure.format == "significant"
        and bool(means)
        and min(means) > 0
        and max(means) / min(means) > LOG_FROM
    )


def _finish(axes: "Axes", measure: Column, values: Iterable[Any]) -> None:
    if _wants_log(measure, values):
        axes.set_yscale("log")
    axes.set_title(
        measure.words + {"high": " (higher is better)", "low": " (lower is better)"}.get(measure.better, "")
    )


def _label_lowest(grid: np.ndarray, count: int, x_label: str) -> None:
    """Label the lowest used panel of each column, and blank the panels after the first `count`."""
    across = grid.shape[1]
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_axis_off()
        elif place + across >= count:
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)


def _legend_below(figure: "Figure", grid: np.ndarray) -> None:
    """One legend for all panels, below them, each name once."""
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
    """A figure to draw on, in our style, that is written to `path` as PNG once the block ends well.

    The panels are `arranged` so that no text overlaps, which takes longer than drawing them.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), atomic_write(path) as part:
        figure = Figure(figsize=inches, facecolor="white")
        if arranged:
            figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06, hspace=0.03)
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(part, format="png", dpi=DPI)
