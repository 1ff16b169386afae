"""`osae report`: an HTML page about results, training runs and units."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osae.cli.command import Command
from osae.cli.forecasting import announce_page
from osae.cli.inputs import check_present
from osae.cli.outputs import check_files
from osae.cli.shared_options import RUN_OR_RESULT
from osae.cli.terminal import Progress, say
from osae.options import Options, option

if TYPE_CHECKING:
    from osae.report.plots import Plot


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
    found = open_inputs(options.inputs)
    write_report(found.page(_plot_agreement), options.out, folder=options.folder)
    print(options.out)
    return 0


def _plot_agreement(run: Path) -> list["Plot"]:
    """Return the agreement between seeds during training, if the run has snapshots of several."""
    from osae.report.runs import has_snapshots, plot_agreement

    if not has_snapshots(run):
        return []
    from osae.studies.snapshots import measure_snapshots

    with Progress("osae report") as progress:
        found = measure_snapshots(run, progress=progress)
    if found.moments:
        return [plot_agreement(found.moments, found.left_out)]
    if found.left_out:
        say(f"osae report: {found.left_out}")
    return []


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
