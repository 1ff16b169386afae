"""`osae compare`: how consistent SAEs from any library are."""

from dataclasses import dataclass

from osae.cli import startup
from osae.cli.command import Command
from osae.cli.forecasting import announce_comparison
from osae.cli.inputs import check_several
from osae.cli.outputs import check_study, finish_study
from osae.cli.shared_options import (
    DATA,
    SAE_OR_RUN,
    ComparisonFiles,
    orientation_option,
    prefixes_option,
)
from osae.cli.terminal import Progress
from osae.defaults import Chance, Dead, On
from osae.interop.formats import Orientation
from osae.options import option
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ComparisonFiles):
    """What to compare, and how."""

    saes: tuple[str, ...] = option(SAE_OR_RUN, positional=True, metavar="SAE", entries="words")
    data: Place | None = option(
        f"also compare how units fire, on {DATA}", default=None, metavar="DATA", shown="compare decoders only"
    )
    prefixes: tuple[int, ...] | None = prefixes_option("prefix lengths to compare")
    on: On = option("compare the rows of this matrix", default="decoder")
    absolute: bool = option(
        "match by the absolute value of the cosine, so that opposite directions agree", default=False
    )
    dead: Dead = option("whether to include zero rows and units that never fire on --data", default="keep")
    chance: Chance = option(
        "how to draw random dictionaries for chance levels: with the mean and covariance of the atoms being "
        "compared, or isotropic",
        default="fitted",
    )
    chance_draws: int | None = option(
        "number of pairs of random dictionaries for each chance level; 0 for none",
        default=None,
        shown="depends on size",
        least=0,
    )
    same: float | None = option(
        "minimum cosine at which two units count as the same",
        default=None,
        shown="0.894, at which two units share twice as much as they differ in",
        least=0,
        below=1,
    )
    orientation: Orientation | None = orientation_option()


def run(options: CompareOptions, line: str) -> int:
    """Compare the SAEs, print the tables and write the files."""
    check_study(options, *options.saes, options.data)
    check_several(options.saes)
    startup.leave_a_core()
    startup.load_libraries()
    from osae import compare

    startup.freeze_imports()
    from osae.studies.subjects import open_subjects

    saes = open_subjects(options.saes, options.orientation)
    announce_comparison(saes, options.data, chance=options.chance_draws != 0, prefixes=options.prefixes)
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
            orientation=None,  # was applied when the SAEs were opened
            progress=progress,
        )
    return finish_study(result, line, files=options)


COMMAND = Command(
    "compare",
    "Measure how consistent SAEs from any library are, for every pair, with chance levels.",
    CompareOptions,
    run,
    examples=(
        "osae compare runs/mine",
        "osae compare a b --data acts --json c.json --html c.html",
        "osae compare a b c --data acts --units units.csv",
        "osae compare decoder.npy hf:user/repo/subfolder --prefixes 16,64",
    ),
)
