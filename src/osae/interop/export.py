"""What every exporter needs: the parameters as plain tensors, where the SAE comes from, whole files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from osae.files import atomic_write
from osae.model import SAE
from osae.sparsify import JumpReLU

Files = dict[str, dict[str, Any]]  # by file name: a state_dict, or what is in the JSON


@dataclass(frozen=True)
class Origin:
    """Where an exported SAE comes from; `model` and `layer` fill the fields that peers have for them."""

    provenance: dict[str, Any]
    model: str | None = None
    layer: int | None = None


def collect_tensors(sae: SAE) -> dict[str, Tensor]:
    """The SAE's parameters by name, in single precision, each with memory of its own."""
    return {name: value.detach().float().cpu().clone() for name, value in sae.state_dict().items()}


def check_thresholds(sae: SAE) -> None:
    """Refuses a JumpReLU whose units may speak below zero, which no peer's can."""
    below = int((sae.threshold < 0).sum()) if isinstance(sae.config.sparsifier, JumpReLU) else 0
    if below:
        raise ValueError(
            f"{below} thresholds are negative, and values below 0 would be lost: clamp the thresholds at 0."
        )


def store(files: Files, folder: Path) -> None:
    """The files in the folder, each written whole or not at all, in the order given."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_write(folder / name) as path:
            match Path(name).suffix:
                case ".safetensors":
                    save_file(content, path)
                case ".pt":
                    with open(path, "wb") as file:  # given a path, torch would put its name into the file
                        torch.save(content, file)
                case _:
                    path.write_text(json.dumps(content, indent=2) + "\n")
