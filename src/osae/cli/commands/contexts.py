"""`osae contexts`: where the units of SAEs fire."""

from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.inputs import HUB, check_present
from osae.cli.outputs import check_folder
from osae.cli.shared_options import MODEL, SAE_OR_RUN
from osae.cli.terminal import Progress
from osae.options import Options, device_option, option


@dataclass(frozen=True, kw_only=True)
class ContextsOptions(Options):
    """The SAEs, the text that they are run on, and what to keep of each unit."""

    saes: tuple[str, ...] = option(SAE_OR_RUN, positional=True, metavar="SAE", entries="words")
    data: Path = option("activations with their text: a folder from `osae harvest`", metavar="DATA")
    out: Path | None = option(
        "folder that gets a folder for each SAE",
        default=None,
        metavar="DIR",
        shown="contexts/ in the folder of each SAE",
    )
    top: int = option("contexts with the strongest activations to keep of each unit", default=12, least=1)
    random: int = option("contexts drawn at random to keep of each unit", default=4, least=0)
    before: int = option("tokens to keep before the one that a unit fires on", default=16, least=0)
    after: int = option("tokens to keep after it", default=8, least=0)
    model: str = option(
        "language model for the logit lens; auto: the one that the activations are from",
        default="auto",
        metavar=f"auto|none|{MODEL}",
    )
    device: str = device_option("run the language model")


def run(options: ContextsOptions, line: str) -> int:
    """Collect the contexts, print what they are of and where they are."""
    check_present(*options.saes, options.data)
    for folder in _list_folders(options):
        check_folder(folder)
    from osae import report
    from osae.studies.contexts import contexts

    with Progress("osae contexts") as progress:
        found = contexts(
            options.saes,
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
    """Return the folders to write to, as far as they are known before the SAEs are read."""
    from osae.context_files import folder_of

    if options.out is not None:
        return [options.out]
    return [folder_of(Path(sae)) for sae in options.saes if not sae.startswith(HUB)]


COMMAND = Command(
    "contexts",
    "Find the text on which each unit fires, to look at on a page.",
    ContextsOptions,
    run,
    examples=(
        "osae contexts runs/mine --data acts",
        "osae contexts a.safetensors b.safetensors --data acts --out contexts",
    ),
    notes="Run the same command again to resume after an interruption.",
    resumable=True,
)
