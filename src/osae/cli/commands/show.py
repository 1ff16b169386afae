"""`osae show`: print results and training runs in the terminal."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.inputs import check_present
from osae.cli.shared_options import RUN_OR_RESULT
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """What to show."""

    result: Path = option(RUN_OR_RESULT, positional=True, metavar="RUN_OR_RESULT")


def run(options: ShowOptions, line: str) -> int:
    """Print the tables and summary of a result, or the progress of a run."""
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
    "Print the tables and summary of a result, or the progress of a training run.",
    ShowOptions,
    run,
    examples=("osae show runs/mine", "osae show compare.json"),
)
