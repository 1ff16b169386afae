"""`osae convert`: write an SAE in the format of another library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osae.cli.command import Command
from osae.cli.forecasting import announce_conversion, announce_dashboards
from osae.cli.inputs import check_present
from osae.cli.outputs import check_new_folder
from osae.cli.shared_options import SAE, layer_option, model_name_option, orientation_option
from osae.interop.formats import DESCRIBED, Orientation, Target
from osae.options import Options, option, refuse
from osae.stores import Place

NEURONPEDIA = "neuronpedia"
To = Literal[Target, "neuronpedia"]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """What to convert, and to which format."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    out: Place = option("new or empty folder", positional=True, metavar="OUT")
    to: To = option("target library, or neuronpedia: dashboards of all units, to be uploaded there")
    model: str | None = model_name_option()
    layer: int | None = layer_option()
    orientation: Orientation | None = orientation_option()
    contexts: Path | None = option(
        "contexts of the SAE from `osae contexts`, for --to neuronpedia",
        default=None,
        metavar="DIR",
        shown="those that are kept with the SAE",
    )
    source_set: str | None = option(
        "name of the set of SAEs, such as res-osae, for --to neuronpedia", default=None, metavar="NAME"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to == NEURONPEDIA:
            refuse(self, ("orientation",), "applies to bare decoders only: leave it out.")
            for flag in ("model", "layer", "source_set"):
                if getattr(self, flag) is None:
                    raise ValueError(f"--to neuronpedia needs --{flag.replace('_', '-')}: give it.")
            return
        refuse(self, ("contexts", "source_set"), "applies to --to neuronpedia only: remove it.")
        if self.to not in DESCRIBED:
            refuse(self, ("model", "layer"), f"cannot be stored with --to {self.to}: remove it.")


def run(options: ConvertOptions, line: str) -> int:
    """Convert the SAE and print notes about the conversion."""
    check_new_folder(options.out)
    check_present(options.sae)
    if options.to == NEURONPEDIA:
        return _write_dashboards(options)
    from osae.report.text import visible
    from osae.studies.convert import convert
    from osae.studies.subjects import open_subject

    loaded = open_subject(options.sae, options.orientation)
    announce_conversion(loaded, options.out)
    convert(loaded, options.out, to=options.to, model=options.model, layer=options.layer)
    for note in loaded.notes:
        print(f"- {visible(note)}")
    print(options.out)
    return 0


def _write_dashboards(options: ConvertOptions) -> int:
    """Write what is uploaded to Neuronpedia, and print where it is."""
    from osae.context_files import folder_of
    from osae.integrations.neuronpedia import write_neuronpedia
    from osae.stores import new_folder

    assert options.model is not None
    assert options.layer is not None
    assert options.source_set is not None
    contexts = options.contexts or folder_of(Path(options.sae))
    announce_dashboards(contexts, options.out)
    with new_folder(options.out) as folder:
        write_neuronpedia(
            contexts,
            folder,
            model=options.model,
            layer=options.layer,
            source_set=options.source_set,
            sae=options.sae,
        )
    print(options.out)
    return 0


COMMAND = Command(
    "convert",
    "Write an SAE in the format of another library; fails if anything would be lost.",
    ConvertOptions,
    run,
    examples=(
        "osae convert runs/mine/osae-seed0 out --to saelens --model pythia-70m --layer 3",
        "osae convert runs/mine/osae-seed0 out --to neuronpedia --model gpt2-small --layer 5 "
        "--source-set res-osae",
    ),
)
