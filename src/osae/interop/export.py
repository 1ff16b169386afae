"""What every exporter needs: the parameters as plain tensors, the origin of the SAE, and files to write."""

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
Familiar = ReLU | TopK | BatchTopK | JumpReLU  # sparsifiers that other libraries support


@dataclass(frozen=True)
class Origin:
    """The origin of an exported SAE, for the corresponding fields of a library.

    `config` is the JSON of the original file, if it is in the target format.
    """

    provenance: dict[str, Any]
    place: Place = field(default_factory=Place)
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def collect_tensors(sae: SAE) -> dict[str, Tensor]:
    """Return the SAE's parameters by name, in single precision, without shared memory."""
    return {name: value.detach().float().cpu().clone() for name, value in sae.state_dict().items()}


def require_familiar(sae: SAE, library: str) -> Familiar:
    """Return the sparsifier; raise `ValueError` if other libraries do not support it."""
    sparsifier = sae.config.sparsifier
    if not isinstance(sparsifier, Familiar):
        kind = type(sparsifier).__name__
        raise ValueError(
            f"{library} does not support {kind}, so the selection would be lost: convert to osae instead."
        )
    return sparsifier


def check_unscaled(sae: SAE, library: str) -> None:
    """Raise `ValueError` if the SAE scales each input separately, which not every library supports."""
    if sae.config.scaling is not None:
        raise ValueError(
            f"{library} does not scale inputs, so {sae.config.scaling} would be lost: convert to saelens or "
            "osae."
        )


def check_thresholds(sae: SAE) -> None:
    """Raise `ValueError` for a JumpReLU whose units may fire below zero, which no other library allows."""
    below = int((sae.threshold < 0).sum()) if isinstance(sae.config.sparsifier, JumpReLU) else 0
    if below:
        raise ValueError(
            f"{below} thresholds are negative, so values below 0 would be lost: clamp the thresholds at 0."
        )


def store(files: Files, folder: Path) -> None:
    """Write the files to the folder in the given order, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_write(folder / name) as path:
            match Path(name).suffix:
                case ".safetensors":
                    save_file(content, path)
                case ".pt":
                    with open(path, "wb") as file:  # if given a path, torch would store its name in the file
                        torch.save(content, file)
                case _:
                    path.write_text(json.dumps(content, indent=2) + "\n")
