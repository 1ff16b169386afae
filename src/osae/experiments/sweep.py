"""Many training runs, each in its own folder: finished runs are skipped, failed ones retried.

OUT/runs/NAME/               a run, which is resumed if it was interrupted
OUT/runs/NAME/failed.json    the last error, and the number of failures
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from osae.config import to_json
from osae.devices import choose_device
from osae.experiments.places import Place, run_tasks
from osae.files import atomic_write, read_json
from osae.messages import one_line
from osae.results.base import Provenance
from osae.results.sweep import COLUMNS, Sweep, SweptRun, SweptSAE
from osae.training import run as runs
from osae.training.run import RunConfig

FAILED = "failed.json"
LONGEST = 500  # characters of an error message to keep


@dataclass(frozen=True)
class SweepTask:
    """A run to train: its folder, its configuration, and the settings that distinguish it from the others."""

    name: str
    folder: Path
    config: RunConfig
    settings: Mapping[str, str]
    device: str = "auto"

    def is_finished(self) -> bool:
        """Return whether all SAEs of the run exist; raise `ValueError` if its folder contains another run."""
        if not (self.folder / "run.json").exists():
            return False
        if to_json(runs.read(self.folder)) != json.loads(json.dumps(to_json(self.config))):
            raise ValueError(f"{self.folder} contains a run with other settings: give a new --out.")
        return all((self.folder / name / "sae.json").is_file() for name in self.config.names)

    def failures(self) -> dict[str, Any]:
        """Return the last error and the number of failures; empty if the run never failed."""
        path = self.folder / FAILED
        return read_json(path) if path.is_file() else {}


def run_sweep(
    tasks: Sequence[SweepTask],
    *,
    place: Place,
    provenance: Provenance,
    retry: int = 0,
    update: Callable[[Sweep, SweepTask], None] = lambda sweep, task: None,
) -> Sweep:
    """Train the unfinished runs, and return all results; `update` is called after every run.

    Runs that have failed, now or earlier, are retried up to `retry` times, from their last checkpoint.
    """
    missing = [task for task in tasks if not task.is_finished()]
    wanted = [task for task in missing if retry or not task.failures()]
    for _ in range(1 + retry):
        for task in _train_all(wanted, place):
            update(collect(tasks, provenance), task)
        wanted = [task for task in wanted if not task.is_finished()]
    return collect(tasks, provenance)


def _train_all(tasks: Sequence[SweepTask], place: Place) -> Iterator[SweepTask]:
    return run_tasks(
        train_run,
        tasks,
        place=place,
        describe=lambda task: task.name,
        lost=_note_failure,
        unfinished=lambda task: not task.is_finished(),
    )


def train_run(task: SweepTask) -> SweepTask:
    """Train a run to completion from its current state; write any error to its folder."""
    device = choose_device(task.device)
    if device == "cpu":
        torch.set_num_threads(1)  # one training run per core
    try:
        if not (task.folder / "run.json").exists():
            runs.create(task.folder, task.config)
        runs.go(task.folder, device=device)
    except (runs.Interrupted, ValueError, OSError, RuntimeError, MemoryError) as error:
        return _note_failure(task, str(error) or type(error).__name__)
    (task.folder / FAILED).unlink(missing_ok=True)
    return task


def _note_failure(task: SweepTask, why: str) -> SweepTask:
    task.folder.mkdir(parents=True, exist_ok=True)
    about = {"attempts": task.failures().get("attempts", 0) + 1, "error": one_line(why)[:LONGEST]}
    with atomic_write(task.folder / FAILED) as path:
        path.write_text(json.dumps(about) + "\n")
    return task


def collect(tasks: Sequence[SweepTask], provenance: Provenance) -> Sweep:
    """Return the results in the folders of these runs."""
    return Sweep(provenance, tuple(map(_describe, tasks)))


def _describe(task: SweepTask) -> SweptRun:
    failures = task.failures()
    attempts, error = int(failures.get("attempts", 0)), failures.get("error")
    if not task.is_finished():
        state = "failed" if failures else "waiting"
        return SweptRun(task.name, task.settings, state, attempts, error=error)
    last = {line["name"]: line for line in _read_log(task.folder)}
    saes = tuple(_describe_sae(task, name, last.get(name, {})) for name in task.config.names)
    return SweptRun(task.name, task.settings, "finished", attempts, saes)


def _read_log(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / "log.jsonl", encoding="utf-8") as log:
        yield from map(json.loads, log)


def _describe_sae(task: SweepTask, name: str, line: dict[str, Any]) -> SweptSAE:
    path = Path("runs") / task.name / name
    return SweptSAE(str(path), int(line.get("samples", 0)), {key: line.get(key) for key in COLUMNS})
