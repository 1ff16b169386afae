"""`osae stitch`: which features of a larger SAE a smaller one lacks."""

from dataclasses import dataclass

from osae.cli.command import Command
from osae.cli.forecasting import announce_stitching
from osae.cli.outputs import check_study, finish_study
from osae.cli.shared_options import DATA, SAE, ResultFiles
from osae.cli.terminal import Progress
from osae.options import option
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class StitchOptions(ResultFiles):
    """The two SAEs, and the activations they are run on."""

    small: str = option(SAE, positional=True, metavar="SAE")
    large: str = option("SAE whose units are added to the first one", positional=True, metavar="LARGER_SAE")
    data: Place = option(DATA, metavar="DATA")


def run(options: StitchOptions, line: str) -> int:
    """Stitch the units of the larger SAE into the smaller one, print the tables and write the files."""
    check_study(options, options.small, options.large, options.data)
    from osae.studies.stitch import stitch
    from osae.studies.subjects import open_subject

    small, large = open_subject(options.small), open_subject(options.large)
    announce_stitching(small, large, options.data)
    with Progress("osae stitch") as progress:
        result = stitch(small, large, options.data, progress=progress)
    return finish_study(result, line, files=options)


COMMAND = Command(
    "stitch",
    "Find which features of a larger SAE a smaller one lacks.",
    StitchOptions,
    run,
    examples=("osae stitch small large --data acts --json stitch.json",),
)
