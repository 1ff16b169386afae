"""Training runs on a page and on the terminal, from their folders alone. Needs no torch."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from osae.files import check_regular, read_json
from osae.report.page import Part
from osae.report.plots import Line, Panel, Plot, style_of
from osae.report.text import describe_world, visible

RUN, LOG = "run.json", "log.jsonl"
CURVES = {
    "prefix": "loss of the prefixes",
    "l0": "active units per sample",
    "inactive": "share of units that have not fired for a thousand steps",
}
LONGEST_LOG = 2**26  # bytes of a log that are read
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # of a curve on the terminal


def find_run(path: Path) -> Path | None:
    """Return the folder of a training run, if there is one at the path."""
    return path if (path / RUN).is_file() else None


def describe_run(folder: Path) -> Part:
    """Return what a page shows of a training run, finished or not."""
    config, log = _read_config(folder), read_log(folder)
    steps, done = count_steps(config), max((line["step"] for line in log), default=0)
    finished = sorted(path.parent.name for path in folder.glob("*/sae.json"))
    state = f"{len(finished)} SAEs are finished." if finished else f"{done:,} of {steps:,} steps are done."
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
        raise ValueError(f"{folder / RUN} describes no training run: it is damaged.")
    return config


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log, up to the first that is damaged or being written."""
    path, lines = folder / LOG, []
    if not path.exists():
        return []
    check_regular(path)
    with open(path, "rb") as file:
        text = file.read(LONGEST_LOG).decode("utf-8", "replace")
    for line in text.splitlines():
        try:
            held = json.loads(line)
        except (ValueError, RecursionError):
            break
        if (
            not isinstance(held, dict)
            or not isinstance(held.get("step"), int)
            or not isinstance(held.get("name"), str)
        ):
            break
        lines.append(held)
    return lines


def count_steps(config: dict[str, Any]) -> int:
    """Return how many steps the run takes, 0 if its recipes do not say."""
    counts = [
        recipe["samples"] // recipe["batch"]
        for recipe in _recipes(config)
        if isinstance(recipe.get("samples"), int)
        and isinstance(recipe.get("batch"), int)
        and recipe["batch"] > 0
    ]
    return max(counts, default=0)


def _recipes(config: dict[str, Any]) -> list[dict[str, Any]]:
    listed = config.get("recipes")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _plain(data: Any) -> dict[str, Any]:
    """Return a configuration without its own bookkeeping, for a sentence."""
    return {key: value for key, value in data.items() if key != "name"} if isinstance(data, dict) else {}


def _last_losses(log: Sequence[dict[str, Any]]) -> list[str]:
    last = {line["name"]: line for line in log}
    return [
        f"{name}: loss {line['prefix']:.4g} after {line['step']:,} steps, {line.get('l0', 0):.1f} units fire"
        for name, line in last.items()
        if isinstance(line.get("prefix"), float)
    ]


def plot_log(log: Sequence[dict[str, Any]]) -> Plot:
    """Return the training curves: a panel for each number in the log, a line for each SAE."""
    names = list(dict.fromkeys(line["name"] for line in log))
    styles = style_of(names)
    panels = []
    for key, title in CURVES.items():
        lines = []
        for name in names:
            points = [(line["step"], line.get(key)) for line in log if line["name"] == name]
            x, y = zip(*points, strict=True)
            lines.append(Line(name, x, y, **styles[name]))
        log_y = key == "prefix" and all(y is None or y > 0 for line in lines for y in line.y)
        panels.append(Panel(title, "step", lines=tuple(lines), log_y=log_y))
    return Plot("Training curves", "From the log of the run, a line for each SAE.", tuple(panels))


# --- on the terminal --------------------------------------------------------------------------------


def is_finished(folder: Path) -> bool:
    """Return whether every SAE of the run is saved."""
    config = _read_config(folder)
    saved = len(list(folder.glob("*/sae.json")))
    return saved >= len(_recipes(config)) * len(config.get("seeds", ())) > 0


def describe_state(folder: Path) -> str:
    """Return how far a run is: steps, rate, time left, and a curve of the loss of each SAE."""
    log, steps = read_log(folder), count_steps(_read_config(folder))
    done = max((line["step"] for line in log), default=0)
    head = f"{visible(str(folder))}: {done:,} of {steps:,} steps"
    if is_finished(folder):
        head = f"{visible(str(folder))}: finished"
    elif rate := _find_rate(folder, done):
        left = timedelta(seconds=round((steps - done) / rate))
        head += f", {rate:.3g} a second, {left} left"
    names = {line["name"]: visible(line["name"], 60) for line in log}
    width = max(map(len, names.values()), default=0)
    return "\n".join(
        [head, *(f"  {shown:{width}s}  {_draw_curve(name, log)}" for name, shown in names.items())]
    )


def _find_rate(folder: Path, done: int) -> float | None:
    """Return steps per second since the run was created, by the times of its files; None before the first."""
    started, last = ((folder / name).stat().st_mtime for name in (RUN, LOG)) if done else (0.0, 0.0)
    return done / (last - started) if last > started and last <= time.time() + 60 else None


def _draw_curve(name: str, log: Sequence[dict[str, Any]]) -> str:
    """Return the loss of an SAE as a row of blocks, and its last value."""
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
