"""The figures of the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.speed.pipe import Shape

OURS, THEIRS, GREY = "#0072B2", "#D55E00", "#666666"
STYLES = ("o-", "s--", "P--", "^-.", "v:", "D-")  # of the entries of one color
SPAN = 0.3  # of explained variance below the best


def plot_steps(result: Mapping[str, Any], path: Path) -> None:
    """Draw a bar for each entry's step at each shape, as a multiple of the bare encoder product."""
    cases = result["cases"]
    figure = Figure(figsize=(4.6 * len(cases), 3.6), layout="constrained")
    for axes, found in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        entries = sorted(found["entries"], key=lambda entry: -entry["step_ms"])
        colors = [OURS if entry["name"].startswith("osae") else THEIRS for entry in entries]
        bars = axes.barh(
            [entry["name"] for entry in entries],
            [entry["times_floor"] for entry in entries],
            color=colors,
        )
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
        axes.set_title(str(Shape(**found["shape"])), fontsize=10)
        axes.set_xlabel("step / bare encoder product")
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def plot_growth(sweeps: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw time and extra memory of a step against each size, on logarithmic axes, with the fitted lines."""
    figure = Figure(figsize=(4.2 * len(sweeps), 6.4), layout="constrained")
    grid = figure.subplots(2, len(sweeps), squeeze=False)
    for column, sweep in enumerate(sweeps):
        sizes = [point["size"] for point in sweep["points"]]
        for axes, key, label in (
            (grid[0][column], "step_ms", "step (ms)"),
            (grid[1][column], "peak_mb", "MB"),
        ):
            values = [point[key] for point in sweep["points"]]
            fit = sweep["growth"][key]
            axes.loglog(sizes, values, "o-", color=OURS, label=f"exact ordered, ~ {sweep['along']}^{fit:.2f}")
            if key == "step_ms":
                floors = [point["floor_ms"] for point in sweep["points"]]
                axes.loglog(sizes, floors, ".:", color=GREY, label="bare encoder product")
            axes.set_xscale("log", base=2)
            axes.set_xlabel(f"{sweep['along']}   ({sweep['fixed']})")
            axes.set_ylabel(label if key == "step_ms" else "extra memory (MB)")
            axes.legend(frameon=False, fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def plot_quality(result: Mapping[str, Any], path: Path) -> None:
    """Draw the explained variance of every entry against the CPU time of its training."""
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    best = 0.0
    for color, ours in ((OURS, True), (THEIRS, False)):
        named = {n: e for n, e in result["entries"].items() if n.startswith("osae") == ours}
        for (name, entry), style in zip(named.items(), STYLES * len(named), strict=False):
            seconds, _, explained = zip(*entry["points"], strict=True)
            axes.plot(seconds, explained, style, color=color, markersize=3, linewidth=1.2, label=name)
            best = max(best, *explained)
    axes.set_xscale("log")
    axes.set_ylim(best - SPAN, best + SPAN / 20)
    axes.set_xlabel("CPU time of training (s)")
    axes.set_ylabel("explained variance, held-out rows")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)
