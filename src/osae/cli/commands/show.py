"""`osae show`: results and training runs on the terminal."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.inputs import check_present
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """What to show."""

    result: Path = option(
        "a JSON file of results, the folder of an experiment or a training run, or an SAE with contexts",
        positional=True,
        metavar="RUN_OR_RESULT",
    )


def run(options: ShowOptions, line: str) -> int:
    """Print the tables and the summary of a result, or how far a run is."""
    check_present(options.result)
    from osae import report
    from osae.report.inputs import find_result
    from osae.report.runs import describe_state, find_run

    if (folder := find_run(options.result)) is not None:
        print(describe_state(folder))
    else:
        report.show(find_result(options.result))
    return 0


COMMAND = Command(
    "show",
    "Print the tables and the summary of a result, or how far a training run is.",
    ShowOptions,
    run,
    examples=("osae show runs/mine", "osae show compare.json"),
)
