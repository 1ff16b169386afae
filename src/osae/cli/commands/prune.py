"""`osae prune`: an SAE of only the units that other training runs find too."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osae.cli.command import Command
from osae.cli.inputs import check_present
from osae.cli.outputs import add_command, check_files, check_new_folder, write_files
from osae.cli.shared_options import DATA, SAE, SAE_OR_RUN, ResultFiles
from osae.cli.terminal import Progress
from osae.options import option


@dataclass(frozen=True, kw_only=True)
class PruneOptions(ResultFiles):
    """What to prune, and by what."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    data: Path = option(f"order units, and measure what is lost, on {DATA}", metavar="DATA")
    out: Path = option("new folder for the SAE that is left, in osae's format", metavar="DIR")
    keep: Literal["reproducible"] = option("what to keep", default="reproducible")
    least: float = option(
        "share of the other SAEs that a unit must be found again in more than", default=0.5, least=0
    )
    others: tuple[str, ...] = option(
        f"SAEs to find units in: {SAE_OR_RUN}",
        default=(),
        metavar="SAE,...",
        shown="those of its recipe in its run",
    )
    scores: Path | None = option(
        "JSON file of `osae compare` or `osae trust` with the scores of its units",
        default=None,
        metavar="FILE",
        shown="compare now",
    )
    model: str = option(
        "language model for the cross-entropy: a folder or name, auto for that of the activations, or none",
        default="auto",
    )
    tokens: int = option("predictions that the cross-entropy is the mean of", default=20_000, least=1)
    device: str = option("where the language model runs", default="auto")


def run(options: PruneOptions, line: str) -> int:
    """Prune the SAE, print what it loses and save what is left."""
    check_new_folder(options.out)
    check_files((options.json, options.csv, options.html))
    check_present(options.sae, options.data, options.scores, *options.others)
    from osae import report
    from osae.studies.prune import prune

    with Progress("osae prune") as progress:
        result = prune(
            options.sae,
            options.data,
            others=options.others,
            scores=options.scores,
            keep=options.keep,
            least=options.least,
            model=options.model,
            tokens=options.tokens,
            device=options.device,
            progress=progress,
        )
    result = add_command(result, line)
    result.save(options.out)
    report.show(result)
    write_files(result, options)
    print(options.out)
    return 0


COMMAND = Command(
    "prune",
    "Make an SAE of only the units that other training runs find too, in canonical order.",
    PruneOptions,
    run,
    examples=(
        "osae prune runs/mine/topk-seed0 --keep reproducible --data acts --out pruned",
        "osae prune SAE --scores trust.json --data acts --out pruned",
    ),
)
