"""`osae trust`: which units of an SAE other training runs find too."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.inputs import check_present
from osae.cli.outputs import add_command, check_files, check_folder, write_files
from osae.cli.shared_options import DATA, FILES, SAE, ResultFiles
from osae.cli.terminal import Progress, report_stop, say
from osae.options import option


@dataclass(frozen=True, kw_only=True)
class TrustOptions(ResultFiles):
    """Which SAE to check, and on what."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    data: Path = option(DATA, metavar="DATA")
    out: Path = option("folder for the twins and their parts of the data", metavar="DIR")
    runs: int = option("twins to train, on documents that no other twin sees", default=3, least=2)
    tokens: int | None = option(
        "rows that a twin is trained on, counting repetitions",
        default=None,
        least=1,
        shown="the recipe's; one pass over DATA if it is not known",
    )
    device: str = option("where to train: auto, cpu, cuda, cuda:1, ...", default="auto")
    units: Path | None = option(
        "write a table of every unit to this CSV file", default=None, metavar="FILE", group=FILES
    )


def run(options: TrustOptions, line: str) -> int:
    """Train the twins, or resume them, compare, print the tables and write the files."""
    check_files((options.json, options.csv, options.html, options.units))
    check_folder(options.out)
    check_present(options.sae, options.data)
    from osae import report
    from osae.devices import choose_device
    from osae.studies.trust import trust
    from osae.training import run as runs

    try:
        with Progress("osae trust") as progress:
            result = trust(
                options.sae,
                options.data,
                options.out,
                twins=options.runs,
                samples=options.tokens,
                device=choose_device(options.device),
                progress=progress,
                tell=lambda sentence: say(f"osae: {sentence}"),
            )
    except runs.Interrupted as stopped:
        say(f"osae: interrupted; the same command resumes: {line}")
        return 128 + stopped.signal
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"The same command resumes: {shlex.quote(line)}")
    result = add_command(result, line)
    report.show(result)
    write_files(result, options)
    if options.units and result.units:
        result.units.to_csv(options.units)
        print(options.units)
    return 0


COMMAND = Command(
    "trust",
    "Find out which units of an SAE other training runs find too, by training twins of it.",
    TrustOptions,
    run,
    examples=("osae trust SAE --data acts --runs 3 --out runs/twins --units units.csv",),
    resumable=True,
)
