"""`osae order`: the units of any SAE in a canonical order."""

from dataclasses import dataclass

from osae.cli.command import Command
from osae.cli.forecasting import announce_ordering
from osae.cli.inputs import check_present
from osae.cli.outputs import check_new_folder, finish_study
from osae.cli.shared_options import DATA, SAE
from osae.cli.terminal import Progress
from osae.options import Options, option
from osae.results.ordering import By
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class OrderOptions(Options):
    """What to order, and by which criterion."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    data: Place = option(DATA, metavar="DATA")
    out: Place = option("new folder for the ordered SAE, in osae's format", metavar="DIR")
    by: By = option(
        "gain: the next unit is the one that lowers the error most; energy: how much a unit explains on its "
        "own; frequency: how often it fires",
        default="gain",
    )


def run(options: OrderOptions, line: str) -> int:
    """Order the units, print how far they moved and save the SAE."""
    check_new_folder(options.out)
    check_present(options.sae, options.data)
    from osae.studies.order import order
    from osae.studies.subjects import open_subject

    sae = open_subject(options.sae)
    announce_ordering(sae, options.data, options.by, options.out)
    with Progress("osae order") as progress:
        result = order(sae, options.data, by=options.by, progress=progress)
    return finish_study(result, line, folder=options.out)


COMMAND = Command(
    "order",
    "Put the units of an SAE from any library in a canonical order, based on activations.",
    OrderOptions,
    run,
    examples=("osae order SAE --data acts --out sorted",),
)
