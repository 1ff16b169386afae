"""Where tasks run: in processes on this machine, on a Ray cluster, or as Slurm jobs. Does not need torch.

Tasks and results are pickled. On a cluster, tasks write to a file system shared by all machines, and osae
must be installed on each of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, assert_never

from osae.experiments.workers import run_locally
from osae.messages import shorten
from osae.options import Options, option

T = TypeVar("T")
R = TypeVar("R")

Lost = Callable[[T, str], R]  # returns the result of a task whose process died


@dataclass(frozen=True)
class Local:
    """Processes on this machine, this many at a time; with a single worker, tasks run in this process."""

    workers: int = 1


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: an existing one at this address or, without an address, a new one on this machine.

    A task gets one CPU, and one GPU if the cluster has any.
    """

    address: str | None = None


@dataclass(frozen=True)
class Slurm:
    """Slurm jobs, submitted as one array by submitit, which writes scripts and output to `logs`.

    `settings` are passed to sbatch by name: partition, time, mem. With `cluster` "local", submitit runs the
    same jobs in processes on this machine instead.
    """

    logs: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    at_once: int = 256
    cluster: Literal["slurm", "local"] = "slurm"


Place = Local | Ray | Slurm


def jobs_option(shown: str) -> Any:
    """Declare the number of parallel training runs; `shown` describes the default."""
    return option("number of parallel training runs", default=None, least=1, shown=shown)


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(Options):
    """Where to run the training runs."""

    jobs: int | None = jobs_option("one per core")
    on: Literal["local", "ray", "slurm"] = option(
        "where to run the training runs: on this machine, on a Ray cluster, or as Slurm jobs",
        default="local",
    )
    address: str | None = option(
        "with --on ray: address of the cluster", default=None, shown="a new cluster on this machine"
    )
    slurm: tuple[str, ...] = option(
        "with --on slurm: option for sbatch, such as partition=gpu or gres=gpu:1; repeatable",
        default=(),
        metavar="NAME=VALUE",
        pattern=r"[a-z][a-z-]*=.+",
        wanted="NAME=VALUE, such as partition=gpu",
        entries="repeated",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address is not None and self.on != "ray":
            raise ValueError(f"--address {self.address} is the address of a Ray cluster: add --on ray.")
        if self.slurm and self.on != "slurm":
            raise ValueError(f"--slurm {self.slurm[0]} is an option for sbatch: add --on slurm.")

    def find_place(self, workers: int, out: Path) -> Place:
        """Return where to run the training runs; on this machine, that many run in parallel."""
        match self.on:
            case "local":
                return Local(workers)
            case "ray":
                return Ray(self.address)
            case "slurm":
                settings = dict(one.split("=", 1) for one in self.slurm)
                return Slurm(out / "slurm", settings, self.jobs or Slurm.at_once)
            case _:
                assert_never(self.on)


def run_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    *,
    place: Place,
    describe: Callable[[T], str],
    lost: Lost[T, R] | None = None,
    unfinished: Callable[[R], bool] | None = None,
) -> Iterator[R]:
    """Yield function(task) for every task as it finishes, in any order.

    Exceptions of a task are raised here. If its process dies, `lost` provides the result; without it, a
    `ChildProcessError` names the task. If a task can be stopped by SIGTERM and resumed, `unfinished` tells
    from its result whether it has to be: a Slurm job whose time is nearly over is then queued again.
    """
    if not tasks:
        return iter(())
    match place:
        case Local(workers):
            return run_locally(function, tasks, workers=workers, describe=describe, lost=lost)
        case Ray(address):
            return _run_on_ray(function, tasks, address, describe, lost)
        case Slurm():
            return _run_on_slurm(function, tasks, place, describe, lost, unfinished)
        case _:
            assert_never(place)


def _stand_in(task: T, why: str, describe: Callable[[T], str], lost: Lost[T, R] | None) -> R:
    """Return the result for a task whose process died."""
    if lost is not None:
        return lost(task, why)
    raise ChildProcessError(f"{describe(task)}: {why}: run the same command again to resume.")


def _run_on_ray(
    function: Callable[[T], R],
    tasks: Sequence[T],
    address: str | None,
    describe: Callable[[T], str],
    lost: Lost[T, R] | None,
) -> Iterator[R]:
    with _join_cluster(address) as ray:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        here = partial(_run_in, Path.cwd(), function)  # workers start in another folder
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(lambda task: here(task))
        waiting = {remote.remote(task): task for task in tasks}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ready)
            try:
                answer = ray.get(ready)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:  # the worker or its machine died
                answer = _stand_in(task, shorten(error), describe, lost)
            yield answer


def _run_in(folder: Path, function: Callable[[T], R], task: T) -> R:
    os.chdir(folder)
    return function(task)


@contextmanager
def _join_cluster(address: str | None) -> Iterator[Any]:
    """Yield the module ray, connected to a cluster; disconnect at the end."""
    ray = _import("ray", "--on ray", "ray")
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = shorten(error)
        raise ValueError(f"no Ray cluster at --address {address or 'local'}: {why}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _run_on_slurm(
    function: Callable[[T], R],
    tasks: Sequence[T],
    place: Slurm,
    describe: Callable[[T], str],
    lost: Lost[T, R] | None,
    unfinished: Callable[[R], bool] | None,
) -> Iterator[R]:
    from osae.experiments import slurm

    submitit = _import("submitit", "--on slurm", "slurm")
    if place.cluster == "local":
        executor = submitit.LocalExecutor(folder=place.logs)
        with executor.batch():
            started = [executor.submit(partial(function, task)) for task in tasks]
    else:
        wrapped = [slurm.Requeued(function, task, unfinished) for task in tasks]
        started = slurm.submit(
            submitit, wrapped, logs=place.logs, settings=place.settings, at_once=place.at_once
        )
    jobs = dict(zip(started, tasks, strict=True))
    try:
        for job in submitit.helpers.as_completed(started, poll_frequency=slurm.POLL_SECONDS):
            try:
                answer = job.result()
            except submitit.core.utils.FailedJobError as error:
                raise RuntimeError(f"{describe(jobs[job])} failed:\n{error}") from None
            except submitit.core.utils.UncompletedJobError as error:  # killed, or out of time
                answer = _stand_in(jobs[job], shorten(error), describe, lost)
            yield answer
    finally:
        for job in jobs:
            if not job.done():
                job.cancel()


def _import(name: str, flag: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{flag} needs the package {name}: pip install 'osae[{extra}]'.") from error
