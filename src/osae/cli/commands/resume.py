"""`osae resume`: continue an interrupted run, or extend a finished one."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from osae.cli.command import Command
from osae.cli.forecasting import announce_resuming
from osae.cli.inputs import check_run
from osae.cli.terminal import Progress, plain_warnings, report_stop, say
from osae.launching import count_restarts, is_first, local_rank
from osae.options import Options, device_option, option
from osae.stores import Place, Workplace, open_place
from osae.training.logs import KINDS

if TYPE_CHECKING:
    from osae.objective import Terms
    from osae.ranks import Mesh
    from osae.training.finite import OnNan
    from osae.training.member import Member


NOTES = """extending a run:
  Training first finishes as planned. The recipe's schedules for the learning rate, sorting and revival then
  run once more over the added tokens, so the result does not depend on when you extend the run. k keeps
  its target value, and no unit is frozen. The SAEs as originally planned are saved in RUN/snapshots.
  Activations are repeated once all of them have been seen."""


def log_option() -> Any:
    """Declare --log."""
    return option(
        "also log to this service, if it is installed; log.jsonl is always written",
        default=(),
        choices=KINDS,
        entries="repeated",
    )


def on_nan_option(default: str | None, shown: str | None = None) -> Any:
    """Declare --on-nan."""
    return option(
        "what to do if the loss is NaN or infinite: stop before any weights change, or skip the batch and "
        "count it",
        default=default,
        choices=("stop", "skip"),
        shown=shown,
    )


def dictionary_ranks_option() -> Any:
    """Declare --dictionary-ranks."""
    return option(
        "under torchrun: number of processes to split a dictionary's units over; the remaining factor splits "
        "the batch",
        default=1,
        metavar="N",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(Options):
    """The run, and how to continue it."""

    run: Place = option("folder of a training run", positional=True, metavar="RUN")
    tokens: int | None = option(
        "extend the run, finished or not, to this total number of tokens (or samples of a world)",
        default=None,
        least=1,
    )
    device: str = device_option("train", several=True)
    log: tuple[str, ...] = log_option()
    on_nan: str | None = on_nan_option(None, "as given to `osae train`")
    dictionary_ranks: int = dictionary_ranks_option()


def run(options: ResumeOptions, line: str) -> int:
    """Train the SAEs of the run to completion."""
    check_run(options.run)
    work = open_place(options.run)
    if is_first():
        work.pull()
        if options.tokens is not None and count_restarts() == 0:
            from osae.training import run as runs

            runs.extend(work.folder, options.tokens)
            work.push()
        from osae.devices import choose_devices

        announce_resuming(work.folder, choose_devices(options.device))
    return train_to_end(
        work,
        device=options.device,
        log=options.log,
        on_nan=options.on_nan,
        dictionary_ranks=options.dictionary_ranks,
    )


def train_to_end(
    work: Workplace, *, device: str, log: Sequence[str], on_nan: str | None = None, dictionary_ranks: int = 1
) -> int:
    """Train the SAEs of a run from its current state to completion; return 128 + the signal if interrupted.

    Every process started by torchrun calls this; the first one writes files and reports.
    """
    from osae.ranks import joined, open_mesh
    from osae.report.text import visible
    from osae.training import run as runs

    try:
        with joined():
            mesh = open_mesh(dictionary_ranks)
            mesh.everyone.wait()  # until the first process has created the run
            if not mesh.is_first and local_rank() == 0:  # on another machine
                work.pull()
            mesh.everyone.wait()
            members = _train(work, device, log if mesh.is_first else (), on_nan, mesh)
            if mesh.is_first:
                work.push()
    except runs.Interrupted as stopped:
        if is_first():
            say(f"osae: {work.show(stopped)}")
            work.close()
        return 128 + stopped.signal
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"Resume with: osae resume {shlex.quote(str(work.place))}")
    except OSError as error:
        again = f"Fix the cause, then run `osae resume {work.place}`."
        raise OSError(f"{work.show(error)}. {again}") from error
    for member in members if mesh.is_first else ():
        print(visible(work.show(work.folder / member.name)))
    if local_rank() in (None, 0):
        work.close()
    return 0


def _train(
    work: Workplace, device: str, log: Sequence[str], on_nan: str | None, mesh: "Mesh"
) -> "list[Member]":
    from osae.config import to_json
    from osae.devices import choose_devices
    from osae.ranks import choose_local_device
    from osae.training import run as runs
    from osae.training.logs import open_logs

    config = runs.read(work.folder)
    names = [recipe.name for recipe in config.recipes]
    if "," in device and mesh.everyone.size > 1:
        raise ValueError(f"device={device!r} on several processes: give one device, as each has its own.")
    chosen = choose_devices(choose_local_device(device))
    shown = Progress("osae train") if mesh.is_first else nullcontext()
    with shown as progress, plain_warnings(), open_logs(log, work.folder, to_json(config)) as logs:

        def report(done: int, steps: int, terms: "list[Terms]") -> None:
            if progress is not None:
                progress(done, steps, lambda: _losses(names, terms))

        return runs.go(
            work.folder,
            device=chosen,
            progress=report,
            logs=logs,
            on_nan=cast("OnNan | None", on_nan),
            tell=lambda sentence: say(f"osae: {work.show(sentence)}"),
            mesh=mesh,
            sent=work.push,
        )


def _losses(names: Sequence[str], terms: "list[Terms]") -> str:
    """Return the loss of each recipe, the mean over its seeds, in words."""
    import torch

    means = torch.stack([each.prefix for each in terms]).view(len(names), -1).mean(1).tolist()
    if len(names) == 1:
        return f"loss {means[0]:.4g}"
    return "loss " + ", ".join(f"{name} {mean:.4g}" for name, mean in zip(names, means, strict=True))


COMMAND = Command(
    "resume",
    "Resume or extend a training run; interruptions do not change the result.",
    ResumeOptions,
    run,
    examples=(
        "osae resume runs/mine",
        "osae resume runs/mine --tokens 1e9",
        "torchrun --nproc-per-node 8 -m osae resume runs/mine",
    ),
    notes=NOTES,
)
