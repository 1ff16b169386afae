"""`osae compare`: how consistent SAEs are, whoever trained them."""

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osae.cli.command import Command
from osae.cli.outputs import add_command, check_files, write_files
from osae.cli.shared_options import (
    DATA,
    SAE_OR_RUN,
    Orientation,
    ResultFiles,
    orientation_option,
    prefixes_option,
)
from osae.cli.terminal import Progress
from osae.options import option


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ResultFiles):
    """What to compare, and by what."""

    saes: tuple[str, ...] = option(SAE_OR_RUN, positional=True, metavar="SAE", entries="words")
    data: Path | None = option(
        f"compare what the units do on {DATA}", default=None, metavar="DATA", shown="decoders alone"
    )
    prefixes: tuple[int, ...] | None = prefixes_option("lengths of the prefixes to compare")
    on: Literal["decoder", "encoder"] = option("the rows to compare", default="decoder")
    absolute: bool = option(
        "match by the absolute value of the cosine, so that opposite directions agree", default=False
    )
    dead: Literal["keep", "drop"] = option(
        "whether zero rows, and units that never fire on --data, take part", default="keep"
    )
    chance: Literal["fitted", "isotropic"] = option(
        "how to draw random dictionaries for chance levels: with the mean and covariance of the atoms that "
        "are compared, or isotropic",
        default="fitted",
    )
    chance_draws: int | None = option(
        "pairs of random dictionaries for each chance level; 0 for none",
        default=None,
        shown="by size",
        least=0,
    )
    orientation: Orientation | None = orientation_option()


def run(options: CompareOptions, line: str) -> int:
    """Compare the SAEs, print the tables and write the files."""
    check_files((options.json, options.csv, options.html))
    # a core is left to the second thread, which computes chance levels
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 2) - 1)))
    from osae import compare, report

    if "triton" not in sys.modules:  # which has to be collected, and reports a leak otherwise
        gc.freeze()  # what was imported is no garbage: looking for some there would take half a second

    with Progress("osae compare") as progress:
        result = compare(
            options.saes,
            data=options.data,
            prefixes=options.prefixes,
            absolute=options.absolute,
            on=options.on,
            dead=options.dead,
            chance=options.chance,
            chance_draws=options.chance_draws,
            orientation=options.orientation,
            progress=progress,
        )
    result = add_command(result, line)
    report.show(result)
    write_files(result, options)
    return 0


COMMAND = Command(
    "compare",
    "Measure how consistent SAEs are, whoever trained them: every pair, beside its chance level.",
    CompareOptions,
    run,
    examples=(
        "osae compare runs/mine",
        "osae compare a b --data acts --json c.json --html c.html",
        "osae compare decoder.npy hf:user/repo/subfolder --prefixes 16,64",
    ),
)
