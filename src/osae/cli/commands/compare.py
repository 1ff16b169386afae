"""`osae compare`: how consistent SAEs from any library are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osae.cli import startup
from osae.cli.command import Command
from osae.cli.forecasting import announce_comparison
from osae.cli.inputs import check_several
from osae.cli.outputs import check_study, finish_study
from osae.cli.shared_options import (
    DATA,
    FILES,
    SAE_OR_RUN,
    ResultFiles,
    orientation_option,
    prefixes_option,
)
from osae.cli.terminal import Progress
from osae.interop.formats import Orientation
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
        "whether zero rows, and units that never fire on --data, are included", default="keep"
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
    same: float | None = option(
        "least cosine of two units that count as the same",
        default=None,
        shown="0.894: they share twice of what they differ in",
        least=0,
    )
    orientation: Orientation | None = orientation_option()
    units: Path | None = option(
        "write a table of every unit to this CSV file", default=None, metavar="FILE", group=FILES
    )


def run(options: CompareOptions, line: str) -> int:
    """Compare the SAEs, print the tables and write the files."""
    check_study(options, *options.saes, options.data, more=(options.units,))
    check_several(options.saes)
    startup.leave_a_core()
    from osae import compare

    startup.freeze_imports()
    from osae.studies.subjects import open_subjects

    saes = open_subjects(options.saes, options.orientation)
    announce_comparison(saes, options.data, chance=options.chance_draws != 0)
    with Progress("osae compare") as progress:
        result = compare(
            saes,
            data=options.data,
            prefixes=options.prefixes,
            absolute=options.absolute,
            on=options.on,
            dead=options.dead,
            chance=options.chance,
            chance_draws=options.chance_draws,
            **({} if options.same is None else {"same": options.same}),
            orientation=None,  # applied when the SAEs were opened
            progress=progress,
        )
    finish_study(result, options, line)
    if options.units and result.units:
        result.units.to_csv(options.units)
        print(options.units)
    return 0


COMMAND = Command(
    "compare",
    "Measure how consistent SAEs from any library are: every pair, with its chance level.",
    CompareOptions,
    run,
    examples=(
        "osae compare runs/mine",
        "osae compare a b --data acts --json c.json --html c.html",
        "osae compare a b c --data acts --units units.csv",
        "osae compare decoder.npy hf:user/repo/subfolder --prefixes 16,64",
    ),
)
