"""`osae trust`: which units of an SAE other training runs also find."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_trust
from osae.cli.outputs import check_folder, check_study, finish_study
from osae.cli.shared_options import DATA, SAE, ComparisonFiles
from osae.cli.terminal import Progress, report_stop, say
from osae.options import device_option, option
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class TrustOptions(ComparisonFiles):
    """Which SAE to check, and on which data."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    data: Place = option(DATA, metavar="DATA")
    out: Path = option("folder for the twins and their parts of the data", metavar="DIR")
    runs: int = option("number of twins to train, each on its own documents", default=3, least=2)
    tokens: int | None = option(
        "number of rows to train each twin on, counting repetitions",
        default=None,
        least=1,
        shown="as in the recipe; one pass over DATA if unknown",
    )
    device: str = device_option("train")


def run(options: TrustOptions, line: str) -> int:
    """Train or resume the twins, compare them with the SAE, print the tables and write the files."""
    check_study(options, options.sae, options.data)
    check_folder(options.out)
    from osae.devices import choose_device
    from osae.studies.subjects import open_subject
    from osae.studies.trust import trust
    from osae.training import run as runs

    sae = open_subject(options.sae)
    announce_trust(sae, options.data, twins=options.runs, samples=options.tokens, folder=options.out)
    try:
        with Progress("osae trust") as progress:
            result = trust(
                sae,
                options.data,
                options.out,
                twins=options.runs,
                samples=options.tokens,
                device=choose_device(options.device),
                progress=progress,
                tell=lambda sentence: say(f"osae: {sentence}"),
            )
    except runs.Interrupted as stopped:
        say(f"osae: interrupted. Run the same command again to resume: {line}")
        return 128 + stopped.signal
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"Run the same command again to resume: {line}")
    return finish_study(result, line, files=options)


COMMAND = Command(
    "trust",
    "Find out which units of an SAE other training runs also find, by training twins of it.",
    TrustOptions,
    run,
    examples=("osae trust SAE --data acts --runs 3 --out runs/twins --units units.csv",),
    resumable=True,
)
