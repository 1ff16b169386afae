"""The contents of a path: one weight file, its entries by name, and the JSON next to it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osae.files import file_sha256, read_json
from osae.interop import weights

CONFIGS = ("sae.json", "cfg.json", "config.json", "hyperparams.json")
# names that libraries give to their weights; these take precedence over any other file in the folder
WEIGHTS = (
    "sae_weights.safetensors",  # before sparsify's, which is next to it in repositories written by osae
    "sae.safetensors",
    "ae.pt",
    "sae.pt",
    "sae_weights.pt",
    "params.npz",
    "params.safetensors",
    "checkpoints/pruned.safetensors",
    "checkpoints/final.safetensors",
)
CHECKPOINTS = "checkpoints"  # a folder of weights whose JSON is in the parent folder
SHOWN = 8  # names listed in a message
_BELOW = ("*/", "*/*/", "*/*/*/")  # how deep a folder without weights is searched for folders with some


@dataclass(frozen=True)
class Found:
    """A weight file, its entries, and the JSON next to it (empty if there is none)."""

    file: Path
    entries: dict[str, Any]
    config: dict[str, Any]

    def __contains__(self, name: str) -> bool:
        return isinstance(self.entries.get(name), Tensor)

    def has(self, *names: str) -> bool:
        """Return whether there is a tensor with each name."""
        return all(name in self for name in names)

    def matrix(self, name: str) -> Tensor:
        """Return the matrix with this name in single precision."""
        return self._floats(name, 2)

    def vector(self, name: str) -> Tensor:
        """Return the vector with this name in single precision."""
        return self._floats(name, 1)

    def scalar(self, name: str) -> float:
        """Return the number with this name: a tensor with one entry, or a plain number."""
        if name not in self:
            return number(self.entries, name)
        return float(self._floats(name, 0))

    def _floats(self, name: str, dimensions: int) -> Tensor:
        if name not in self:
            there = ", ".join(sorted(self.entries)[:SHOWN]) or "nothing"
            raise ValueError(f"{self.file.name} has no tensor {name!r}: it contains {there}.")
        tensor = self.entries[name]
        if not tensor.is_floating_point():
            raise ValueError(f"{name!r} contains {tensor.dtype}: weights must be floating-point numbers.")
        if tensor.ndim != dimensions or 0 in tensor.shape:
            kind = ("a number", "a vector", "a matrix")[dimensions]
            raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}: {kind} is required.")
        return check_finite(name, tensor.detach().to(torch.float32))

    @cached_property
    def sha256(self) -> str:
        """Return the digest of the weight file."""
        return file_sha256(self.file)


def find(path: Path) -> Found:
    """Return the weights and the JSON at the path, which is a weight file or a folder that contains one."""
    if not path.exists():
        raise ValueError("there is no such file or folder.")
    file = _weights_in(path) if path.is_dir() else path
    return Found(file, weights.read_entries(file), _config_beside(file))


def _weights_in(folder: Path) -> Path:
    """Return the weight file in a folder; raise `ValueError` if there is none, or more than one."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    files = sorted(child for child in folder.iterdir() if child.suffix in weights.READERS and child.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        raise ValueError(f"it contains several weight files: give one of {_list_names(files)}.")
    below = sorted(
        {child.parent for depth in _BELOW for name in WEIGHTS for child in folder.glob(depth + name)}
    )
    if below:
        raise ValueError(
            f"it contains no SAE itself: give one of its folders {_list_names(below, relative_to=folder)}."
        )
    raise ValueError(f"it contains no weights: give a folder with a {', '.join(weights.READERS)} file.")


def _list_names(paths: list[Path], *, relative_to: Path | None = None) -> str:
    names = [str(path.relative_to(relative_to)) if relative_to else path.name for path in paths]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _config_beside(file: Path) -> dict[str, Any]:
    """Return the JSON that belongs to a weight file."""
    folders = [file.parent, file.parent.parent] if file.parent.name == CHECKPOINTS else [file.parent]
    names = CONFIGS if file.name == "sae.safetensors" else CONFIGS[1:]
    for config in (folder / name for folder in folders for name in names):
        if config.is_file():
            return json_object(config)
    return {}


def json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    held = read_json(path)
    if not isinstance(held, dict):
        raise ValueError(f"{path.name} contains a {type(held).__name__}: a JSON object is required.")
    return held


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor itself; raise `ValueError` if it contains NaN or infinity."""
    # Summing is faster than testing every entry: any such value makes the sum non-finite, as may overflow.
    if bool(tensor.sum().isfinite()):
        return tensor
    if bad := int((~tensor.isfinite()).sum()):
        raise ValueError(f"{name!r} contains {bad} values that are NaN or infinite: the file is damaged.")
    return tensor


def inside(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object with this name in a config; empty if there is none."""
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def agree(config: dict[str, Any], sizes: dict[str, int]) -> None:
    """Raise `ValueError` if the configuration states a size that the weights do not have."""
    for name, actual in sizes.items():
        if config.get(name) is not None and (stated := number(config, name)) != actual:
            raise ValueError(
                f"its configuration says {name}={stated:g}, but its weights have {actual}: one of them is "
                "wrong."
            )


def number(config: dict[str, Any], name: str) -> float:
    """Return the number with this name in a config."""
    value = config.get(name)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f"{name!r} is {_short(value)}: a number is required.")
    return float(value)


def count(config: dict[str, Any], name: str) -> int:
    """Return the positive integer with this name in a config."""
    value = number(config, name)
    if value < 1 or value != int(value):
        raise ValueError(f"{name!r} is {value:g}: a positive whole number is required.")
    return int(value)


def flag(config: dict[str, Any], name: str, *, default: bool) -> bool:
    """Return the flag with this name in a config."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name!r} is {_short(value)}: true or false is required.")
    return value


def word(config: dict[str, Any], name: str, *, default: str) -> str:
    """Return the string with this name in a config, in lower case."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {_short(value)}: a string is required.")
    return value.lower()


def _short(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
