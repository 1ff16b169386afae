"""Jobs on Slurm through submitit: the state of jobs, their time limit, and jobs that are queued again.

Slurm's accounting is not needed: `squeue` says which jobs exist, and a job that has left the queue without a
result has died. Only `places` imports this module, and submitit only where jobs run.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

QUERY = ("squeue", "--me", "--noheader", "--array", "--format=%i")  # the jobs in the queue, one per line
MOST_SECONDS = 60  # between two queries; the first ones follow each other faster
POLL_SECONDS = 2.0  # between two looks at the files of results


def submit(
    submitit: Any,
    tasks: Sequence[Callable[[], R]],
    *,
    logs: Path,
    settings: Mapping[str, str],
    at_once: int,
) -> list[Any]:
    """Submit the tasks as one array, and return their jobs; scripts and output are written to `logs`.

    Without a time limit in `settings`, that of the partition applies, not the five minutes of submitit.
    """
    if shutil.which("sbatch") is None:
        raise ValueError("--on slurm: sbatch was not found: run osae on a machine of the cluster.")
    executor = submitit.SlurmExecutor(folder=logs)
    executor.update_parameters(
        job_name="osae",
        time=None,
        array_parallelism=min(at_once, len(tasks)),
        additional_parameters=dict(settings),
    )
    try:
        with executor.batch():
            jobs = [executor.submit(task) for task in tasks]
    except submitit.core.utils.FailedJobError as error:  # such as an unknown partition
        raise ValueError(f"--on slurm: {' '.join(str(error).split())[:300]}") from error
    queue = _watch_queue(submitit)
    for job in jobs:
        job.watcher = queue
        queue.register_job(job.job_id)
    return jobs


def _watch_queue(submitit: Any) -> Any:
    """Return a watcher of jobs that asks `squeue`; submitit's own asks the accounting."""

    class Queue(submitit.slurm.slurm.SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            return [*QUERY] if self._registered - self._finished else None

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            waiting = {*(string if isinstance(string, str) else string.decode()).split()}
            return {job: {"State": "RUNNING" if job in waiting else "GONE"} for job in self._registered}

    return Queue(delay_s=MOST_SECONDS)


@dataclass
class Requeued(Generic[T, R]):
    """A task in a job that is queued again if it is not finished when its time is nearly over.

    submitit asks Slurm for SIGUSR2 some time before the limit. The task is then asked to stop, as by SIGTERM:
    a training run writes a checkpoint, from which the next job resumes it. Without `unfinished`, tasks cannot
    be resumed, and have all of their time.
    """

    function: Callable[[T], R]
    task: T
    unfinished: Callable[[R], bool] | None
    asked: bool = field(default=False, init=False)

    def __call__(self) -> R:
        signal.signal(signal.SIGUSR2, self._ask if self.unfinished else signal.SIG_IGN)
        done = self.function(self.task)
        if self.asked and self.unfinished is not None and self.unfinished(done):
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
            raise SystemExit("osae: queued again, to be resumed")  # a job without a result is not over
        return done

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.raise_signal(signal.SIGTERM)
