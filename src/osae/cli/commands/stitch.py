"""`osae stitch`: what a larger SAE knows that a smaller one does not."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.outputs import add_command, check_files, write_files
from osae.cli.shared_options import DATA, SAE, ResultFiles
from osae.cli.terminal import Progress
from osae.options import option


@dataclass(frozen=True, kw_only=True)
class StitchOptions(ResultFiles):
    """The two SAEs, and the activations they are run on."""

    small: str = option(SAE, positional=True, metavar="SAE")
    large: str = option("the SAE whose units are added to the first", positional=True, metavar="LARGER_SAE")
    data: Path = option(DATA, metavar="DATA")


def run(options: StitchOptions, line: str) -> int:
    """Stitch the units of the larger SAE into the smaller one, print the tables and write the files."""
    check_files((options.json, options.csv, options.html))
    from osae import report
    from osae.studies.stitch import stitch

    with Progress("osae stitch") as progress:
        result = stitch(options.small, options.large, options.data, progress=progress)
    result = add_command(result, line)
    report.show(result)
    write_files(result, options)
    return 0


COMMAND = Command(
    "stitch",
    "Find what a larger SAE knows that a smaller one does not, unit by unit.",
    StitchOptions,
    run,
    examples=("osae stitch small large --data acts --json stitch.json",),
)
