"""`osae push`: upload SAEs to the hub, for other libraries to load."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.forecasting import announce_pushing
from osae.cli.inputs import check_present
from osae.cli.outputs import check_new_folder
from osae.cli.shared_options import SAE_OR_RUN, layer_option, model_name_option
from osae.options import Options, option, refuse


@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """What to upload, where to, and what the model card says about it."""

    sae: str = option(SAE_OR_RUN, positional=True, metavar="SAE")
    repo: str = option(
        "repository on the hub; created if it does not exist",
        positional=True,
        metavar="hf:USER/REPO",
        pattern=r"hf:[\w.-]+/[\w.-]+",
        wanted="an address such as hf:user/repo",
    )
    results: tuple[Path, ...] = option(
        "JSON files from `osae compare`, `osae trust` or `osae evaluate`, for the tables in the model card "
        "and the unit scores in the metadata",
        default=(),
        metavar="FILE,...",
    )
    model: str | None = model_name_option()
    layer: int | None = layer_option()
    license: str | None = option(
        "license of the weights, by its identifier on the hub, such as mit",
        default=None,
        pattern=r"[\w.-]+",
        metavar="NAME",
    )
    private: bool = option("create the repository as private", default=False)
    replace: bool = option("replace the current contents of the repository", default=False)
    dry_run: Path | None = option(
        "write the repository to this new or empty folder instead of uploading it",
        default=None,
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dry_run is not None:
            refuse(self, ("private", "replace"), "has no effect with --dry-run: remove it.")


def run(options: PushOptions, line: str) -> int:
    """Upload the SAEs and print the address of the commit, or write the folder and print its name."""
    if options.dry_run is not None:
        check_new_folder(options.dry_run)
    check_present(options.sae, *options.results)
    from osae.studies.push import push, write_repository
    from osae.studies.subjects import open_subjects

    saes = open_subjects(options.sae)
    announce_pushing(saes, options.dry_run or Path(tempfile.gettempdir()))
    about = {
        "results": options.results,
        "model": options.model,
        "layer": options.layer,
        "license": options.license,
    }
    if options.dry_run is not None:
        write_repository(saes, options.dry_run, options.repo, **about)
        print(options.dry_run)
        return 0
    print(push(saes, options.repo, **about, private=options.private, replace=options.replace))
    return 0


COMMAND = Command(
    "push",
    "Upload SAEs to the Hugging Face hub with a model card, for SAELens, sparsify and osae to load.",
    PushOptions,
    run,
    examples=(
        "osae push runs/mine/osae-seed0 hf:user/repo --results compare.json",
        "osae push runs/mine hf:user/repo --dry-run folder",
    ),
    notes="Log in with `hf auth login` or set HF_TOKEN. All files are uploaded in one commit, or none are.",
)
