"""What every exporter needs: the parameters as plain tensors, where the SAE comes from, files to write."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from osae.files import atomic_write
from osae.interop.place import Place
from osae.model import SAE
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

Files = dict[str, dict[str, Any]]  # by file name: a state_dict, or the content of a JSON file
Familiar = ReLU | TopK | BatchTopK | JumpReLU  # sparsifiers that other libraries have as well


@dataclass(frozen=True)
class Origin:
    """Where an exported SAE comes from, for the fields that a library has for that.

    `config` is the JSON of the file that it was made from, if that was in the format that is written.
    """

    provenance: dict[str, Any]
    place: Place = field(default_factory=Place)
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def collect_tensors(sae: SAE) -> dict[str, Tensor]:
    """Return the SAE's parameters by name, in single precision, each in memory of its own."""
    return {name: value.detach().float().cpu().clone() for name, value in sae.state_dict().items()}


def require_familiar(sae: SAE, library: str) -> Familiar:
    """Return the sparsifier; raise `ValueError` if it is one that other libraries do not have."""
    sparsifier = sae.config.sparsifier
    if not isinstance(sparsifier, Familiar):
        kind = type(sparsifier).__name__
        raise ValueError(f"{library} has no {kind}: its selection would be lost; convert to osae instead.")
    return sparsifier


def check_unscaled(sae: SAE, library: str) -> None:
    """Raise `ValueError` for an SAE that scales each input on its own: not every library can do that."""
    if sae.config.scaling is not None:
        raise ValueError(
            f"{library} scales no inputs: {sae.config.scaling} would be lost; convert to saelens or osae."
        )


def check_thresholds(sae: SAE) -> None:
    """Raise `ValueError` for a JumpReLU whose units may fire below zero: no other library allows that."""
    below = int((sae.threshold < 0).sum()) if isinstance(sae.config.sparsifier, JumpReLU) else 0
    if below:
        raise ValueError(
            f"{below} thresholds are negative, and values below 0 would be lost: clamp the thresholds at 0."
        )


def store(files: Files, folder: Path) -> None:
    """Write the files into the folder in the order given, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_write(folder / name) as path:
            match Path(name).suffix:
                case ".safetensors":
                    save_file(content, path)
                case ".pt":
                    with open(path, "wb") as file:  # given a path, torch would store its name in the file
                        torch.save(content, file)
                case _:
                    path.write_text(json.dumps(content, indent=2) + "\n")
