"""Train SAEs in parallel processes and store them on disk, so that interrupted experiments can be resumed."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from osae import __version__
from osae.config import to_json
from osae.data.source import SourceSpec, open_source
from osae.devices import single_thread
from osae.experiments.places import Local, Place, Slurm, run_tasks
from osae.files import read_json
from osae.forecast import SINGLE, Forecast, check, forecast_experiment, halve
from osae.model import SAE
from osae.recipes import Recipe
from osae.training import checkpoint
from osae.training.consensus import start_from_runs
from osae.training.loop import train
from osae.training.member import Member, name_member
from osae.training.run import Interrupted, provenance, stop_requests
from osae.training.sizes import forecast_seconds, measure_training
from osae.versions import find_commit


@dataclass(frozen=True)
class Job:
    """One SAE to train."""

    recipe: Recipe
    seed: int
    source: SourceSpec
    snapshots: tuple[int, ...] = ()  # numbers of samples after which a snapshot is saved
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Return the name of the SAE."""
        return name_member(self.recipe, self.seed)

    def folder(self, root: Path) -> Path:
        """Return the folder of the trained SAE."""
        return root / self.name

    def snapshot(self, root: Path, samples: int) -> Path:
        """Return the folder of the snapshot after that many samples."""
        return self.folder(root) / "snapshots" / str(samples)

    def describe(self) -> dict[str, Any]:
        """Return what determines the SAE, as JSON."""
        about = {"recipe": to_json(self.recipe), "seed": self.seed, "source": to_json(self.source)}
        return json.loads(json.dumps(about | {"osae": __version__, "torch": torch.__version__}))


@dataclass(frozen=True)
class FinishedJob:
    """A job, its trained SAE, and the seconds it took."""

    job: Job
    sae: SAE
    seconds: float


def train_all(jobs: Sequence[Job], root: Path, *, place: Place) -> Iterator[FinishedJob]:
    """Yield jobs as they finish, in any order; SAEs that are already in `root` are not trained again.

    On Slurm, a job whose time is nearly over writes a checkpoint, and is queued again and resumed.
    """
    missing = [job for job in jobs if not _is_there(job, root)]
    if isinstance(place, Local):
        needed = forecast_jobs(missing, place.workers)
        smaller = ((f"--jobs {jobs}", forecast_jobs(missing, jobs)) for jobs in halve(place.workers))
        check(needed, "give fewer --jobs, or a smaller world or fewer units.", root, smaller)
    for job in jobs:
        if job not in missing:
            yield _read(job, root)
    train_one = partial(_train_and_keep, root=root.absolute(), may_pause=isinstance(place, Slurm))
    is_paused = partial(_is_paused, root=root.absolute())
    for job in run_tasks(
        train_one, missing, place=place, describe=lambda job: job.name, unfinished=is_paused
    ):
        if is_paused(job):
            raise ChildProcessError(f"{job.name} was interrupted: run the same command again to resume.")
        yield _read(job, root)


def forecast_jobs(jobs: Sequence[Job], workers: int) -> Forecast:
    """Return what training these SAEs in that many parallel processes takes."""
    with single_thread():
        each, recipes = [_forecast_job(job) for job in jobs], {job.recipe.name for job in jobs}
        return forecast_experiment(each, workers, recipes=len(recipes))


def _forecast_job(job: Job) -> Forecast:
    size, sae = measure_training([job.recipe], [job.seed], job.source), job.recipe.sae
    disk = 2 * SINGLE * sae.units * sae.width * (1 + len(job.snapshots))
    return replace(size.forecast(forecast_seconds(size, job.recipe.steps)), disk=disk)


def sum_seconds(root: Path) -> float:
    """Return the total training time of all SAEs below a folder, in seconds."""
    return sum(about.get("seconds", 0.0) for about in _provenances(root))


def find_commits(root: Path) -> tuple[str, ...]:
    """Return the commits at which the SAEs below a folder were trained, if known."""
    return tuple(sorted({about["commit"] for about in _provenances(root) if about.get("commit")}))


def _provenances(root: Path) -> Iterator[dict[str, Any]]:
    for file in root.rglob("sae.json"):
        yield read_json(file).get("provenance") or {}


def _train_and_keep(job: Job, root: Path, *, may_pause: bool = False) -> Job:
    """Train the SAE of a job and write it to its folder; return the job.

    If it `may_pause`, a signal to stop makes it write a checkpoint and return.
    """
    torch.set_num_threads(1)  # one training run per core: threads within a step would wait for each other
    # without sae.json, the SAE of another recipe does not count while its snapshots are overwritten
    (job.folder(root) / "sae.json").unlink(missing_ok=True)
    with stop_requests() if may_pause else nullcontext(lambda: 0) as stop:
        source, pause = _open_source(job.source), _Pause(job, root)
        start = start_from_runs(job.recipe, job.seed, source, device=job.device)
        member = Member(job.recipe, job.seed, source.block(0), device=job.device, start=start)
        due = {samples // job.recipe.batch: samples for samples in job.snapshots}

        def keep(done: int, _: object = None) -> None:
            if done in due:
                member.finish().save(job.snapshot(root, due[done]))
            if (number := stop()) and done < job.recipe.steps:
                pause.save(member, done)
                raise Interrupted(f"{job.name} was interrupted after {done} steps", number)

        try:
            if (done := pause.restore(member)) == 0:
                keep(0)
            train([member], source, done=done, after=[keep])
        except Interrupted:
            return job
    about = provenance(member, job.source, source) | {"seconds": pause.seconds(), "commit": find_commit()}
    member.finish().save(job.folder(root), provenance=about)
    pause.forget()
    return job


class _Pause:
    """The checkpoint of a job that was stopped, and the time that the job has taken.

    Its folder is named by a digest of the job, so that it is never taken for that of another recipe.
    """

    def __init__(self, job: Job, root: Path):
        digest = hashlib.sha256(json.dumps(job.describe(), sort_keys=True).encode()).hexdigest()[:16]
        self.folder = job.folder(root) / f"paused-{digest}"
        for other in job.folder(root).glob("paused-*"):  # whose snapshots this job overwrites
            if other != self.folder:
                shutil.rmtree(other)
        self._started, self._before = time.perf_counter(), 0.0

    def seconds(self) -> float:
        """Return the seconds that the job has taken, before and since its last pause."""
        return self._before + time.perf_counter() - self._started

    def save(self, member: Member, done: int) -> None:
        """Write the state of the job after `done` steps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "seconds.json").write_text(json.dumps(self.seconds()))
        checkpoint.save(self.folder, [member], done)

    def restore(self, member: Member) -> int:
        """Return the number of finished steps after restoring their state; 0 without an intact checkpoint."""
        if not checkpoint.exists(self.folder):
            return 0
        try:
            self._before = float(read_json(self.folder / "seconds.json"))
            return checkpoint.restore(self.folder, [member], lambda _: None)
        except (ValueError, OSError):
            return 0

    def forget(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_paused(job: Job, root: Path) -> bool:
    return not (job.folder(root) / "sae.json").is_file()


_open_source = lru_cache(maxsize=1)(open_source)


def _is_there(job: Job, root: Path) -> bool:
    """Return whether `root` contains the job's SAE and snapshots, with the same recipe and source.

    Damaged files count as missing.
    """
    folders = [job.folder(root), *(job.snapshot(root, samples) for samples in job.snapshots)]
    try:
        for folder in folders:
            SAE.load(folder)
    except (ValueError, OSError):
        return False
    about = read_json(folders[0] / "sae.json").get("provenance", {})
    return all(about.get(key) == value for key, value in job.describe().items())


def _read(job: Job, root: Path) -> FinishedJob:
    """Return a finished job from its folder."""
    folder = job.folder(root)
    about = read_json(folder / "sae.json")["provenance"]
    return FinishedJob(job, SAE.load(folder), about["seconds"])
