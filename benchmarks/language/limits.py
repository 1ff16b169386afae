"""Show how near the goals are, and what `benchmarks.language.sharing` has measured: tables and a figure."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.language.ceiling import estimate
from benchmarks.language.plans import AT_ONCE, chosen
from benchmarks.language.sharing import OTHER, SHARED
from benchmarks.trials import Record
from osae.config import to_json

FIGURE = "consensus-limits.png"
FEWEST = 2  # short runs from which the fit begins: a single run is no consensus
COLOURS = {SHARED: "#D55E00", OTHER: "#0072B2"}
STYLES = ("-", "--", ":")
ABSENT = "-"
ALIKE = (
    "method",
    "changes",
    "units",
    "tokens",
    "batch",
    "way",
)  # what trials of the chosen recipe have in common
BUDGET = 5_000_000  # tokens of the TopK run that is compared
GOALS = {  # what is measured, by the names of measures, and the goal for each
    "whole dictionary, stability / orderedness": {"stability": 0.75, "orderedness": 0.88},
    "first 256 units, stability / orderedness": {"stability_256": 0.90, "orderedness_256": 0.95},
    "explained variance of the first 128 units": {"ev_128": 0.60},
}
BEHIND = -0.005  # goal for explained variance, compared with TopK

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


def tabulate_goals(trials: Sequence[Record]) -> list[list[str]]:
    """Return each goal next to the mean over pairs of what the chosen recipe reaches, for each text."""
    made = to_json(chosen())
    found = [one for one in trials if all(one.get(key) == made[key] for key in ALIKE)]
    texts = list(dict.fromkeys(one["text"] for one in found))
    by_text = {text: [one["measures"] for one in found if one["text"] == text] for text in texts}
    head = ["goal", "wanted", *(f"{text}, pairs: {len(by_text[text])}" for text in texts)]
    rows = [
        [
            name,
            _join(wanted.values()),
            *(_join(_mean(by_text[text], key) for key in wanted) for text in texts),
        ]
        for name, wanted in GOALS.items()
    ]
    usual = {
        one["text"]: one["measures"]["ev"]
        for one in trials
        if (one["changes"], one["tokens"], one.get("way")) == (to_json(AT_ONCE), BUDGET, None)
        and (one["method"], one["units"], one.get("seed")) == ("topk", made["units"], None)
    }
    less = [f"{_mean(by_text[text], 'ev') - usual[text]:+.3f}" if text in usual else ABSENT for text in texts]
    rows.append([f"explained variance against TopK on {BUDGET:,} tokens", f"{BEHIND:+.3f}", *less])
    return [head, ["---"] * len(head), *rows]


def _mean(measures: Sequence[Mapping[str, float]], key: str) -> float:
    return sum(each[key] for each in measures) / len(measures)


def _join(numbers: Iterable[float]) -> str:
    return " / ".join(f"{number:.3f}" for number in numbers)


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
