"""Show how near the goals are: a table, and a figure with a panel for each goal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.language.plans import AT_ONCE, chosen, chosen_large, plan
from benchmarks.trials import Record
from osae.config import to_json
from osae.metrics import mean_interval

FIGURE = "goals.png"
ALIKE = ("method", "changes", "units", "tokens", "batch", "way")  # what the pairs of a trial have in common
ABSENT = "-"
FEWEST = 3  # pairs from which a mean has an interval
BEHIND = "ev_behind"  # explained variance less that of TopK
COLUMNS = 4  # of the figure
OURS, RIVAL = "the chosen trial", "TopK"
COLOURS = {OURS: "#0072B2", RIVAL: "#D55E00"}
MARKS = ("o", "s", "^")  # by text


@dataclass(frozen=True)
class Goal:
    """A goal for one measure of a dictionary."""

    name: str
    key: str
    wanted: float


@dataclass(frozen=True)
class Target:
    """The goals for a size, the trial that should reach them, and TopK on the tokens of the budget."""

    name: str
    ours: Mapping[str, Any]
    rival: Mapping[str, Any]
    goals: tuple[Goal, ...]


TARGETS = (
    Target(
        "512 units",
        chosen(),
        plan("topk", 5_000_000, 256, AT_ONCE),
        (
            Goal("stability", "stability", 0.75),
            Goal("orderedness", "orderedness", 0.88),
            Goal("stability, first 256 units", "stability_256", 0.90),
            Goal("orderedness, first 256 units", "orderedness_256", 0.95),
            Goal("explained variance, first 128 units", "ev_128", 0.60),
            Goal("explained variance, less TopK's", BEHIND, -0.005),
        ),
    ),
    Target(
        "2,048 units",
        chosen_large(),
        plan("topk", 8_000_000, 256, AT_ONCE, units=2048),
        (
            Goal("stability", "stability", 0.75),
            Goal("orderedness", "orderedness", 0.90),
            Goal("explained variance, less TopK's", BEHIND, -0.005),
        ),
    ),
)


def collect(target: Target, trials: Sequence[Record]) -> Iterator[tuple[str, list[Record], list[Record]]]:
    """Yield every text with the pairs of the chosen trial and of TopK."""
    ours, rival = (
        [one for one in trials if all(one.get(key) == made.get(key) for key in ALIKE)]
        for made in (to_json(dict(target.ours)), to_json(dict(target.rival)))
    )
    for text in dict.fromkeys(one["text"] for one in ours):
        yield text, *([one for one in group if one["text"] == text] for group in (ours, rival))


def read(goal: Goal, pairs: Sequence[Record], rivals: Sequence[Record]) -> list[float]:
    """Return what each pair has reached; explained variance is compared with the mean of TopK."""
    if goal.key != BEHIND:
        return [one["measures"][goal.key] for one in pairs]
    usual = [one["measures"]["ev"] for one in rivals]
    return [one["measures"]["ev"] - sum(usual) / len(usual) for one in pairs] if usual else []


def tabulate_goals(trials: Sequence[Record]) -> list[list[str]]:
    """Return each goal with the means over pairs that the chosen trial and TopK reach, for each text."""
    head = ["dictionary", "text", "goal", "wanted", OURS, RIVAL, "tokens of TopK"]
    rows = []
    for target in TARGETS:
        tokens = f"{target.rival['tokens']:,}"
        for text, ours, rivals in collect(target, trials):
            for goal in target.goals:
                found = (_show(read(goal, group, rivals)) for group in (ours, rivals))
                rows.append([target.name, text, goal.name, f"{goal.wanted:.3f}", *found, tokens])
    return [head, ["---"] * len(head), *rows]


def _show(numbers: Sequence[float]) -> str:
    if not numbers:
        return ABSENT
    found = mean_interval(numbers)
    spread = f" [{found.low:.3f}, {found.high:.3f}]" if len(numbers) >= FEWEST else ""
    return f"{found.mean:.3f}{spread} ({len(numbers)} pair{'s' * (len(numbers) > 1)})"


def plot_goals(trials: Sequence[Record], path: Path) -> None:
    """Draw a panel for each goal: a dot for every pair of runs, and a line at the goal."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = [
        (target, goal)
        for target in TARGETS
        if any(True for _ in collect(target, trials))
        for goal in target.goals
    ]
    lines = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(2.4 * COLUMNS, 2.5 * lines + 0.5), layout="constrained")
    axes = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    texts = list(dict.fromkeys(text for target in TARGETS for text, *_ in collect(target, trials)))
    for (target, goal), each in zip(panels, axes, strict=False):
        for text, ours, rivals in collect(target, trials):
            for where, (name, pairs) in enumerate({OURS: ours, RIVAL: rivals}.items()):
                numbers = read(goal, pairs, rivals)
                x = [where + 0.12 * (texts.index(text) - (len(texts) - 1) / 2)] * len(numbers)
                each.plot(x, numbers, MARKS[texts.index(text) % len(MARKS)], color=COLOURS[name], alpha=0.8)
        each.axhline(goal.wanted, color="#444444", linestyle="--", linewidth=1)
        each.set_title(f"{target.name}:\n{goal.name}", fontsize=8)
        each.set_xlim(-0.5, 1.5)
        each.set_xticks([0, 1], ["chosen", "TopK"], fontsize=8)
        each.tick_params(axis="y", labelsize=7)
        each.spines[["top", "right"]].set_visible(False)
    for each in axes[len(panels) :]:
        each.set_visible(False)
    shown = [
        Line2D([], [], marker=MARKS[i % len(MARKS)], linestyle="", color="#666666", label=text)
        for i, text in enumerate(texts)
    ]
    shown.append(Line2D([], [], linestyle="--", color="#444444", label="goal"))
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
