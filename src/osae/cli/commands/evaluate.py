"""`osae evaluate`: how well SAEs of any library reconstruct activations, and what that costs the model."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_evaluation
from osae.cli.outputs import check_study, finish_study
from osae.cli.shared_options import (
    DATA,
    SAE_OR_RUN,
    ResultFiles,
    own_model_option,
    predictions_option,
    prefixes_option,
    refuse_without_model,
)
from osae.cli.terminal import Progress
from osae.files import read_json
from osae.options import device_option, option, refuse
from osae.stores import Place, is_remote

LANGUAGE_ONLY = ("text", "tokens", "device")  # options that apply to the cross-entropy only


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ResultFiles):
    """What to evaluate, and on what."""

    saes: tuple[str, ...] = option(SAE_OR_RUN, positional=True, metavar="SAE", entries="words")
    data: Place = option(f"held-out {DATA}", metavar="DATA")
    prefixes: tuple[int, ...] | None = prefixes_option(
        "additional prefix lengths (1, 2, 4, ... and all units are always included)"
    )
    model: str = own_model_option("the cross-entropy")
    text: tuple[str, ...] = option(
        "text files or patterns for the cross-entropy",
        default=(),
        metavar="FILE",
        entries="words",
        shown="the text that the activations were taken from",
    )
    tokens: int = predictions_option()
    device: str = device_option("run the language model")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without_model(self, LANGUAGE_ONLY, "cross-entropy")


def _check_language(options: EvaluateOptions) -> None:
    """Raise `ValueError` if options for the language model are given and there is none to run."""
    if is_remote(options.data):
        return  # it is looked up later
    if options.model == "auto" and not _names_model(Path(options.data) / "manifest.json"):
        why = f"has no effect: {options.data} does not name a language model. Remove it."
        refuse(options, LANGUAGE_ONLY, why)


def _names_model(manifest: Path) -> bool:
    try:
        return "harvest" in read_json(manifest)
    except (OSError, ValueError, TypeError):  # damage is reported when the data are opened
        return False


def run(options: EvaluateOptions, line: str) -> int:
    """Evaluate the SAEs, print the tables and write the files."""
    check_study(options, *options.saes, options.data)
    _check_language(options)
    from osae.studies.evaluate import evaluate
    from osae.studies.subjects import open_subjects

    saes = open_subjects(options.saes)
    announce_evaluation(saes, options.data)
    with Progress("osae evaluate") as progress:
        result = evaluate(
            saes,
            options.data,
            prefixes=options.prefixes or (),
            model=options.model,
            text=options.text,
            tokens=options.tokens,
            device=options.device,
            progress=progress,
            announce=lambda language: announce_evaluation(saes, options.data, language),
        )
    return finish_study(result, line, files=options)


COMMAND = Command(
    "evaluate",
    "Measure how well SAEs reconstruct held-out activations, and what that costs the model.",
    EvaluateOptions,
    run,
    examples=(
        "osae evaluate runs/mine --data acts-held-out",
        "osae evaluate a b --data acts-held-out --model none --csv e.csv",
    ),
)
