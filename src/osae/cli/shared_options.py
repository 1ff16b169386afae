"""Options that several commands have, each declared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osae.options import REQUIRED, Options, option

LANGUAGE = "activations of a language model"
FILES = "files"
SAE = "folder or weight file of any known library, or hf:user/repo/subfolder@revision"
SAE_OR_RUN = f"{SAE}; a run folder means all of its finished SAEs"
DATA = "activations: a folder from `osae harvest`, or a .npy or .safetensors file of rows"
MODEL = "ID_OR_FOLDER[:FILE.gguf]"


def orientation_option() -> Any:
    """Declare --orientation, for bare decoders."""
    return option(
        "whether the atoms of a bare decoder are its rows or its columns",
        default=None,
        shown="inferred from norms, else from the longer side",
    )


def prefixes_option(help: str) -> Any:
    """Declare --prefixes."""
    return option(help, default=None, metavar="auto|16,64,...", shown="auto", least=1)


def model_option(default: Any = REQUIRED) -> Any:
    """Declare --model, to take activations of."""
    return option("a causal language model", default=default, metavar=MODEL, group=LANGUAGE)


def tokens_option(default: Any = REQUIRED) -> Any:
    """Declare --tokens, the number of activations to take."""
    return option("activations to take, such as 2e6", default=default, least=1, group=LANGUAGE)


@dataclass(frozen=True, kw_only=True)
class ResultFiles(Options):
    """The files that a result is written to."""

    json: Path | None = option("write all numbers to this file", default=None, metavar="FILE", group=FILES)
    csv: Path | None = option("write a table to this file", default=None, metavar="FILE", group=FILES)
    html: Path | None = option("write a page to this file", default=None, metavar="FILE", group=FILES)
