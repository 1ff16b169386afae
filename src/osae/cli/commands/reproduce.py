"""`osae reproduce`: the experiments of the paper."""

import inspect
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from osae.cli.command import Command, Group
from osae.cli.outputs import check_folder
from osae.cli.terminal import Progress

if TYPE_CHECKING:
    from osae.experiments import Experiment, ExperimentOptions


def run(experiment: "Experiment", options: "ExperimentOptions", line: str) -> int:
    """Run the experiment, print its tables and claims, and write results, figures and a page."""
    check_folder(options.out)
    from osae import report
    from osae.experiments.jobs import find_commits, sum_seconds
    from osae.locks import lock
    from osae.versions import find_commit, versions

    started = time.perf_counter()
    with lock(options.out):
        with Progress(f"osae reproduce {experiment.name}") as progress:
            result = experiment.run(options, progress)
        result = replace(
            result,
            command=line,
            versions=versions(),
            commit=find_commit(),
            seconds=time.perf_counter() - started,
            training_seconds=sum_seconds(options.out),
            training_commits=find_commits(options.out) or None,
        )
        page = report.write_experiment(result, options.out)
    report.show(result)
    print(f"Results: {options.out / 'results.json'}\nPage:    {page}")
    return 0


def _explain(experiment: "Experiment") -> list[str]:
    """Return the docstring of the options after its first paragraph."""
    _, *rest = (inspect.getdoc(experiment.options) or "").split("\n\n")
    return rest


def find_commands() -> Mapping[str, Command]:
    """Return a command for each experiment, by its name."""
    from osae.experiments import EXPERIMENTS

    return {
        name: Command(
            f"reproduce {name}",
            f"{experiment.help[0].upper()}{experiment.help[1:]}.",
            experiment.options,
            partial(run, experiment),
            examples=(f"osae reproduce {name} --quick --out runs/{name}",),
            notes="\n".join(
                [*_explain(experiment), "Run the same command again to resume after an interruption."]
            ),
            resumable=True,
        )
        for name, experiment in EXPERIMENTS.items()
    }


COMMAND = Group(
    "reproduce",
    "Run an experiment of the paper and print our numbers next to the published ones.",
    "experiment",
    find_commands,
    examples=("osae reproduce toy --quick --out runs/demo", "osae reproduce zipf --help"),
)
