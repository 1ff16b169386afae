"""`osae sweep`: run many training runs from one file, on this machine or on a cluster."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli import config_file
from osae.cli.command import Command
from osae.cli.commands import train
from osae.cli.forecasting import announce_sweep
from osae.cli.inputs import check_present
from osae.cli.outputs import check_folder, date_now
from osae.cli.terminal import say
from osae.experiments.places import Local, Place, PlaceOptions
from osae.options import device_option, option

if TYPE_CHECKING:
    from osae.experiments.sweep import SweepTask
    from osae.results.sweep import Sweep, SweptRun

NOTES = """the file:
  Options of `osae train`, as written by --print-config (except out and device), are shared by all runs. Under
  "vary", list the values of each option that varies: every combination is a run. Values of `set` are added to
  the shared ones.

    data: acts
    units: 4096
    k: 80
    vary:
      recipes: [osae, topk]
      seeds: [0, 1, 2]
      set: [lr.peak=0.002, lr.peak=0.004]

Run the same command again to continue: finished runs are skipped, interrupted runs are resumed, and failed
runs are retried with --retry. Ray and Slurm need a file system shared by all machines, and osae[ray] or
osae[slurm]."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PlaceOptions):
    """The sweep, and where to run it."""

    sweep: Path = option(
        "YAML file that describes the sweep (see below)", positional=True, metavar="SWEEP.yaml"
    )
    out: Path = option("folder for runs and results", metavar="DIR")
    retry: int = option("how many times to retry failed runs", default=0, metavar="N", least=0)
    device: str = device_option("train")


def run(options: SweepOptions, line: str) -> int:
    """Train all runs of the sweep; return 1 if some of them failed."""
    check_present(options.sweep)
    check_folder(options.out)
    combinations = config_file.read_sweep(str(options.sweep), train.COMMAND)
    from osae import report
    from osae.experiments.sweep import run_sweep
    from osae.locks import lock
    from osae.results.base import Provenance
    from osae.versions import versions

    tasks = [_plan(options, name, values) for name, values in _name_all(combinations).items()]
    place = options.find_place(options.jobs or os.cpu_count() or 1, options.out.absolute())
    _announce(tasks, place, options)
    with lock(options.out):
        provenance = Provenance(versions(), line, date_now())
        result = run_sweep(
            tasks,
            place=place,
            provenance=provenance,
            retry=options.retry,
            update=lambda sweep, task: _update(sweep, task, options.out),
        )
        _write(result, options.out)
        report.write_page(result, options.out / "report.html")
    report.show(result)
    print(f"Results: {options.out / 'results.json'}\nPage:    {options.out / 'report.html'}")
    return 1 if result.find("failed") else 0


def _name_all(combinations: "list[config_file.Combination]") -> "dict[str, config_file.Combination]":
    """Return the combinations by name; each name is also the name of a folder."""
    named = {}
    for number, one in enumerate(combinations):
        parts = (f"{key}={text}" for key, text in one.settings.items())
        name = "".join(c if c.isalnum() or c in "=.,-" else "_" for c in " ".join(parts))[:120] or "run"
        named[name if name not in named else f"{name}-{number}"] = one
    return named


def _plan(options: SweepOptions, name: str, one: "config_file.Combination") -> "SweepTask":
    """Return the run for a combination; raise `ValueError` if `osae train` would reject it."""
    from osae.experiments.sweep import SweepTask

    folder = options.out.absolute() / "runs" / name
    try:
        values: dict[str, Any] = {**one.values, "out": folder, "device": options.device}
        config = train.build_config(train.TrainOptions(**values))
    except ValueError as error:
        raise ValueError(f"{options.sweep}, {name}: {error}") from error
    return SweepTask(name, folder, config, one.settings, options.device)


def _announce(tasks: "Sequence[SweepTask]", place: Place, options: SweepOptions) -> None:
    """Print what the unfinished runs need, if they are trained on the CPU of this machine."""
    from osae.devices import choose_device

    if isinstance(place, Local) and choose_device(options.device) == "cpu":
        unfinished = [task.config for task in tasks if not task.is_finished()]
        announce_sweep(unfinished, place.workers, options.out)


def _update(sweep: "Sweep", task: "SweepTask", out: Path) -> None:
    """Write the results so far, and print a line about the latest run."""
    _write(sweep, out)
    arrived = next(run for run in sweep.runs if run.name == task.name)
    finished = len(sweep.find("finished"))
    say(f"osae sweep: {finished}/{len(sweep.runs)} {arrived.name} {_describe(arrived)}")


def _describe(run: "SweptRun") -> str:
    from osae.measures import measure

    if run.state != "finished":
        return f"{run.state}: {run.error}"
    shown: list[str] = []
    for sae in run.saes:
        numbers = (f"{measure(key).title} {measure(key).text(value)}" for key, value in sae.measures.items())
        shown.append(" ".join(numbers))
    return "; ".join(shown)


def _write(result: Any, out: Path) -> None:
    from osae import results

    results.write_json(result, out / "results.json", indent=2)
    result.to_csv(out / "results.csv")


COMMAND = Command(
    "sweep",
    "Train every combination of options in a file, on this machine or on a cluster.",
    SweepOptions,
    run,
    examples=(
        "osae sweep sweep.yaml --out runs/sweep --jobs 4",
        "osae sweep sweep.yaml --out /shared/sweep --on ray --address auto --retry 2",
        "osae sweep sweep.yaml --out /shared/sweep --on slurm --slurm partition=gpu --slurm gres=gpu:1",
    ),
    notes=NOTES,
    resumable=True,
)
