"""The figures of the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.speed.pipe import Shape

OURS, THEIRS, GREY = "#0072B2", "#D55E00", "#666666"


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
