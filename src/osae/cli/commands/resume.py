"""`osae resume`: a run that was interrupted, to its end."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from osae.cli.command import Command
from osae.cli.terminal import Progress, plain_warnings, report_stop, say
from osae.options import Options, device_option, option
from osae.training.logs import KINDS

if TYPE_CHECKING:
    from osae.objective import Terms
    from osae.training.finite import OnNan


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


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(Options):
    """The run, and where it continues."""

    run: Path = option("folder of a run that was interrupted", positional=True, metavar="RUN")
    device: str = device_option("train")
    log: tuple[str, ...] = log_option()
    on_nan: str | None = on_nan_option(None, "what `osae train` was given")


def run(options: ResumeOptions, line: str) -> int:
    """Train the SAEs of the run to the end."""
    return train_to_end(options.run, device=options.device, log=options.log, on_nan=options.on_nan)


def train_to_end(folder: Path, *, device: str, log: Sequence[str], on_nan: str | None = None) -> int:
    """Train the SAEs of a run from wherever it stands; return 128 + the signal if it is interrupted."""
    from osae.devices import choose_device
    from osae.report.text import visible
    from osae.training import run as runs
    from osae.training.logs import open_logs

    names = [recipe.name for recipe in runs.read(folder).recipes]
    chosen = choose_device(device)
    try:
        with Progress("osae train") as progress, plain_warnings(), open_logs(log, folder) as logs:
            members = runs.go(
                folder,
                device=chosen,
                progress=lambda done, steps, terms: progress(done, steps, _losses(names, terms)),
                logs=logs,
                on_nan=cast("OnNan | None", on_nan),
                tell=lambda sentence: say(f"osae: {sentence}"),
            )
    except runs.Interrupted as stopped:
        say(f"osae: {stopped}")
        return 128 + stopped.signal
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"Resume with: osae resume {shlex.quote(str(folder))}")
    except OSError as error:
        raise OSError(f"{error}. `osae resume {folder}` resumes the run once the cause is gone.") from error
    for member in members:
        print(visible(str(folder / member.name)))
    return 0


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
    examples=("osae resume runs/mine",),
)
