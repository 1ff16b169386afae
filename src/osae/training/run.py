"""A run: SAEs trained in a folder, which can be interrupted and resumed at any time.

RUN/run.json                  what is trained, on what (never changes, unless the run is extended)
RUN/checkpoint.safetensors    how far training has come; checkpoint-before.safetensors is the one before it
RUN/checkpoints/STEP/         the same, if units are spread over ranks: every rank writes its own part
RUN/log.jsonl                 one line per SAE every few steps, the same however often the run is interrupted
RUN/speed.jsonl               samples per second and peak memory at the same steps
RUN/snapshots/SAMPLES/NAME/   the SAE named NAME after that many samples; 0 always exists
RUN/short/NAME/NUMBER/        the SAEs of short runs, if NAME starts from their consensus
RUN/NAME/                     the finished SAE: sae.safetensors and sae.json
"""

import itertools
import json
import math
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast, get_args

import torch

from osae.config import from_json, later, to_json, variant
from osae.data.harvest import forget_contexts
from osae.data.source import Live, Source, SourceSpec, describe_place, open_source
from osae.devices import split_devices, spread_over
from osae.files import append_text, atomic_write, check_regular, read_json, seal
from osae.kernels.precision import check_precision
from osae.locks import LockedError, lock
from osae.messages import one_line
from osae.model import SAE
from osae.objective import Terms
from osae.ranks import ALONE, NO_OTHERS, Mesh
from osae.recipes import FromConsensus, Recipe
from osae.seeds import generator
from osae.training import checkpoint, sharded
from osae.training.consensus import start_from_runs
from osae.training.finite import OnNan, finite_rows
from osae.training.logs import Log, Pace
from osae.training.loop import stop_early, train
from osae.training.member import Member, name_member
from osae.training.parallel import check_mesh
from osae.training.plateau import Plateau, Stopped, has_levelled_off
from osae.training.schedules import find_settled_step
from osae.training.start import Consensus

SCHEMA = 1
SHORT = "short"  # folder of short runs
LOG_LINES = 200  # per SAE over a whole run


class Interrupted(Exception):
    """Raised when a signal has stopped a run; its checkpoint is on disk."""

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
    on_nan: str = "stop"  # or "skip", for batches whose loss is not finite
    log_every: int = later(0)  # steps between log entries; 0 for about 200 entries in total
    precision: str = later("fp32")  # of products with an encoder
    plateau: Plateau | None = later(None)  # when to stop early; None for never

    def __post_init__(self):
        names = [recipe.name for recipe in self.recipes]
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"recipes {', '.join(names)}, seeds {self.seeds}: give each only once.")
        if bad := [name for name in names if "/" in name or not name.strip(".")]:
            raise ValueError(f"recipe name {bad[0]!r} cannot be the name of a folder: remove slashes.")
        if self.on_nan not in get_args(OnNan):
            raise ValueError(f"on_nan={self.on_nan!r}: give one of {', '.join(get_args(OnNan))}.")
        if isinstance(self.source, Live) and any(isinstance(r.start, FromConsensus) for r in self.recipes):
            raise ValueError(
                "a start from a consensus reads the activations once per short run: harvest them with "
                "`osae harvest`, and give --data instead of --live."
            )
        check_precision(self.precision)
        most = min(recipe.samples for recipe in self.recipes)
        if late := [count for count in self.snapshots if not 0 <= count <= most]:
            raise ValueError(
                f"snapshot at {late[0]} samples: the run sees only {most}, give at most that many."
            )

    @property
    def names(self) -> list[str]:
        """Return the names of the SAEs."""
        return [name_member(recipe, seed) for recipe in self.recipes for seed in self.seeds]


def create(folder: Path, config: RunConfig) -> None:
    """Create a run in a folder that does not contain one yet."""
    with lock(folder):
        if (folder / "run.json").exists():
            raise ValueError(f"{folder} already contains a run: run `osae resume {folder}` to continue.")
        _write_config(folder, config)


def _write_config(folder: Path, config: RunConfig) -> None:
    with atomic_write(folder / "run.json") as path:
        about = seal({"schema": SCHEMA, "config": to_json(config)})
        path.write_text(json.dumps(about, indent=2) + "\n")


def forget(folder: Path) -> None:
    """Remove a run that was just created and could not start; keep one with a checkpoint or in use."""
    with suppress(LockedError), lock(folder):
        if checkpoint.exists(folder):
            return
        for name in ("run.json", "log.jsonl", "speed.jsonl"):
            (folder / name).unlink(missing_ok=True)
        for name in ("snapshots", SHORT, sharded.FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def read(folder: Path) -> RunConfig:
    """Return the configuration of the run in this folder."""
    if not (folder / "run.json").exists():
        raise ValueError(
            f"{folder} contains no run, since it has no run.json: start one with `osae train --out {folder}`."
        )
    about = read_json(folder / "run.json")
    try:
        schema = about.get("schema") if isinstance(about, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"it has schema {str(schema)[:60]}, and this release reads {SCHEMA}.")
        config = from_json(about.get("config"))
        if not isinstance(config, RunConfig):
            raise ValueError("it does not contain a RunConfig.")
    except ValueError as error:
        raise ValueError(one_line(f"{folder}/run.json cannot be read: {error}")) from error
    return config


def extend(folder: Path, samples: int) -> None:
    """Extend the run in this folder to this total number of samples; do nothing if it already sees as many.

    The original plan is kept, and an extension is appended. Finished SAEs become snapshots.
    """
    with lock(folder):
        config = read(folder)
        planned = config.recipes[0].all_samples
        if samples == planned:
            return
        _check_extension(folder, config, samples)
        for name in config.names:
            if (folder / name / "sae.json").exists():
                _keep_as_snapshot(folder, name, planned)
        more = samples - planned
        longer = tuple(replace(one, extensions=(*one.extensions, more)) for one in config.recipes)
        _write_config(folder, replace(config, recipes=longer))


def _check_extension(folder: Path, config: RunConfig, samples: int) -> None:
    planned, batch = config.recipes[0].all_samples, config.recipes[0].batch
    if samples < planned + batch:
        raise ValueError(
            f"{folder} is planned for {planned} samples: extend it to at least {planned + batch}, "
            f"another batch, not {samples}."
        )
    for name in config.names:
        about = folder / name / "sae.json"
        if about.exists() and "stopped" in read_json(about).get("provenance", {}):
            raise ValueError(
                f"{folder} was stopped on a plateau: start a new run from its SAE with `osae train --from`."
            )


def _keep_as_snapshot(folder: Path, name: str, samples: int) -> None:
    kept = folder / "snapshots" / str(samples) / name
    if kept.exists():
        shutil.rmtree(folder / name)
    else:
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder / name, kept)


def go(
    folder: Path,
    *,
    device: str = "cpu",
    progress: Callable[[int, int, list[Terms]], None] | None = None,
    logs: Sequence[Log] = (),
    on_nan: OnNan | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
    mesh: Mesh = ALONE,
    sent: Callable[[], None] = lambda: None,
) -> list[Member]:
    """Train the members of the run to completion, from its last checkpoint, and return them.

    Log entries are also sent to each of `logs`. `on_nan` overrides the setting of the run. `tell` is called
    with a sentence if the last checkpoint is damaged and the run is resumed from the previous one. No other
    process can train the run at the same time, except those of the mesh: all of them call this, and the first
    one writes. `sent` is called after each checkpoint, in the thread that wrote it. `device` may be several
    devices, separated by commas: the members take turns among them, and a language model runs on the first.
    """
    config = read(folder)
    with lock(folder) if mesh.is_first else nullcontext():
        return _go(
            folder, config, device, progress, logs, on_nan or cast(OnNan, config.on_nan), tell, mesh, sent
        )


def _go(
    folder: Path,
    config: RunConfig,
    device: str,
    progress: Callable[[int, int, list[Terms]], None] | None,
    logs: Sequence[Log],
    on_nan: OnNan,
    tell: Callable[[str], None],
    mesh: Mesh,
    sent: Callable[[], None],
) -> list[Member]:
    for recipe in config.recipes:
        check_mesh(recipe, mesh)  # before the start takes time
    ranks = mesh.everyone.apart() if isinstance(config.source, Live) else NO_OTHERS
    source = open_source(config.source, split_devices(device)[0], ranks, folder)
    first = finite_rows(source.block(0), "block 0", on_nan)
    wanted = list(itertools.product(config.recipes, config.seeds))
    members = []
    for (recipe, seed), place in zip(wanted, spread_over(device, len(wanted)), strict=True):
        start = _find_start(folder, config, recipe, seed, source, place, on_nan, tell)
        members.append(
            Member(recipe, seed, first, device=place, mesh=mesh, start=start, precision=config.precision)
        )
    done = _restore(folder, members, tell, mesh)
    if done == 0:
        _snapshot(folder, members, 0)
    stopped = {}
    try:
        with stop_requests() as stop, checkpoint.CheckpointWriter(folder, sent, mesh) as writer:
            keep = _Keeper(folder, config, members, stop, logs, writer)
            keep.check_plateau(done)
            steps = members[0].recipe.steps
            show = [] if progress is None else [lambda at, terms: progress(at, steps, terms)]
            train(members, source, done=done, after=[keep, *show], on_nan=on_nan)
    except Stopped as early:
        tell(f"{early} of {members[0].recipe.steps}.")
        stop_early(members, source, early.done, on_nan=on_nan)
        stopped = {"stopped": {"why": "plateau", "step": early.done}}
    for member in members:
        finished = member.finish()
        if mesh.is_first:
            finished.save(
                folder / member.name, provenance=provenance(member, config.source, source) | stopped
            )
    if mesh.is_first:
        forget_contexts(folder)
    return members


def _find_start(
    folder: Path,
    config: RunConfig,
    recipe: Recipe,
    seed: int,
    source: Source,
    device: str,
    on_nan: OnNan,
    tell: Callable[[str], None],
) -> Consensus | None:
    """Return the consensus that a member starts from, if it does; the checkpoint, if any, replaces it."""
    if isinstance(recipe.start, FromConsensus) and checkpoint.exists(folder):
        sae = SAE(recipe.sae, generator=generator(seed, "start"))
        return Consensus(sae, torch.zeros(recipe.sae.units))
    kept = folder / SHORT / name_member(recipe, seed)
    return start_from_runs(
        recipe,
        seed,
        source,
        device=device,
        precision=config.precision,
        on_nan=on_nan,
        folder=kept,
        tell=tell,
    )


def _restore(folder: Path, members: Sequence[Member], tell: Callable[[str], None], mesh: Mesh) -> int:
    """Restore the members from the last checkpoint; return the finished steps. The first rank goes first."""
    done = 0
    if mesh.is_first:  # since it replaces a damaged checkpoint
        done = checkpoint.restore(folder, members, tell)
        _forget_log_after(folder / "log.jsonl", done)
    mesh.everyone.wait()
    return done if mesh.is_first else checkpoint.restore(folder, members, tell)


def provenance(member: Member, spec: SourceSpec, source: Source) -> dict:
    """Return the provenance of an SAE, sufficient to train it again, and where its rows were harvested."""
    from osae import __version__

    about = {"recipe": to_json(member.recipe), "seed": member.seed, "source": to_json(spec)}
    about |= describe_place(source) | {"precision": member.precision} | member.list_scores()
    return about | {"osae": __version__, "torch": torch.__version__}


class _Keeper:
    """Writes the log, snapshots and checkpoints after a step, when they are due."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        members: Sequence[Member],
        stop: Callable[[], int],
        logs: Sequence[Log],
        writer: checkpoint.CheckpointWriter,
    ):
        self.writer, self.mesh = writer, members[0].mesh
        self.folder, self.config, self.members, self.stop, self.logs = folder, config, members, stop, logs
        recipe = members[0].recipe
        self.steps = recipe.steps
        self.log_every = config.log_every or max(1, recipe.segments[0] // LOG_LINES)
        self.ends = tuple(accumulate(recipe.segments))
        self.pace = Pace()
        self.snapshots = [(max(1, count // recipe.batch), count) for count in config.snapshots if count > 0]
        planned = accumulate(
            (recipe.samples, *recipe.extensions)
        )  # the SAE at the start of an extension is kept
        self.snapshots += list(zip(self.ends, planned, strict=True))[:-1]
        self.losses = _Losses(folder / "log.jsonl", config.plateau) if config.plateau else None
        self.saved_at = time.monotonic()

    def __call__(self, done: int, terms: list[Terms]) -> None:
        for step, samples in self.snapshots:
            if step == done:
                _snapshot(self.folder, self.members, samples)
        logged = done % self.log_every == 0 or done in self.ends
        if logged:
            self._log(done, terms)
        stop, due = self._agree()
        if stop or done == self.steps or due:
            self.writer.save(self.members, done)
            self.saved_at = time.monotonic()
        if stop and done < self.steps:
            self.writer.wait()
            raise Interrupted(
                f"interrupted after {done} of {self.steps} steps; resume with `osae resume {self.folder}`.",
                stop,
            )
        if logged:
            self.check_plateau(done)

    def check_plateau(self, done: int) -> None:
        """Raise `Stopped`, with a checkpoint on disk, if the losses of all SAEs have reached a plateau."""
        if self.losses is None or not 0 < done < self.steps:
            return
        since = find_settled_step(self.members[0].recipe, done)
        level = self.mesh.is_first and self.losses.have_levelled_off(self.config.names, since)
        if bool(self.mesh.everyone.max_(torch.tensor(int(level)))):
            self.writer.save(self.members, done)
            self.writer.wait()
            raise Stopped(done)

    def _agree(self) -> tuple[int, bool]:
        """Return the stop signal received by any rank, and whether the first rank should save."""
        due = self.mesh.is_first and self._is_checkpoint_due()
        if self.mesh.everyone.size == 1:
            return self.stop(), due
        stop, due = self.mesh.everyone.max_(torch.tensor([self.stop(), due])).tolist()
        return stop, bool(due)

    def _is_checkpoint_due(self) -> bool:
        """Return whether another checkpoint is due; large ones are written less often."""
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
        if self.losses is not None:
            self.losses.add(lines)
        speed = self.pace.measure(done * self.members[0].recipe.batch, self.members[0].device)
        append_text(self.folder / "speed.jsonl", json.dumps({"step": done, **speed}) + "\n")
        for line, log in itertools.product(lines, self.logs):
            log(line | speed)


def _log_line(member: Member, done: int, terms: Terms) -> dict:
    line = {"name": member.name, "step": done, "samples": done * member.recipe.batch}
    numbers = member.sum_up(terms)
    numbers["explained_variance"] = member.explained_variance(terms.x, done - 1)
    # the numbers of a skipped batch cannot be written as JSON
    line |= {key: number if math.isfinite(number) else None for key, number in numbers.items()}
    # the share of units that have not fired for a thousand steps, regardless of the recipe
    inactive = (done - member.last_fired > 1000).sum()
    line["inactive"] = int(member.mesh.units.sum_(inactive)) / member.recipe.sae.units
    line |= {"lr": member.rate(done - 1)} | ({"k": member.k_at(done - 1)} if member.has_k else {})
    return line | ({"skipped": member.skipped} if member.skipped else {})


class _Losses:
    """The losses of every SAE in the last log entries, as many as needed to detect a plateau."""

    def __init__(self, path: Path, rule: Plateau):
        self.rule = rule
        self._lines: dict[str, deque[tuple[int, float | None]]] = {}
        if path.exists():
            self.add(map(json.loads, path.read_text(encoding="utf-8").splitlines()))

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            kept = self._lines.setdefault(line["name"], deque(maxlen=2 * self.rule.lines))
            kept.append((line["step"], line["prefix"]))

    def have_levelled_off(self, names: Sequence[str], since: int) -> bool:
        """Return whether the losses of all these SAEs have reached a plateau after this step."""
        found = ([loss for step, loss in self._lines.get(name, ()) if step > since] for name in names)
        return all(has_levelled_off(self.rule, losses) for losses in found)


def _snapshot(folder: Path, members: Sequence[Member], samples: int) -> None:
    for member in members:
        finished = member.finish()
        if member.mesh.is_first:
            finished.save(folder / "snapshots" / str(samples) / member.name)


def _forget_log_after(path: Path, done: int) -> None:
    """Remove the entries of steps that will be repeated, and everything after a damaged entry."""
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
    """Return the step of a log entry; None if it is damaged or was truncated by a crash."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step: Any = data.get("step") if isinstance(data, dict) else None
    return step if isinstance(step, int) else None


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the stop signal received, or 0; a second signal stops at once.

    Inside the block, a first SIGINT or SIGTERM does nothing else.
    """
    asked = 0

    def ask(number, frame):
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = number

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals can only be handled in the main thread
        before = {}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
