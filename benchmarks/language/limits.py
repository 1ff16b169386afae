"""Show what `benchmarks.language.sharing` has measured: a table and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.language.ceiling import estimate
from benchmarks.language.sharing import OTHER, SHARED
from benchmarks.trials import Record

FIGURE = "consensus-limits.png"
FEWEST = 2  # short runs from which the fit begins: a single run is no consensus
COLOURS = {SHARED: "#D55E00", OTHER: "#0072B2"}
STYLES = ("-", "--", ":")
ABSENT = "-"
Key = tuple[int, str]  # rows of a half, and whether the documents are shared


def group(found: Sequence[Record]) -> dict[Key, dict[int, Record]]:
    """Return the records by rows and documents, the most rows first, and by number of short runs."""
    groups: dict[Key, dict[int, Record]] = {}
    for one in sorted(found, key=lambda each: (-each["rows"], each["documents"], each["runs"])):
        groups.setdefault((one["rows"], one["documents"]), {})[one["runs"]] = one
    return groups


def tabulate_sharing(found: Sequence[Record]) -> list[list[str]]:
    """Return the stability of two consensuses by number of short runs, and the limit that it approaches."""
    counts = sorted({one["runs"] for one in found})
    head = ["rows of a run", "documents", *(f"{count} run{'s' * (count > 1)}" for count in counts)]
    head += ["limit", "middle 90 %", "units with a score of half", "stability of these"]
    rows = []
    for (size, documents), by_runs in group(found).items():
        stabilities = get_stabilities(by_runs)
        fit = estimate({count: each for count, each in stabilities.items() if count >= FEWEST})
        last = by_runs[max(by_runs)]["measures"]
        rows.append(
            [
                f"{size:,}",
                documents,
                *(f"{stabilities[count]:.3f}" if count in stabilities else ABSENT for count in counts),
                f"{fit.limit:.2f}",
                f"{fit.low:.2f} to {fit.high:.2f}",
                f"{last['found_by_half']:.2f}",
                f"{last['stability_of_these']:.3f}",
            ]
        )
    return [head, ["---"] * len(head), *rows]


def get_stabilities(by_runs: Mapping[int, Record]) -> dict[int, float]:
    """Return the stability by number of short runs."""
    return {count: one["measures"]["stability"] for count, one in by_runs.items()}


def plot_limits(found: Sequence[Record], path: Path) -> None:
    """Draw stability against the number of short runs, and how many units the other consensus has as well."""
    from matplotlib.figure import Figure

    groups = group(found)
    sizes = list(dict.fromkeys(size for size, _ in groups))
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (size, documents), by_runs in groups.items():
        style = STYLES[sizes.index(size) % len(STYLES)]
        label = f"{documents} documents, {size:,} rows"
        stabilities = get_stabilities(by_runs)
        left.plot(
            list(stabilities), list(stabilities.values()), f"o{style}", color=COLOURS[documents], label=label
        )
        if documents == OTHER:
            counts, scores, shares = zip(*by_runs[max(by_runs)]["curve"], strict=True)
            right.plot(counts, shares, f"o{style}", color=COLOURS[OTHER], label=f"found, {size:,} rows")
            right.plot(counts, scores, style, color="#666666", label=f"mean score, {size:,} rows")
    left.set_xscale("log", base=2)
    left.set_xlabel("short runs of each consensus")
    left.set_ylabel("stability of two consensuses, 512 units")
    right.set_xlabel("first n units by score")
    right.set_ylabel("share that the other consensus has as well")
    for axes in (left, right):
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
