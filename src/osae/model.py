"""A sparse autoencoder: linear encoder, sparsifier, decoder.

Shapes: d width, K units, k entries in a code. Encoder and decoder are both K x d, one row per unit.

    pre = (x - b) E^T + c        code = sparsify(pre)        x_hat = sum_j z_j d_j + b
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osae import kernels
from osae.config import from_json, later, to_json, variant
from osae.files import atomic_write, file_sha256, read_json, seal
from osae.scaling import InputScaling, LayerNorm, measure_scale
from osae.sparsify import (
    BatchTopK,
    Code,
    JumpReLU,
    Linear,
    ReLU,
    Sparsifier,
    TopK,
    dense_code,
    jump,
    pad_code,
    starting_threshold,
)

SCHEMA = 1


@variant
@dataclass(frozen=True)
class SAEConfig:
    """The independent choices that make up an SAE; how it is trained is up to the recipe.

    `scaling` is for SAEs of other libraries: training here scales all inputs by one number, and folds it.
    """

    width: int
    units: int
    sparsifier: Sparsifier
    encoder_bias: bool = True
    decoder_bias: bool = True
    scaling: InputScaling = later(None)

    def __post_init__(self):
        if self.width < 1 or self.units < 1:
            raise ValueError(f"width={self.width}, units={self.units}: both must be at least 1.")
        k = getattr(self.sparsifier, "k", None)
        if k is not None and not 1 <= k <= self.units:
            raise ValueError(f"k={k} active units of {self.units}: ask for 1 to {self.units}.")
        if isinstance(self.scaling, LayerNorm) and self.width < 2:
            raise ValueError("inputs of width 1 have no standard deviation: a LayerNorm needs width 2.")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the SAE, by name."""
        matrix, per_unit = (self.units, self.width), (self.units,)
        vectors = {"encoder_bias": per_unit, "decoder_bias": (self.width,), "threshold": per_unit}
        return {"decoder": matrix, "encoder": matrix, **vectors}

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Drop the choices that release 0.1.0 kept here and that now belong to the recipe."""
        return {key: value for key, value in data.items() if key not in ("prefix", "revival", "tied")}


class Output(NamedTuple):
    """What an SAE returns: the reconstruction of each row and its code."""

    reconstruction: Float[Tensor, "*batch d"]
    code: Code


class SAE(nn.Module):
    """x_hat = b + sum_j z_j d_j with z = sparsify(E (x - b) + c); `print` shows the composition."""

    def __init__(
        self,
        config: SAEConfig,
        *,
        generator: torch.Generator | None = None,
        atoms: Float[Tensor, "K d"] | None = None,
    ):
        """Start from these atoms, or from random unit atoms; the encoder starts as a copy of them."""
        super().__init__()
        self.config = config
        if atoms is None:
            noise = torch.randn(config.units, config.width, generator=generator)
            atoms = nn.functional.normalize(noise, dim=-1)
        self.decoder = nn.Parameter(atoms)
        self.encoder = nn.Parameter(atoms.clone())
        self.encoder_bias = nn.Parameter(torch.zeros(config.units), requires_grad=config.encoder_bias)
        self.decoder_bias = nn.Parameter(torch.zeros(config.width), requires_grad=config.decoder_bias)
        level = torch.full((config.units,), starting_threshold(config.sparsifier))
        self.threshold = nn.Parameter(level, requires_grad=isinstance(config.sparsifier, JumpReLU))

    @classmethod
    def from_tensors(cls, config: SAEConfig, tensors: Mapping[str, Tensor]) -> "SAE":
        """Return the SAE with these parameters, which it takes over without a copy."""
        sae = cls(config, atoms=tensors["decoder"])
        sae.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
        return sae

    def encode(self, x: Float[Tensor, "*batch d"], *, k: int | None = None) -> Code:
        """Return the code of each row. With `k`, units are selected as in training, that many of them."""
        rows = x.reshape(-1, x.shape[-1])
        if self.config.scaling is not None:
            scale = measure_scale(self.config.scaling, rows)
            rows = (rows - scale.shift) / scale.divisor
        code = self._sparse(rows, k)
        return Code(*(part.reshape(*x.shape[:-1], part.shape[-1]) for part in code))

    def encode_dense(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch K"]:
        """Return the code of each row as a vector with one entry per unit."""
        return self.encode(x).dense(self.config.units)

    def _sparse(self, x: Float[Tensor, "B d"], k: int | None) -> Code:
        match self.config.sparsifier:
            case TopK(target):
                rows, bias = self._encoder_input(x)
                return Code(*kernels.topk_encode(rows, self.encoder, bias, k or target))
            case BatchTopK() if k is not None:
                rows, bias = self._encoder_input(x)
                return Code(*kernels.batch_topk_encode(rows, self.encoder, bias, k))
            case BatchTopK():
                pre = self.pre_activations(x - self.decoder_bias)
                return pad_code(pre * (pre > self.threshold.clamp(min=0)))
            case ReLU():
                return pad_code(self.pre_activations(x - self.decoder_bias).relu())
            case JumpReLU(_, bandwidth):
                pre = self.pre_activations(x - self.decoder_bias)
                return pad_code(jump(pre, self.threshold.clamp(min=0), bandwidth))
            case Linear():
                return dense_code(self.pre_activations(x - self.decoder_bias))
            case _:
                assert_never(self.config.sparsifier)

    def _encoder_input(self, x: Float[Tensor, "B d"]) -> tuple[Tensor, Tensor]:
        """Return rows and a bias c whose pre-activations are those of x.

        If x itself needs no gradient, b gets its gradient by way of c, which a shift of b moves by -E b: that
        is a sum over K units instead of one over B rows.
        """
        rows, bias = x - self.decoder_bias, self.encoder_bias
        if rows.requires_grad and not x.requires_grad:
            moved = self.decoder_bias - self.decoder_bias.detach()  # zero, with a gradient
            rows, bias = rows.detach(), bias - self.encoder.detach() @ moved
        return rows, bias

    def pre_activations(self, centred: Float[Tensor, "B d"]) -> Float[Tensor, "B K"]:
        """Return E (x - b) + c for rows from which b is already subtracted."""
        return centred @ self.encoder.T + self.encoder_bias

    def decode(self, code: Code, x: Float[Tensor, "*batch d"] | None = None) -> Float[Tensor, "*batch d"]:
        """Return the reconstruction of each row; an SAE that scales each input on its own also needs x."""
        code, offset = self.unscale(code, x)
        values, units = (part.reshape(-1, part.shape[-1]) for part in code)
        rows = kernels.decode(values, units, self.decoder)
        return rows.reshape(*code.values.shape[:-1], -1) + offset

    def unscale(self, code: Code, x: Float[Tensor, "*batch d"] | None) -> tuple[Code, Float[Tensor, "... d"]]:
        """Return the code in units of x, and what its atoms are added to: x_hat = offset + sum_j z_j d_j."""
        if self.config.scaling is None:
            return code, self.decoder_bias
        if x is None:
            raise ValueError("this SAE scales each input on its own: give the inputs too, decode(code, x).")
        scale = measure_scale(self.config.scaling, x)
        return Code(code.values * scale.factor, code.units), self.decoder_bias * scale.factor + scale.shift

    def forward(self, x: Float[Tensor, "*batch d"]) -> Output:
        """Return the reconstruction of each row and its code."""
        code = self.encode(x)
        return Output(self.decode(code, x), code)

    @torch.no_grad()
    def fold_scale(self, scale: float) -> "SAE":
        """Return the SAE that does to x what this one, trained on scale * x, does to scale * x."""
        assert self.config.scaling is None
        tensors = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        for name in ("encoder_bias", "decoder_bias", "threshold"):
            tensors[name].div_(scale)
        return SAE.from_tensors(self.config, tensors)

    @torch.no_grad()
    def reorder(self, order: Tensor) -> "SAE":
        """Return the same SAE with unit order[i] in place i."""
        tensors = self.state_dict()
        bias = tensors.pop("decoder_bias").clone()  # all others have one row per unit
        return SAE.from_tensors(
            self.config, {"decoder_bias": bias} | {name: rows[order] for name, rows in tensors.items()}
        )

    def save(self, folder: Path | str, *, provenance: dict | None = None) -> None:
        """Write `sae.safetensors` and `sae.json` into the folder, each of them whole or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in self.state_dict().items()}
        with atomic_write(folder / "sae.safetensors") as path:
            save_file(tensors, path)
        digest = file_sha256(folder / "sae.safetensors")
        about = {"schema": SCHEMA, "config": to_json(self.config), "sha256": digest}
        with atomic_write(folder / "sae.json") as path:
            path.write_text(json.dumps(seal(about | {"provenance": provenance or {}}), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> "SAE":
        """Return the SAE that `save` wrote into the folder; `osae.load` also reads other libraries' files."""
        folder = Path(folder)
        if not (folder / "sae.json").is_file():
            raise ValueError(
                f"{folder} has no sae.json, so it holds no SAE saved by this library: "
                f"`osae.load({str(folder)!r})` reads runs and the files of other libraries."
            )
        try:
            about = read_json(folder / "sae.json")
            tensors = load_file(folder / "sae.safetensors")
            return read_saved(about, tensors, file_sha256(folder / "sae.safetensors"))
        except (ValueError, RecursionError, SafetensorError, FileNotFoundError) as error:
            raise ValueError(" ".join(f"{folder}: {error}".split())) from error

    def extra_repr(self) -> str:
        c = self.config
        lines = [
            f"{c.width} -> {c.units} units",
            f"encoder   linear{', bias' if c.encoder_bias else ''}",
            f"sparsify  {c.sparsifier}",
            f"decoder   unit atoms{', bias' if c.decoder_bias else ''}",
        ]
        if c.scaling is not None:
            lines.insert(1, f"scaling   {c.scaling} of each input")
        return "\n".join(lines)


def read_saved(about: Any, tensors: Mapping[str, Any], sha256: str) -> SAE:
    """Return the SAE of a saved folder, given its JSON, its tensors and the digest of their file.

    Raise `ValueError` if the two do not belong together or do not describe an SAE.
    """
    schema = about.get("schema") if isinstance(about, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"sae.json has schema {str(schema)[:60]}: this release reads {SCHEMA}.")
    if about.get("sha256") != sha256:
        raise ValueError("sae.safetensors is not the file that sae.json was written for: save the SAE again.")
    config = _read_config(about.get("config"))
    wanted = {name: _check_tensor(name, tensors.get(name), shape) for name, shape in config.shapes.items()}
    return SAE.from_tensors(config, wanted)


def _read_config(data: Any) -> SAEConfig:
    try:
        config = from_json(data)
    except RecursionError as error:
        raise ValueError("the config in sae.json is nested too deeply to be an SAE's.") from error
    if not isinstance(config, SAEConfig):
        raise ValueError(f"the config in sae.json is a {type(config).__name__}: an SAEConfig is needed.")
    return config


def _check_tensor(name: str, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor in single precision; raise `ValueError` if it is missing or does not fit."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"sae.safetensors has no floating-point tensor {name!r}: save the SAE again.")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, but sae.json makes it {shape}.")
    # any such value makes the sum one too, which is quicker to see; a sum may also overflow by itself
    if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
        raise ValueError(f"{name!r} holds values that are NaN or infinite: the file is damaged.")
    return tensor.detach().float()
