"""`osae resume`: a run that was interrupted, to its end."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from osae.cli.command import Command
from osae.cli.inputs import check_run
from osae.cli.terminal import Progress, plain_warnings, report_stop, say
from osae.launching import is_first
from osae.options import Options, device_option, option
from osae.training.logs import KINDS

if TYPE_CHECKING:
    from osae.objective import Terms
    from osae.ranks import Mesh
    from osae.training.finite import OnNan
    from osae.training.member import Member


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
        "if the loss is NaN or infinite: stop before any weights change, or skip the batch and count it",
        default=default,
        choices=("stop", "skip"),
        shown=shown,
    )


def dictionary_ranks_option() -> Any:
    """Declare --dictionary-ranks."""
    return option(
        "under torchrun: processes that share the units of a dictionary; the rest share the rows of a batch",
        default=1,
        metavar="N",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(Options):
    """The run, and where it continues."""

    run: Path = option("folder of a run that was interrupted", positional=True, metavar="RUN")
    device: str = device_option("train")
    log: tuple[str, ...] = log_option()
    on_nan: str | None = on_nan_option(None, "what `osae train` was given")
    dictionary_ranks: int = dictionary_ranks_option()


def run(options: ResumeOptions, line: str) -> int:
    """Train the SAEs of the run to the end."""
    check_run(options.run)
    return train_to_end(
        options.run,
        device=options.device,
        log=options.log,
        on_nan=options.on_nan,
        dictionary_ranks=options.dictionary_ranks,
    )


def train_to_end(
    folder: Path, *, device: str, log: Sequence[str], on_nan: str | None = None, dictionary_ranks: int = 1
) -> int:
    """Train the SAEs of a run from wherever it stands; return 128 + the signal if it is interrupted.

    Every process that torchrun has started calls this; the first one writes and reports.
    """
    from osae.ranks import joined, open_mesh
    from osae.report.text import visible
    from osae.training import run as runs

    try:
        with joined():
            mesh = open_mesh(dictionary_ranks)
            mesh.everyone.wait()  # until the first has created the run
            members = _train(folder, device, log if mesh.is_first else (), on_nan, mesh)
    except runs.Interrupted as stopped:
        if is_first():
            say(f"osae: {stopped}")
        return 128 + stopped.signal
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"Resume with: osae resume {shlex.quote(str(folder))}")
    except OSError as error:
        raise OSError(f"{error}. `osae resume {folder}` resumes the run once the cause is gone.") from error
    for member in members if mesh.is_first else ():
        print(visible(str(folder / member.name)))
    return 0


def _train(folder: Path, device: str, log: Sequence[str], on_nan: str | None, mesh: "Mesh") -> "list[Member]":
    from osae.config import to_json
    from osae.devices import choose_device
    from osae.ranks import choose_local_device
    from osae.training import run as runs
    from osae.training.logs import open_logs

    config = runs.read(folder)
    names = [recipe.name for recipe in config.recipes]
    chosen = choose_device(choose_local_device(device))
    shown = Progress("osae train") if mesh.is_first else nullcontext()
    with shown as progress, plain_warnings(), open_logs(log, folder, to_json(config)) as logs:

        def report(done: int, steps: int, terms: "list[Terms]") -> None:
            if progress is not None:
                progress(done, steps, lambda: _losses(names, terms))

        return runs.go(
            folder,
            device=chosen,
            progress=report,
            logs=logs,
            on_nan=cast("OnNan | None", on_nan),
            tell=lambda sentence: say(f"osae: {sentence}"),
            mesh=mesh,
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
    "Resume a training run that was interrupted; the result equals that of an uninterrupted run.",
    ResumeOptions,
    run,
    examples=("osae resume runs/mine", "torchrun --nproc-per-node 8 -m osae resume runs/mine"),
)
