"""`osae convert`: an SAE in the files of another library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osae.cli.command import Command
from osae.cli.outputs import check_new_folder
from osae.cli.shared_options import SAE, Orientation, orientation_option
from osae.options import Options, option

Target = Literal["saelens", "dictionary_learning", "sparsify", "osae"]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """What to convert, and into what."""

    sae: str = option(SAE, positional=True, metavar="SAE")
    out: Path = option("new or empty folder", positional=True, metavar="OUT")
    to: Target = option("the library that is to read it")
    model: str | None = option(
        "name of the model, if the file does not say or says it wrongly", default=None, metavar="NAME"
    )
    layer: int | None = option(
        "block of the model whose output the activations are, likewise", default=None, least=0
    )
    orientation: Orientation | None = orientation_option()


def run(options: ConvertOptions, line: str) -> int:
    """Convert the SAE and print what there is to know about it."""
    check_new_folder(options.out)
    from osae.report.text import visible
    from osae.studies.convert import convert

    loaded = convert(
        options.sae,
        options.out,
        to=options.to,
        model=options.model,
        layer=options.layer,
        orientation=options.orientation,
    )
    for note in loaded.notes:
        print(f"- {visible(note)}")
    print(options.out)
    return 0


COMMAND = Command(
    "convert",
    "Write an SAE in the files of another library; refused if anything would be lost.",
    ConvertOptions,
    run,
    examples=("osae convert runs/mine/osae-seed0 out --to saelens --model pythia-70m --layer 3",),
)
