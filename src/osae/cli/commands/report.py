"""`osae report`: an HTML page about results, training runs and units."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_page
from osae.cli.inputs import check_present
from osae.cli.outputs import check_files
from osae.cli.shared_options import RUN_OR_RESULT
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """What to show, and where to write the page."""

    inputs: tuple[Path, ...] = option(
        RUN_OR_RESULT, positional=True, metavar="RUN_OR_RESULT", entries="words"
    )
    out: Path = option("HTML file to write", metavar="PAGE.html")
    folder: bool = option(
        "store the contexts in a folder next to the page, for many or large SAEs", default=False
    )


def run(options: ReportOptions, line: str) -> int:
    """Write the page and print its name."""
    check_files([options.out])
    check_present(*options.inputs)
    from osae.report.inputs import open_inputs
    from osae.report.page import write_report

    announce_page(options.inputs, options.out)
    write_report(open_inputs(options.inputs).page(), options.out, folder=options.folder)
    print(options.out)
    return 0


COMMAND = Command(
    "report",
    "Write an HTML page about results, training runs and units, with a unit browser.",
    ReportOptions,
    run,
    examples=(
        "osae report compare.json --out page.html",
        "osae report runs/mine compare.json evaluate.json --out page.html --folder",
    ),
)
