"""A run: SAEs that are trained in a folder, and can be interrupted and resumed at any moment.

RUN/run.json                  what is trained, on what (never changes)
RUN/checkpoint.safetensors    how far training has come; checkpoint-before.safetensors is the one before it
RUN/log.jsonl                 one line per SAE every few steps, the same however often the run is interrupted
RUN/speed.jsonl               how fast this machine was then, and the most memory it took
RUN/snapshots/SAMPLES/NAME/   the SAE named NAME after that many samples; 0 is always there
RUN/NAME/                     the finished SAE: sae.safetensors and sae.json
"""

import itertools
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch

from osae.config import from_json, later, to_json, variant
from osae.data.source import SourceSpec, open_source
from osae.files import append_text, atomic_write, check_regular, read_json, seal
from osae.locks import LockedError, lock
from osae.objective import Terms
from osae.ranks import ALONE, Mesh
from osae.recipes import Recipe
from osae.training import checkpoint
from osae.training.finite import OnNan, finite_rows
from osae.training.logs import Log, Pace
from osae.training.loop import train
from osae.training.member import Member

SCHEMA = 1
LOG_LINES = 200  # per SAE over a whole run


class Interrupted(Exception):
    """Raised when a run was asked to stop by a signal; its checkpoint is on disk."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


@variant
@dataclass(frozen=True)
class RunConfig:
    """What a run trains: each recipe with each seed, all on one stream of activations."""

    recipes: tuple[Recipe, ...]
    seeds: tuple[int, ...]
    source: SourceSpec
    snapshots: tuple[int, ...] = ()
    checkpoint_seconds: float = 60.0
    on_nan: str = "stop"  # or "skip": batches whose loss is not finite
    log_every: int = later(0)  # steps between two lines of the log; 0 for about 200 lines in all

    def __post_init__(self):
        names = [recipe.name for recipe in self.recipes]
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"recipes {', '.join(names)}, seeds {self.seeds}: name each once.")
        if bad := [name for name in names if "/" in name or not name.strip(".")]:
            raise ValueError(f"recipe name {bad[0]!r} cannot name a folder: leave out slashes.")
        if self.on_nan not in get_args(OnNan):
            raise ValueError(f"on_nan={self.on_nan!r}: give one of {', '.join(get_args(OnNan))}.")
        most = min(recipe.samples for recipe in self.recipes)
        if late := [count for count in self.snapshots if not 0 <= count <= most]:
            raise ValueError(f"snapshot at {late[0]} samples: the run sees {most}, ask for at most that.")


def create(folder: Path, config: RunConfig) -> None:
    """Create a run in a folder that holds none yet."""
    with lock(folder):
        if (folder / "run.json").exists():
            raise ValueError(f"{folder} already contains a run: run `osae resume {folder}` to continue.")
        with atomic_write(folder / "run.json") as path:
            about = seal({"schema": SCHEMA, "config": to_json(config)})
            path.write_text(json.dumps(about, indent=2) + "\n")


def forget(folder: Path) -> None:
    """Remove a run that was just created and could not start; one with a checkpoint, or in use, stays."""
    with suppress(LockedError), lock(folder):
        if checkpoint.exists(folder):
            return
        for name in ("run.json", "log.jsonl", "speed.jsonl"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "snapshots", ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def read(folder: Path) -> RunConfig:
    """Return what the run in this folder trains."""
    if not (folder / "run.json").exists():
        raise ValueError(
            f"{folder} holds no run: it has no run.json. `osae train --out {folder}` starts one."
        )
    about = read_json(folder / "run.json")
    try:
        schema = about.get("schema") if isinstance(about, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"it has schema {str(schema)[:60]}, and this release reads {SCHEMA}.")
        config = from_json(about.get("config"))
        if not isinstance(config, RunConfig):
            raise ValueError("it holds no RunConfig.")
    except ValueError as error:
        raise ValueError(" ".join(f"{folder}/run.json cannot be read: {error}".split())) from error
    return config


def go(
    folder: Path,
    *,
    device: str = "cpu",
    progress: Callable[[int, int, list[Terms]], None] | None = None,
    logs: Sequence[Log] = (),
    on_nan: OnNan | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
    mesh: Mesh = ALONE,
) -> list[Member]:
    """Train the members of the run to the end, from wherever its checkpoint is, and return them.

    Every line of the log also goes to each of `logs`. `on_nan` overrides what the run was created with.
    `tell` is called with a sentence if the last checkpoint is damaged and the run is resumed from the one
    before it. No other process can train the run meanwhile, except those of the mesh: all of them call this,
    and the first one writes.
    """
    config = read(folder)
    with lock(folder) if mesh.is_first else nullcontext():
        return _go(folder, config, device, progress, logs, on_nan or cast(OnNan, config.on_nan), tell, mesh)


def _go(
    folder: Path,
    config: RunConfig,
    device: str,
    progress: Callable[[int, int, list[Terms]], None] | None,
    logs: Sequence[Log],
    on_nan: OnNan,
    tell: Callable[[str], None],
    mesh: Mesh,
) -> list[Member]:
    source = open_source(config.source, device)
    first = finite_rows(source.block(0), "block 0", on_nan)
    members = [
        Member(recipe, seed, first, device=device, mesh=mesh)
        for recipe in config.recipes
        for seed in config.seeds
    ]
    done = _restore(folder, members, tell, mesh)
    if done == 0:
        _snapshot(folder, members, 0)
    with _stop_requests() as stop, checkpoint.Writer(folder) as writer:
        keep = _Keeper(folder, config, members, stop, logs, writer)
        show = [] if progress is None else [lambda at, terms: progress(at, members[0].recipe.steps, terms)]
        train(members, source, done=done, after=[keep, *show], on_nan=on_nan)
    for member in members:
        finished = member.finish()
        if mesh.is_first:
            finished.save(folder / member.name, provenance=provenance(member, config.source))
    return members


def _restore(folder: Path, members: Sequence[Member], tell: Callable[[str], None], mesh: Mesh) -> int:
    """Put the members back to the last checkpoint; return the finished steps. The first rank goes first."""
    done = 0
    if mesh.is_first:  # it replaces a damaged checkpoint
        done = checkpoint.restore(folder, members, tell)
        _forget_log_after(folder / "log.jsonl", done)
    mesh.everyone.wait()
    return done if mesh.is_first else checkpoint.restore(folder, members, tell)


def provenance(member: Member, source: SourceSpec) -> dict:
    """Return where an SAE comes from: enough to train it again."""
    from osae import __version__

    about = {"recipe": to_json(member.recipe), "seed": member.seed, "source": to_json(source)}
    return about | {"osae": __version__, "torch": torch.__version__}


class _Keeper:
    """Writes the log, the snapshots and the checkpoint after a step, each when it is due."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        members: Sequence[Member],
        stop: Callable[[], int],
        logs: Sequence[Log],
        writer: checkpoint.Writer,
    ):
        self.writer, self.mesh = writer, members[0].mesh
        self.folder, self.config, self.members, self.stop, self.logs = folder, config, members, stop, logs
        recipe = members[0].recipe
        self.steps = recipe.steps
        self.log_every = config.log_every or max(1, recipe.steps // LOG_LINES)
        self.pace = Pace()
        self.snapshots = [(max(1, count // recipe.batch), count) for count in config.snapshots if count > 0]
        self.saved_at = time.monotonic()

    def __call__(self, done: int, terms: list[Terms]) -> None:
        for step, samples in self.snapshots:
            if step == done:
                _snapshot(self.folder, self.members, samples)
        if done % self.log_every == 0 or done == self.steps:
            self._log(done, terms)
        stop, due = self._agree()
        if stop or done == self.steps or due:
            self.writer.save(self.members, done)
            self.saved_at = time.monotonic()
        if stop and done < self.steps:
            self.writer.wait()
            raise Interrupted(
                f"interrupted after {done} of {self.steps} steps; `osae resume {self.folder}` resumes it.",
                stop,
            )

    def _agree(self) -> tuple[int, bool]:
        """Return the signal to stop, on whichever rank it came, and whether the first rank is to save."""
        due = self.mesh.is_first and self._is_checkpoint_due()
        if self.mesh.everyone.size == 1:
            return self.stop(), due
        stop, due = self.mesh.everyone.max_(torch.tensor([self.stop(), due])).tolist()
        return stop, bool(due)

    def _is_checkpoint_due(self) -> bool:
        """Return whether it is time for another one; the larger they are, the fewer are written."""
        asked = self.config.checkpoint_seconds
        if asked == 0:
            return True
        if self.writer.is_busy():
            return False
        return time.monotonic() - self.saved_at > max(asked, self.writer.pause)

    def _log(self, done: int, terms: list[Terms]) -> None:
        lines = [_log_line(member, done, part) for member, part in zip(self.members, terms, strict=True)]
        if not self.mesh.is_first:
            return
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        append_text(self.folder / "log.jsonl", text)
        speed = self.pace.measure(done * self.members[0].recipe.batch, self.members[0].device)
        append_text(self.folder / "speed.jsonl", json.dumps({"step": done, **speed}) + "\n")
        for line, log in itertools.product(lines, self.logs):
            log(line | speed)


def _log_line(member: Member, done: int, terms: Terms) -> dict:
    line = {"name": member.name, "step": done, "samples": done * member.recipe.batch}
    numbers = member.sum_up(terms)
    numbers["explained_variance"] = member.explained_variance(terms.x, done - 1)
    # those of a batch that was skipped are not numbers in JSON
    line |= {key: number if math.isfinite(number) else None for key, number in numbers.items()}
    # the share of units that have not fired for a thousand steps, whatever the recipe calls dead
    inactive = (done - member.last_fired > 1000).sum()
    line["inactive"] = int(member.mesh.units.sum_(inactive)) / member.recipe.sae.units
    line |= {"lr": member.rate(done - 1)} | ({"k": member.k_at(done - 1)} if member.has_k else {})
    return line | ({"skipped": member.skipped} if member.skipped else {})


def _snapshot(folder: Path, members: Sequence[Member], samples: int) -> None:
    for member in members:
        finished = member.finish()
        if member.mesh.is_first:
            finished.save(folder / "snapshots" / str(samples) / member.name)


def _forget_log_after(path: Path, done: int) -> None:
    """Remove the lines of steps that will be taken again, and all from a damaged line on."""
    if not path.exists():
        return
    check_regular(path)
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        step = _step_of(line)
        if step is None:
            break
        if step <= done:
            kept.append(line)
    with atomic_write(path) as beside:
        beside.write_text("".join(line + "\n" for line in kept))


def _step_of(line: str) -> int | None:
    """Return the step of a line of the log; None if a crash cut the line short or it is damaged."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step: Any = data.get("step") if isinstance(data, dict) else None
    return step if isinstance(step, int) else None


@contextmanager
def _stop_requests() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the signal that asks to stop, or 0; a second signal stops at once."""
    asked = 0

    def ask(number, frame):
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = number

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals can be handled in the main thread only
        before = {}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
