"""Write the tables and figures of the trials on language models:

    python -m benchmarks.language.table evidence/language docs/images

reads trials.jsonl, growth.jsonl and sharing.jsonl from the first folder and writes table.md to it; figures go
to the second.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.language import goals, limits
from benchmarks.language.ceiling import tabulate_ceilings
from benchmarks.language.goals import plot_goals, tabulate_goals
from benchmarks.language.limits import plot_limits, tabulate_sharing
from benchmarks.language.plans import AT_ONCE, BASELINE_RATES, BASELINES, ORDERED, ORDERED_AT_ONCE, tuned
from benchmarks.language.ways import Consensus, Fork, Shared, describe
from benchmarks.trials import Record, format_row, read_trials
from osae.config import from_json, to_json
from osae.metrics import mean_interval

FIGURE = "agreement-cost.png"
HEAD = (
    "recipe",
    "full",
    "start",
    "what differs",
    "rows of a run",
    "batch",
    "rate",
    "tokens",
    "CPU s",
    "EV",
    "EV of 128",
    "64 units",
    "256 units",
    "all units",
    "Stab_Z",
    "chance",
)
STARTS = {"FromNoise": "noise", "FromData": "data", "FromModes": "modes", "FromKMeans": "clusters"}
COLOURS = {"noise": "#D55E00", "modes": "#0072B2"}
MARKS = {"topk": "o", "osae-from-noise": "s"}
DRAWN = (*MARKS, "topk-aligned")
UNITS = 512  # of trials under the plain name of the text, and in the figure
DECAY, WARMUP = 0.5, 0.35  # the schedule of recipes: shares of training in which the rate and k fall
SETTING = ("text", "units", "method", "tokens", "batch")  # what pairs have in common if only a way differs
REPEATED = 3  # pairs of runs from which a mean has an interval
GROWN = (
    "text",
    "units",
    "seed",
    "short_tokens",
    "short_rate",
    "wider",
    "scored",
    "runs",
)  # by which consensuses are listed
ABSENCE = {"scored": ""}  # what stands for keys that are absent, if not 1
ABSENT = "-"


def tabulate(trials: Sequence[Record], grown: Sequence[Record] = (), shared: Sequence[Record] = ()) -> str:
    """Return a table of all trials for each text and number of units, cheapest first.

    `grown` are the agreements of consensuses by number of short runs, and `shared` those of consensuses
    that share documents, and that do not.
    """
    parts = []
    for heading in dict.fromkeys(name_table(trial) for trial in trials):
        rows = [trial for trial in trials if name_table(trial) == heading]
        rows.sort(key=lambda trial: (trial["tokens"], name_start(trial), name_recipe(trial)))
        shown = [n for n, name in enumerate(HEAD) if any(_cells(trial)[n] != ABSENT for trial in rows)]
        cells = [HEAD, ["---"] * len(HEAD), *(_cells(trial) for trial in rows)]
        parts.append(
            "\n".join([f"## {heading}", "", *(format_row([row[n] for n in shown]) for row in cells)])
        )
    parts.append("\n".join(["## Limits", "", *map(format_row, tabulate_ceilings(trials))]))
    parts.append("\n".join(["## Baselines", "", *map(format_row, tabulate_baselines(trials))]))
    parts.append("\n".join(["## Repeats", "", *map(format_row, tabulate_repeats(trials))]))
    parts.append("\n".join(["## Causes", "", *map(format_row, tabulate_causes(trials))]))
    parts.append("\n".join(["## Consensus", "", *map(format_row, tabulate_consensus(trials))]))
    parts.append("\n".join(["## Growth", "", *map(format_row, tabulate_growth(grown))]))
    parts.append("\n".join(["## Goals", "", *map(format_row, tabulate_goals(trials))]))
    if shared:
        parts.append("\n".join(["## Sharing", "", *map(format_row, tabulate_sharing(shared))]))
    return "\n\n".join(parts) + "\n"


def tabulate_causes(trials: Sequence[Record]) -> list[list[str]]:
    """Return the pairs of runs that share something on purpose, next to pairs that share nothing."""
    ways = [(trial, from_json(trial.get("way"))) for trial in trials]
    shared = [(trial, way) for trial, way in ways if isinstance(way, Shared | Fork)]
    alike = [[trial[key] for key in SETTING] for trial, way in shared if isinstance(way, Shared)]
    usual = [
        (trial, None)
        for trial, way in ways
        if way is None and name_differences(trial) == ABSENT and [trial[key] for key in SETTING] in alike
    ]
    rows = [
        [describe(way) if way else "nothing", f"{trial['tokens']:,}", _agreement(trial, "")]
        for trial, way in usual + shared
    ]
    return [["the two runs share", "tokens", "stability / orderedness"], ["---"] * 3, *rows]


def tabulate_baselines(trials: Sequence[Record]) -> list[list[str]]:
    """Return every method at the rate that explains most, and at the rate with the most stable units."""
    rows = []
    for method in BASELINES:
        planned = [to_json(tuned(method, rate)) for rate in BASELINE_RATES]
        tried = [one for one in trials if any(all(one.get(k) == v for k, v in p.items()) for p in planned)]
        tried = [one for one in tried if not one.get("way") and not one.get("seed")]
        for key, name in (("ev", "EV"), ("stability", "stability")):
            if tried:
                best = max(tried, key=lambda one: one["measures"][key])
                cells = dict(zip(HEAD, _cells(best), strict=True))
                shown = [cells[name] for name in HEAD[HEAD.index("EV") :]]
                dead = f"{best['measures']['dead']:.3f}"
                rows.append([f"`{method}`", str(len(tried)), name, cells["rate"], *shown, dead])
    head = ["recipe", "trials", "best by", "rate", *HEAD[HEAD.index("EV") :], "dead"]
    return [head, ["---"] * len(head), *rows]


def tabulate_repeats(trials: Sequence[Record]) -> list[list[str]]:
    """Return means over pairs of runs, with 95 % intervals, where a trial was repeated with other seeds."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for trial in trials:
        label = [name_table(trial), f"`{name_recipe(trial)}`, {name_differences(trial, seeds=False)}"]
        sizes = [trial[key] for key in ("tokens", "batch")] + [trial["recipe"]["lr"]["peak"]]
        groups.setdefault((*label, *map(str, [name_start(trial), _full(trial), *sizes])), []).append(trial)
    rows = []
    for (text, label, *_), pairs in groups.items():
        if len({trial.get("seed", 0) for trial in pairs}) >= REPEATED:
            ev, early = (mean_interval([t["measures"][key] for t in pairs]).mean for key in ("ev", "ev_128"))
            found = [
                mean_interval([t["measures"][key] for t in pairs]) for key in ("stability", "orderedness")
            ]
            shown = [f"{each.mean:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in found]
            label = f"{label}, full {_full(pairs[0])}".replace(f", {ABSENT}", "").replace(", full 1", "")
            rows.append([text, label, str(len(pairs)), f"{ev:.3f}", f"{early:.3f}", *shown])
    head = ["text", "trial", "pairs", "EV", "EV of 128", "stability", "orderedness"]
    return [head, ["---"] * len(head), *rows]


def tabulate_consensus(trials: Sequence[Record]) -> list[list[str]]:
    """Return the runs from a consensus, and single runs of the same schedule, by the tokens of all runs."""
    agreed = [trial for trial in trials if isinstance(from_json(trial.get("way")), Consensus)]
    alike = [(ORDERED, to_json(ORDERED_AT_ONCE)), ("topk", to_json(AT_ONCE))]
    settings = {(trial["text"], trial["units"], trial["batch"]) for trial in agreed}
    single = [
        trial
        for trial in trials
        if trial.get("way") is None
        and (trial["text"], trial["units"], trial["batch"]) in settings
        and (trial["method"], trial["changes"]) in alike
    ]
    rows = []
    for trial in sorted([*agreed, *single], key=lambda t: (t["text"], -t["units"], count_tokens(t))):
        sizes = f"{trial['text']}, {trial['units']} units"
        what = f"`{name_recipe(trial)}`, {name_differences(trial)}".replace(f", {ABSENT}", "")
        what += f"; full {_full(trial)}" if _full(trial) != "1" else ""
        tokens = f"{count_tokens(trial):,}"
        rows.append([sizes, what, tokens, *_cells(trial)[HEAD.index("CPU s") :]])
    head = ["text", "trial", "tokens in all", *HEAD[HEAD.index("CPU s") :]]
    return [head, ["---"] * len(head), *rows]


def count_tokens(trial: Mapping[str, Any]) -> int:
    """Return the tokens of a run and of the short runs that it starts from."""
    way = from_json(trial.get("way"))
    return trial["tokens"] + (way.runs * way.tokens if isinstance(way, Consensus) else 0)


def tabulate_growth(grown: Sequence[Record]) -> list[list[str]]:
    """Return the agreement of two consensuses by their number of short runs, before any further training."""
    head = ["text", "short runs", "runs", "stability / orderedness", "first 64 units", "score of half"]
    rows = []
    for one in sorted(grown, key=lambda each: [each.get(key, ABSENCE.get(key, 1)) for key in GROWN]):
        wider = f", {one['wider']:g} times as wide" if "wider" in one else ""
        scored = f", sorted by {one['scored']} times score" if "scored" in one else ""
        short = f"{one['short_tokens']:,} tokens at {one['short_rate']:g}{wider}{scored}"
        share = f"{one['measures']['found_by_half']:.2f}"
        seeds = f"; seeds {one['seed']}, {one['seed'] + 1}" if one["seed"] else ""
        where = f"{one['text']}, {one['units']} units{seeds}"
        rows.append([where, short, str(one["runs"]), _agreement(one, ""), _agreement(one, "_64"), share])
    return [head, ["---"] * len(head), *rows]


def _full(trial: Mapping[str, Any]) -> str:
    prefix = trial["recipe"]["prefix"]
    return "1" if prefix["kind"] == "Full" else f"{prefix['full']:g}" if "full" in prefix else ABSENT


def name_table(trial: Mapping[str, Any]) -> str:
    """Return the heading of the table that contains the trial."""
    return trial["text"] if trial["units"] == UNITS else f"{trial['text']}, {trial['units']:,} units"


def name_recipe(trial: Mapping[str, Any]) -> str:
    """Return the recipe of the trial; what is aligned is listed with the differences."""
    return "topk" if trial["method"] == "topk-aligned" else trial["method"]


def name_start(trial: Mapping[str, Any]) -> str:
    """Return where the trial starts; first versions of a start are recorded as `prototype`."""
    found = STARTS[trial["recipe"]["start"]["kind"]]
    return f"{trial['prototype']['start']}, first version" if "prototype" in trial else found


def name_differences(trial: Mapping[str, Any], *, seeds: bool = True) -> str:
    """Return how the trial differs from two runs of the usual schedule and, unless turned off, seeds."""
    made, found = trial["recipe"], []
    way, sweep = from_json(trial.get("way")), made.get("sweep")
    if way:
        found.append(f"{'shared: ' if isinstance(way, Shared | Fork) else ''}{describe(way)}")
    if made.get("dictionary", {}).get("kind", "FreeAtoms") != "FreeAtoms":
        found.append(made["dictionary"]["kind"].lower())
    if made["lr"]["decay"] != DECAY:
        found.append(f"decay {made['lr']['decay']:g}")
    if made["lr"].get("power", 1.0) != 1.0:
        found.append(f"power {made['lr']['power']:g}")
    if made["k_warmup"] and made["k_warmup"]["share"] != WARMUP:
        found.append(f"k over {made['k_warmup']['share']:g}" if made["k_warmup"]["share"] else "k constant")
    if sweep:
        found.append("atoms held" + (f" for {sweep['release']:g}" if sweep["release"] < 1 else ""))
    if isinstance(way, Consensus) and made["prefix"]["kind"] != "Full" and not made["resort"] and not sweep:
        found.append("sorted at the start only")
    if seeds and trial.get("seed"):
        found.append(f"seeds {trial['seed']}, {trial['seed'] + 1}")
    return "; ".join(found) or ABSENT


def _cells(trial: Mapping[str, Any]) -> list[str]:
    found = trial["measures"]
    return [
        f"`{name_recipe(trial)}`",
        _full(trial),
        name_start(trial),
        name_differences(trial),
        f"{trial['rows']:,}",
        str(trial["batch"]),
        f"{trial['recipe']['lr']['peak']:g}",
        f"{trial['tokens']:,}",
        f"{trial['cpu_seconds']:.0f}",
        f"{found['ev']:.3f}",
        f"{found['ev_128']:.3f}" if "ev_128" in found else ABSENT,
        *(_agreement(trial, at) for at in ("_64", "_256", "")),
        f"{found['stream_stability']:.3f}",
        f"{found['chance']:.3f}",
    ]


def _agreement(trial: Mapping[str, Any], at: str) -> str:
    found = trial["measures"]
    known = f"stability{at}" in found
    return f"{found['stability' + at]:.3f} / {found['orderedness' + at]:.3f}" if known else ABSENT


def plot(trials: Sequence[Record], path: Path) -> None:
    """Draw stability and orderedness of whole dictionaries against the time that training takes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, key in zip(panels, ("stability", "orderedness"), strict=True):
        for trial in [trial for trial in trials if trial["units"] == UNITS and trial["method"] in DRAWN]:
            start = name_start(trial).split(",")[0]
            mark = "*" if name_differences(trial) != ABSENT else MARKS[name_recipe(trial)]
            mark = "^" if trial["batch"] > 1000 else mark
            axes.plot(trial["cpu_seconds"], trial["measures"][key], mark, color=COLOURS[start])
        axes.set_xlabel("CPU seconds of one training run, start included")
        axes.set_ylabel(f"{key}, all 512 units")
        axes.spines[["top", "right"]].set_visible(False)
    labels = {"TopK": "o", "ordered loss": "s", "batch 2,048": "^", "another schedule or averaged": "*"}
    shown = [panels[0].plot([], [], mark, color="#666666", label=name)[0] for name, mark in labels.items()]
    shown += [panels[0].plot([], [], "-", color=c, label=f"from {name}")[0] for name, c in COLOURS.items()]
    panels[0].legend(handles=shown, fontsize=7, frameon=False)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("images", type=Path)
    asked = parser.parse_args(arguments)
    names = ("trials.jsonl", "growth.jsonl", "sharing.jsonl")
    trials, grown, shared = (read_trials(asked.evidence / name) for name in names)
    (asked.evidence / "table.md").write_text(tabulate(trials, grown, shared), encoding="utf-8")
    plot(trials, asked.images / FIGURE)
    plot_goals(trials, asked.images / goals.FIGURE)
    if shared:
        plot_limits(shared, asked.images / limits.FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
