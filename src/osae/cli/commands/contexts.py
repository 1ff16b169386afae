"""`osae contexts`: the text on which the units of SAEs fire."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_contexts
from osae.cli.inputs import HUB, check_present
from osae.cli.outputs import check_folder
from osae.cli.shared_options import SAE_OR_RUN, own_model_option, refuse_without_model
from osae.cli.terminal import Progress
from osae.options import Options, device_option, option
from osae.stores import Place


@dataclass(frozen=True, kw_only=True)
class ContextsOptions(Options):
    """The SAEs, the activations with their text, and what to collect for each unit."""

    saes: tuple[str, ...] = option(SAE_OR_RUN, positional=True, metavar="SAE", entries="words")
    data: Place = option("activations with their text: a folder from `osae harvest`", metavar="DATA")
    out: Path | None = option(
        "folder in which to create a subfolder for each SAE",
        default=None,
        metavar="DIR",
        shown="contexts/ inside the folder of each SAE",
    )
    top: int = option("number of strongest contexts to keep for each unit", default=12, least=1)
    random: int = option("number of randomly drawn contexts to keep for each unit", default=4, least=0)
    before: int = option("number of tokens to keep before the one on which a unit fires", default=16, least=0)
    after: int = option("number of tokens to keep after it", default=8, least=0)
    model: str = own_model_option("the logit lens")
    device: str = device_option("run the language model")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without_model(self, ("device",), "logit lens")


def run(options: ContextsOptions, line: str) -> int:
    """Collect the contexts, then print a summary and the folder for each SAE."""
    check_present(*options.saes, options.data)
    for folder in _list_folders(options):
        check_folder(folder)
    from osae import report
    from osae.metrics.contexts import BINS
    from osae.studies.contexts import contexts
    from osae.studies.subjects import open_subjects

    saes = open_subjects(options.saes)
    announce_contexts(
        saes,
        options.data,
        kept=options.top + BINS + options.random,
        window=options.before + 1 + options.after,
        folder=next(iter(_list_folders(options)), Path()),
    )
    with Progress("osae contexts") as progress:
        found = contexts(
            saes,
            options.data,
            out=options.out,
            top=options.top,
            random=options.random,
            before=options.before,
            after=options.after,
            model=options.model,
            device=options.device,
            line=line,
            progress=progress,
        )
    for one in found:
        report.show(one.about)
        print(one.folder)
    return 0


def _list_folders(options: ContextsOptions) -> list[Path]:
    """Return the output folders, as far as they are known before the SAEs are read."""
    from osae.context_files import folder_of

    if options.out is not None:
        return [options.out]
    return [folder_of(Path(sae)) for sae in options.saes if not sae.startswith(HUB)]


COMMAND = Command(
    "contexts",
    "Collect the text on which each unit fires, for `osae report` to show.",
    ContextsOptions,
    run,
    examples=(
        "osae contexts runs/mine --data acts",
        "osae contexts a.safetensors b.safetensors --data acts --out contexts",
    ),
    notes="Run the same command again to resume after an interruption.",
    resumable=True,
)
