"""`osae prune`: keep only the units that other training runs also find."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_evaluation, announce_pruning
from osae.cli.outputs import check_new_folder, check_study, finish_study
from osae.cli.shared_options import (
    DATA,
    SAE,
    SAE_OR_RUN,
    ResultFiles,
    own_model_option,
    predictions_option,
    refuse_without_model,
)
from osae.cli.terminal import Progress
from osae.defaults import FOUND, Keep
from osae.options import device_option, option, refuse
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class PruneOptions(ResultFiles):
    """What to prune, and by which criterion."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    data: Place = option(f"order the units and measure what pruning loses on {DATA}", metavar="DATA")
    out: Place = option("new folder for the pruned SAE, in osae's format", metavar="DIR")
    keep: Keep = option("which units to keep", default="reproducible")
    least: float = option(
        "keep units that are found again in more than this share of the other SAEs",
        default=FOUND,
        least=0,
        below=1,
    )
    others: tuple[str, ...] = option(
        f"SAEs in which to look for the units: {SAE_OR_RUN}",
        default=(),
        metavar="SAE,...",
        shown="the other SAEs of the same recipe in its run",
    )
    scores: Path | None = option(
        "JSON file from `osae compare` or `osae trust` with scores for the units",
        default=None,
        metavar="FILE",
        shown="run the comparison now",
    )
    model: str = own_model_option("the cross-entropy")
    tokens: int = predictions_option()
    device: str = device_option("run the language model")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without_model(self, ("tokens", "device"), "cross-entropy")
        if self.scores is not None:
            refuse(self, ("others",), "has no effect with --scores: remove one of the two options.")


def run(options: PruneOptions, line: str) -> int:
    """Prune the SAE, print what is lost and save the result."""
    check_new_folder(options.out)
    check_study(options, options.sae, options.data, options.scores, *options.others)
    from osae.studies.prune import find_siblings, prune
    from osae.studies.subjects import open_subject, open_subjects

    sae = open_subject(options.sae)
    others = open_subjects(options.others) if options.others else []
    if not others and options.scores is None:
        others = find_siblings(sae)
    announce_pruning(sae, others, options.data, options.out)
    with Progress("osae prune") as progress:
        result = prune(
            sae,
            options.data,
            others=others,
            scores=options.scores,
            keep=options.keep,
            least=options.least,
            model=options.model,
            tokens=options.tokens,
            device=options.device,
            progress=progress,
            announce=lambda language: announce_evaluation(
                [sae, sae], options.data, language, command="prune"
            ),
        )
    return finish_study(result, line, files=options, folder=options.out)


COMMAND = Command(
    "prune",
    "Keep only the units of an SAE that other training runs also find, in canonical order.",
    PruneOptions,
    run,
    examples=(
        "osae prune runs/mine/topk-seed0 --keep reproducible --data acts --out pruned",
        "osae prune SAE --scores trust.json --data acts --out pruned",
    ),
)
