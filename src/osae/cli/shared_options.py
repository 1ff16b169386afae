"""Options shared by several commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osae.defaults import PREDICTIONS
from osae.options import REQUIRED, Options, option, refuse

LANGUAGE = "activations of a language model"
FILES = "files"
SAE = "folder or weight file from any known library, or hf:user/repo/subfolder@revision"
SAE_OR_RUN = f"{SAE}; a run folder means all of its finished SAEs"
DATA = "activations: a folder or URL from `osae harvest`, or a .npy or .safetensors file of rows"
MODEL = "ID_OR_FOLDER[:FILE.gguf]"
RUN_OR_RESULT = "JSON file of results, folder of an experiment or a training run, or an SAE with contexts"


def orientation_option() -> Any:
    """Declare --orientation, for bare decoders."""
    return option(
        "whether the atoms of a bare decoder are its rows or its columns",
        default=None,
        shown="inferred from the norms, or else from the shape",
    )


def prefixes_option(help: str) -> Any:
    """Declare --prefixes."""
    return option(help, default=None, metavar="auto|16,64,...", shown="auto", least=1)


def model_option(default: Any = REQUIRED) -> Any:
    """Declare --model, the model to take activations from."""
    return option("causal language model", default=default, metavar=MODEL, group=LANGUAGE)


def own_model_option(use: str) -> Any:
    """Declare --model, the model that produced the activations or another one."""
    return option(
        f"language model for {use}; auto: the one that produced the activations",
        default="auto",
        metavar=f"auto|none|{MODEL}",
    )


def refuse_without_model(options: Options, names: Sequence[str], use: str) -> None:
    """Raise `ValueError` if one of these options is given although --model none skips their use."""
    if getattr(options, "model", None) == "none":
        why = f"applies to the {use}, which --model none skips: remove one of the two options."
        refuse(options, names, why)


def predictions_option() -> Any:
    """Declare --tokens, the tokens on which to measure the cross-entropy."""
    return option("tokens for the cross-entropy, such as 1e5", default=PREDICTIONS, least=1)


def tokens_option(default: Any = REQUIRED) -> Any:
    """Declare --tokens, the number of activations to take."""
    return option("number of activations to take, such as 2e6", default=default, least=1, group=LANGUAGE)


def model_name_option() -> Any:
    """Declare --model, the model that an SAE belongs to."""
    return option("name of the model, if it is missing or wrong in the file", default=None, metavar="NAME")


def layer_option() -> Any:
    """Declare --layer, the layer that an SAE belongs to."""
    return option(
        "block of the model whose output the SAE reads, if the file does not say", default=None, least=0
    )


@dataclass(frozen=True, kw_only=True)
class ResultFiles(Options):
    """Output files for a result."""

    json: Path | None = option("write all numbers to this file", default=None, metavar="FILE", group=FILES)
    csv: Path | None = option("write a table to this file", default=None, metavar="FILE", group=FILES)
    html: Path | None = option("write an HTML page to this file", default=None, metavar="FILE", group=FILES)

    def list_files(self) -> tuple[Path | None, ...]:
        """Return the files to write."""
        return self.json, self.csv, self.html


@dataclass(frozen=True, kw_only=True)
class ComparisonFiles(ResultFiles):
    """Output files for a comparison."""

    units: Path | None = option(
        "write a table of all units to this CSV file", default=None, metavar="FILE", group=FILES
    )

    def list_files(self) -> tuple[Path | None, ...]:
        return *super().list_files(), self.units
