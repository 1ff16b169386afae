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
from safetensors.torch import save_file
from torch import Tensor, nn

from osae import kernels
from osae.arrays import Array, as_tensor
from osae.config import from_json, later, to_json, variant
from osae.files import atomic_write, file_sha256, read_json, seal
from osae.kernels.precision import multiply
from osae.messages import one_line
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
    find_k,
    jump,
    pad_code,
    starting_threshold,
)
from osae.stores import Place, bring_files, is_remote, new_folder
from osae.tensor_files import read_tensors

SCHEMA = 1
BEFORE = "before"  # key of the previous sae.json, for the weights that are being replaced


@variant
@dataclass(frozen=True)
class SAEConfig:
    """The independent choices that make up an SAE; the recipe decides how it is trained.

    `scaling` is for SAEs of other libraries: training in osae scales all inputs by one number and folds it
    into the weights.
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
        k = find_k(self.sparsifier)
        if k is not None and not 1 <= k <= self.units:
            raise ValueError(f"k={k} active units of {self.units}: give 1 to {self.units}.")
        if isinstance(self.scaling, LayerNorm) and self.width < 2:
            raise ValueError(
                "width=1 with LayerNorm: a single number has no standard deviation; give a width of at least "
                "2."
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the SAE, by name."""
        matrix, per_unit = (self.units, self.width), (self.units,)
        vectors = {"encoder_bias": per_unit, "decoder_bias": (self.width,), "threshold": per_unit}
        return {"decoder": matrix, "encoder": matrix, **vectors}

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Drop the choices that release 0.1.0 stored here and that are now part of the recipe."""
        return {key: value for key, value in data.items() if key not in ("prefix", "revival", "tied")}


class Output(NamedTuple):
    """The output of an SAE: the reconstruction and the code of each row."""

    reconstruction: Float[Tensor, "*batch d"]
    code: Code


class SAE(nn.Module):
    """x_hat = b + sum_j z_j d_j with z = sparsify(E (x - b) + c); `print` shows the composition.

    `provenance` says how it was trained, as far as known: `save` stores it, and `load` restores it.
    """

    def __init__(
        self,
        config: SAEConfig,
        *,
        generator: torch.Generator | None = None,
        atoms: Float[Tensor, "K d"] | None = None,
    ):
        """Start from these atoms, or from random unit-norm atoms; the encoder starts as a copy of them."""
        super().__init__()
        self.config = config
        self.provenance: dict[str, Any] = {}
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
        """Return an SAE with these parameters, without copying them."""
        sae = cls(config, atoms=tensors["decoder"])
        sae.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
        return sae

    def encode(self, x: Float[Array, "*batch d"], *, k: int | None = None) -> Code:
        """Return the code of each row. With `k`, that many units are selected, as in training."""
        x = self._as_rows(x)
        rows = x.reshape(-1, x.shape[-1])
        if self.config.scaling is not None:
            scale = measure_scale(self.config.scaling, rows)
            rows = (rows - scale.shift) / scale.divisor
        code = self._sparse(rows, k)
        return Code(*(part.reshape(*x.shape[:-1], part.shape[-1]) for part in code))

    def encode_dense(self, x: Float[Array, "*batch d"]) -> Float[Tensor, "*batch K"]:
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
        """Return rows and a bias c that give the same pre-activations as x.

        If x itself needs no gradient, b gets its gradient through c, since shifting b moves c by -E b: this
        sums over K units instead of B rows.
        """
        rows, bias = x - self.decoder_bias, self.encoder_bias
        if rows.requires_grad and not x.requires_grad:
            moved = self.decoder_bias - self.decoder_bias.detach()  # zero, with a gradient
            rows, bias = rows.detach(), bias - self.encoder.detach() @ moved
        return rows, bias

    def pre_activations(self, centred: Float[Tensor, "B d"]) -> Float[Tensor, "B K"]:
        """Return E (x - b) + c for rows from which b has already been subtracted."""
        return multiply(centred, self.encoder) + self.encoder_bias

    def decode(self, code: Code, x: Float[Tensor, "*batch d"] | None = None) -> Float[Tensor, "*batch d"]:
        """Return the reconstruction of each row; an SAE that scales each input separately also needs x."""
        code, offset = self.unscale(code, x)
        values, units = (part.reshape(-1, part.shape[-1]) for part in code)
        rows = kernels.decode(values, units, self.decoder)
        return rows.reshape(*code.values.shape[:-1], -1) + offset

    def unscale(self, code: Code, x: Float[Tensor, "*batch d"] | None) -> tuple[Code, Float[Tensor, "... d"]]:
        """Return the code on the scale of x, and the offset: x_hat = offset + sum_j z_j d_j."""
        if self.config.scaling is None:
            return code, self.decoder_bias
        if x is None:
            raise ValueError(
                "this SAE scales each input separately: pass the inputs as well, decode(code, x)."
            )
        scale = measure_scale(self.config.scaling, x)
        return Code(code.values * scale.factor, code.units), self.decoder_bias * scale.factor + scale.shift

    def forward(self, x: Float[Array, "*batch d"]) -> Output:
        """Return the reconstruction of each row and its code."""
        x = self._as_rows(x)
        code = self.encode(x)
        return Output(self.decode(code, x), code)

    def _as_rows(self, x: Array) -> Tensor:
        """Return numpy arrays as tensors on the device of the weights; return tensors unchanged."""
        return x if isinstance(x, Tensor) else as_tensor(x, "x").to(self.decoder)

    @torch.no_grad()
    def fold_scale(self, scale: float) -> "SAE":
        """Return the SAE that acts on x as this one, trained on scale * x, acts on scale * x."""
        assert self.config.scaling is None
        tensors = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        for name in ("encoder_bias", "decoder_bias", "threshold"):
            tensors[name].div_(scale)
        return SAE.from_tensors(self.config, tensors)

    @torch.no_grad()
    def reorder(self, order: Tensor) -> "SAE":
        """Return the same SAE with unit order[i] at position i."""
        tensors = self.state_dict()
        bias = tensors.pop("decoder_bias").clone()  # all others have one row per unit
        return SAE.from_tensors(
            self.config, {"decoder_bias": bias} | {name: rows[order] for name, rows in tensors.items()}
        )

    def save(self, folder: Place, *, provenance: dict | None = None) -> None:
        """Write `sae.safetensors` and `sae.json` into the folder, each of them atomically.

        `provenance` replaces the SAE's own. If the folder already contains an SAE and the process is killed,
        it contains either the old or the new one. On an object store, the folder must be new.
        """
        with new_folder(folder) as here:
            self._write(here, provenance)

    def _write(self, folder: Path, provenance: dict | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in self.state_dict().items()}
        before = _find_saved(folder)
        with atomic_write(folder / "sae.safetensors") as path:
            save_file(tensors, path)
            about = {"schema": SCHEMA, "config": to_json(self.config), "sha256": file_sha256(path)}
            about["provenance"] = self.provenance if provenance is None else provenance
            if before is not None:  # valid until the weights are replaced
                _write_about(folder, about | {BEFORE: before})
        _write_about(folder, about)

    @classmethod
    def load(cls, folder: Path | str) -> "SAE":
        """Return the SAE that `save` wrote to the folder; `osae.load` also reads files of other libraries."""
        if is_remote(folder):
            folder = bring_files(str(folder), ("sae.json", "sae.safetensors"))
        folder = Path(folder)
        if not (folder / "sae.json").is_file():
            raise ValueError(
                f"{folder} has no sae.json, so it was not saved by osae: "
                f"`osae.load({str(folder)!r})` reads runs and files of other libraries."
            )
        try:
            about = read_json(folder / "sae.json")
            tensors = read_tensors(folder / "sae.safetensors")
            return read_saved(about, tensors, file_sha256(folder / "sae.safetensors"))
        except (ValueError, RecursionError, SafetensorError, FileNotFoundError) as error:
            raise ValueError(one_line(f"{folder}: {error}")) from error

    def extra_repr(self) -> str:
        c = self.config
        lines = [
            f"{c.width} -> {c.units} units",
            f"encoder   {c.units} x {c.width}{', bias' if c.encoder_bias else ''}",
            f"sparsify  {c.sparsifier}",
            f"decoder   {c.units} atoms{', bias' if c.decoder_bias else ''}",
        ]
        if c.scaling is not None:
            lines.insert(1, f"scaling   {c.scaling} of each input")
        return "\n".join(lines)


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    with atomic_write(folder / "sae.json") as path:
        path.write_text(json.dumps(seal(about), indent=2) + "\n")


def _find_saved(folder: Path) -> dict[str, Any] | None:
    """Return the content of sae.json that describes the weights in the folder.

    None if the two do not match.
    """
    try:
        sha256 = file_sha256(folder / "sae.safetensors")
        about = choose_saved(read_json(folder / "sae.json"), sha256)
    except (OSError, ValueError):
        return None
    return {key: value for key, value in about.items() if key != BEFORE} if isinstance(about, dict) else None


def choose_saved(about: Any, sha256: str) -> Any:
    """Return the content of sae.json for weights with this digest, which may be the ones being replaced."""
    before = about.get(BEFORE) if isinstance(about, dict) else None
    is_before = isinstance(before, dict) and before.get("sha256") == sha256 != about.get("sha256")
    return before if is_before else about


def read_saved(about: Any, tensors: Mapping[str, Any], sha256: str) -> SAE:
    """Return the SAE of a saved folder, given its JSON, its tensors and the digest of their file.

    Raise `ValueError` if the two do not match or do not describe an SAE.
    """
    about = choose_saved(about, sha256)
    schema = about.get("schema") if isinstance(about, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"sae.json has schema {str(schema)[:60]}: this release reads {SCHEMA}.")
    if about.get("sha256") != sha256:
        raise ValueError("sae.safetensors is not the file that sae.json was written for: save the SAE again.")
    config = _read_config(about.get("config"))
    wanted = {name: _check_tensor(name, tensors.get(name), shape) for name, shape in config.shapes.items()}
    sae = SAE.from_tensors(config, wanted)
    said = about.get("provenance")
    sae.provenance = said if isinstance(said, dict) else {}
    return sae


def _read_config(data: Any) -> SAEConfig:
    try:
        config = from_json(data)
    except RecursionError as error:
        raise ValueError("the config in sae.json is nested too deeply: save the SAE again.") from error
    if not isinstance(config, SAEConfig):
        raise ValueError(f"the config in sae.json is a {type(config).__name__}: an SAEConfig is required.")
    return config


def _check_tensor(name: str, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor in single precision; raise `ValueError` if it is missing or does not fit."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"sae.safetensors has no floating-point tensor {name!r}: save the SAE again.")
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, but sae.json requires {shape}: save the SAE again."
        )
    # any such value makes the sum non-finite, which is faster to check; a sum may also overflow by itself
    if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
        raise ValueError(f"{name!r} contains NaN or infinity: the file is damaged.")
    return tensor.detach().float()
