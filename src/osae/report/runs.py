"""Training runs on a page and in the terminal, from their folders alone. Does not need torch."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from osae.files import check_regular, read_json
from osae.measures import AGREEMENT, keys_of, measure
from osae.report.page import Part
from osae.report.plots import Line, Panel, Plot, plot_sweep, style_of
from osae.report.text import describe_world, visible
from osae.results.base import count
from osae.results.experiment import Section

RUN, LOG, SPEED = "run.json", "log.jsonl", "speed.jsonl"
LONGEST_LOG = 2**26  # bytes; the rest of a longer log is not read
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # of a curve in the terminal
RECENT = 10  # speed measurements to average over
QUIET = 300  # seconds without a log entry after which a run may have stopped


def find_run(path: Path) -> Path | None:
    """Return the folder of the training run at the path, if there is one."""
    return path if (path / RUN).is_file() else None


def has_snapshots(folder: Path) -> bool:
    """Return whether SAEs of the run were saved after the start of training and before its end."""
    return any(place.name.isdecimal() and int(place.name) > 0 for place in folder.glob("snapshots/*"))


def describe_run(folder: Path) -> Part:
    """Return what a page shows about a training run, finished or not."""
    config, log = _read_config(folder), read_log(folder)
    steps, done = count_steps(config), max((line["step"] for line in log), default=0)
    finished = sorted(path.parent.name for path in folder.glob("*/sae.json"))
    state = f"{done:,} of {steps:,} steps are done."
    if finished:
        state = f"{count(len(finished), 'SAE')} {'is' if len(finished) == 1 else 'are'} finished."
    facts = [("Folder", str(folder)), ("Seeds", ", ".join(map(str, config.get("seeds", ()))))]
    facts += [("Source", describe_world(_plain(config.get("source"))))]
    facts += [(f"Recipe {recipe.get('name')}", describe_world(_plain(recipe))) for recipe in _recipes(config)]
    return Part(
        title=f"Training run {folder.name}",
        kicker="run",
        summary=[state, *_last_losses(log)],
        figures=[plot_log(log)] if log else [],
        facts=[(name, text) for name, text in facts if text],
        json=json.dumps(config, indent=2, ensure_ascii=False),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    about = read_json(folder / RUN)
    config = about.get("config") if isinstance(about, dict) else None
    if not isinstance(config, dict):
        raise ValueError(f"{folder / RUN} does not describe a training run: it is damaged.")
    return config


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's log, up to the first one that is damaged or incomplete."""
    lines = itertools.takewhile(lambda line: isinstance(line.get("name"), str), _read_lines(folder / LOG))
    return list(lines)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, up to the first one that is damaged or incomplete."""
    if not path.exists():
        return []
    check_regular(path)
    with open(path, "rb") as file:
        text = file.read(LONGEST_LOG).decode("utf-8", "replace")
    lines = []
    for line in text.splitlines():
        try:
            held = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(held, dict) or not isinstance(held.get("step"), int):
            break
        lines.append(held)
    return lines


def count_steps(config: dict[str, Any]) -> int:
    """Return the number of steps of the run; 0 if its recipes do not say."""
    counts = [
        sum(samples // recipe["batch"] for samples in _segments(recipe))
        for recipe in _recipes(config)
        if isinstance(recipe.get("samples"), int)
        and isinstance(recipe.get("batch"), int)
        and recipe["batch"] > 0
    ]
    return max(counts, default=0)


def _segments(recipe: dict[str, Any]) -> list[int]:
    """Return the number of samples originally planned, and of each extension."""
    further = recipe.get("extensions")
    listed = further if isinstance(further, list) else []
    return [recipe["samples"], *(samples for samples in listed if isinstance(samples, int))]


def _recipes(config: dict[str, Any]) -> list[dict[str, Any]]:
    listed = config.get("recipes")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _plain(data: Any) -> dict[str, Any]:
    """Return a configuration without internal fields, for display."""
    return {key: value for key, value in data.items() if key != "name"} if isinstance(data, dict) else {}


def _last_losses(log: Sequence[dict[str, Any]]) -> list[str]:
    last = {line["name"]: line for line in log if isinstance(line.get("prefix"), float)}
    return [
        f"{name}: loss {line['prefix']:#.4g}, {line.get('l0', 0):.1f} active units (step {line['step']:,})"
        for name, line in last.items()
    ]


def plot_log(log: Sequence[dict[str, Any]]) -> Plot:
    """Return the training curves: a panel per number in the log, with one line per SAE."""
    names = list(dict.fromkeys(line["name"] for line in log))
    styles = style_of(names)
    panels = []
    for key in keys_of("log"):
        if not any(isinstance(line.get(key), int | float) for line in log):
            continue  # not in logs of release 0.1.0
        lines = []
        for name in names:
            points = [(line["step"], line.get(key)) for line in log if line["name"] == name]
            x, y = zip(*points, strict=True)
            lines.append(Line(name, x, y, **styles[name]))
        log_y = key == "prefix" and all(y is None or y > 0 for line in lines for y in line.y)
        panels.append(Panel(measure(key).phrase, "step", lines=tuple(lines), log_y=log_y))
    caption = (
        "From the log of the run: numbers of single batches, one line per SAE. Inactive units have not fired "
        "for a thousand steps."
    )
    return Plot("Training curves", caption, tuple(panels))


def plot_agreement(moments: Sequence[Section], left_out: str = "") -> Plot:
    """Return stability and orderedness between seeds against samples seen, with a line per recipe."""
    caption = (
        "Seeds of the same recipe, compared with each other in the snapshots of the run: means over pairs of "
        "seeds, with 95 % intervals if there are several pairs. In a language model, a sample is the "
        "activation of one token."
    )
    title = "Agreement between seeds during training"
    drawn = plot_sweep(moments, AGREEMENT, title=title, x_label="samples (tokens) seen")
    return replace(drawn, caption=f"{caption} {left_out}".strip())


# --- on the terminal --------------------------------------------------------------------------------


def is_finished(folder: Path) -> bool:
    """Return whether every SAE of the run is saved."""
    config = _read_config(folder)
    saved = len(list(folder.glob("*/sae.json")))
    return saved >= len(_recipes(config)) * len(config.get("seeds", ())) > 0


def describe_state(folder: Path) -> str:
    """Return the progress of a run: steps, speed, time left, and a loss curve for each SAE."""
    log, config = read_log(folder), _read_config(folder)
    steps, done = count_steps(config), max((line["step"] for line in log), default=0)
    head = f"{visible(str(folder))}: {done:,} of {steps:,} steps"
    if is_finished(folder):
        head = f"{visible(str(folder))}: finished"
    else:
        head += _describe_rate(folder, config, steps - done)
    names = {line["name"]: visible(line["name"], 60) for line in log}
    width = max(map(len, names.values()), default=0)
    return "\n".join(
        [head, *(f"  {shown:{width}s}  {_draw_curve(name, log)}" for name, shown in names.items())]
    )


def _describe_rate(folder: Path, config: dict[str, Any], left: int) -> str:
    """Return the speed and the time left, if known, and the time since the last log entry."""
    text = ""
    if rate := find_rate(folder, config):
        text = f", {rate:.3g} a second, {timedelta(seconds=round(left / rate))} left"
    quiet = round(time.time() - (folder / LOG).stat().st_mtime) if (folder / LOG).exists() else 0
    return text + (f"; no log entry for {quiet // 60:,} minutes" if quiet > QUIET else "")


def find_rate(folder: Path, config: dict[str, Any]) -> float | None:
    """Return steps per second, averaged over the last measurements; None before the first.

    Only time spent in training counts, so that interruptions do not matter.
    """
    batches = [recipe.get("batch") for recipe in _recipes(config)]
    batch = max((size for size in batches if isinstance(size, int)), default=0)
    speeds = [line.get("samples_per_second") for line in _read_lines(folder / SPEED)]
    known = [speed for speed in speeds if isinstance(speed, float) and speed > 0][-RECENT:]
    return len(known) / sum(batch / speed for speed in known) if known and batch else None


def _draw_curve(name: str, log: Sequence[dict[str, Any]]) -> str:
    """Return the loss curve of an SAE as a row of block characters, and its last value."""
    values = [
        line["prefix"] for line in log if line["name"] == name and isinstance(line.get("prefix"), float)
    ]
    if not values:
        return ""
    step = max(1, len(values) // WIDTH)
    shown = values[::-1][::step][::-1]
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    blocks = "".join(BLOCKS[round((value - low) * scale)] for value in shown)
    return f"{blocks}  loss {values[-1]:.4g}"
