"""One sparse autoencoder, composed: linear encoder, sparsifier, decoder of unit atoms.

Shapes: d width, K units, k entries in a code. Encoder and decoder are both K x d, one row per unit.

    pre = (x - b) E^T + c        code = sparsify(pre)        x_hat = sum_j z_j d_j + b
"""

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osae import kernels
from osae.config import from_json, to_json, variant
from osae.files import atomic_write
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
    kth_largest,
    pad_code,
)

SCHEMA = 1


@variant
@dataclass(frozen=True)
class SAEConfig:
    """The independent choices that make an SAE; how it is trained is a matter of the recipe."""

    width: int
    units: int
    sparsifier: Sparsifier
    tied: bool = False
    encoder_bias: bool = True
    decoder_bias: bool = True

    def __post_init__(self):
        if self.width < 1 or self.units < 1:
            raise ValueError(f"width={self.width}, units={self.units}: both must be at least 1.")
        k = getattr(self.sparsifier, "k", None)
        if k is not None and not 1 <= k <= self.units:
            raise ValueError(f"k={k} active units of {self.units}: ask for 1 to {self.units}.")

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Return what release 0.1.0 wrote without the training choices, which now belong to the recipe."""
        return {key: value for key, value in data.items() if key not in ("prefix", "revival")}


class Output(NamedTuple):
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
        """Random unit atoms unless given; the encoder begins as a copy of them (as the decoder if tied)."""
        super().__init__()
        self.config = config
        if atoms is None:
            noise = torch.randn(config.units, config.width, generator=generator)
            atoms = nn.functional.normalize(noise, dim=-1)
        self.decoder = nn.Parameter(atoms)
        self.encoder = self.decoder if config.tied else nn.Parameter(atoms.clone())
        self.encoder_bias = nn.Parameter(torch.zeros(config.units), requires_grad=config.encoder_bias)
        self.decoder_bias = nn.Parameter(torch.zeros(config.width), requires_grad=config.decoder_bias)
        learned = isinstance(config.sparsifier, JumpReLU)
        level = config.sparsifier.threshold if isinstance(config.sparsifier, JumpReLU) else 0.0
        self.threshold = nn.Parameter(torch.full((config.units,), level), requires_grad=learned)

    def encode(self, x: Float[Tensor, "*batch d"], *, k: int | None = None) -> Code:
        """The code of each row. `k` selects as in training, with that many units; None as at inference."""
        code = self._sparse(x.reshape(-1, x.shape[-1]), k)
        return Code(*(part.reshape(*x.shape[:-1], part.shape[-1]) for part in code))

    def _sparse(self, x: Float[Tensor, "B d"], k: int | None) -> Code:
        match self.config.sparsifier:
            case TopK(target):
                return Code(*self._topk(x, k or target))
            case BatchTopK() if k is not None:
                return self._largest_in_batch(x, k)
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

    def _topk(self, x: Float[Tensor, "B d"], k: int) -> tuple[Tensor, Tensor]:
        """The k largest positive pre-activations of each row, and their units.

        Where x itself wants no gradient, b gets its own by way of c, which a shift of b moves by -E b: that
        takes a sum over K units in place of one over B rows.
        """
        rows, bias = x - self.decoder_bias, self.encoder_bias
        if rows.requires_grad and not x.requires_grad:
            moved = self.decoder_bias - self.decoder_bias.detach()  # zero, with a gradient
            rows, bias = rows.detach(), bias - self.encoder.detach() @ moved
        return kernels.topk_encode(rows, self.encoder, bias, k)

    def _largest_in_batch(self, x: Float[Tensor, "B d"], k: int) -> Code:
        """The B*k largest positive pre-activations of the batch.

        They are sought among the largest of each row, more of them if a row might hold further ones.
        """
        room = min(self.config.units, 4 * k)
        while True:
            values, units = self._topk(x, room)
            least = kth_largest(values, k * len(x))
            kept = (values >= least) & (values > 0)  # a row with padding holds no further ones
            if room == self.config.units or not bool(kept.all(-1).any()):
                return Code(values * kept, units)
            room = min(self.config.units, 2 * room)

    def pre_activations(self, centred: Float[Tensor, "B d"]) -> Float[Tensor, "B K"]:
        """E (x - b) + c for rows that have b subtracted already."""
        return centred @ self.encoder.T + self.encoder_bias

    def decode(self, code: Code) -> Float[Tensor, "*batch d"]:
        """The reconstruction of each row."""
        values, units = (part.reshape(-1, part.shape[-1]) for part in code)
        rows = kernels.decode(values, units, self.decoder) + self.decoder_bias
        return rows.reshape(*code.values.shape[:-1], -1)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Output:
        code = self.encode(x)
        return Output(self.decode(code), code)

    def per_unit(self) -> dict[str, nn.Parameter]:
        """The parameters that have one row per unit, each once."""
        return {name: p for name, p in self.named_parameters() if name != "decoder_bias"}

    @torch.no_grad()
    def fold_scale(self, scale: float) -> "SAE":
        """The SAE that does to x what this one, trained on scale * x, does to scale * x."""
        other = copy.deepcopy(self)
        for part in (other.encoder_bias, other.decoder_bias, other.threshold):
            part.div_(scale)
        return other

    @torch.no_grad()
    def reorder(self, order: Tensor) -> "SAE":
        """The same SAE with unit order[i] in place i."""
        other = copy.deepcopy(self)
        for part in other.per_unit().values():
            part.copy_(part[order])
        return other

    def save(self, folder: Path | str, *, provenance: dict | None = None) -> None:
        """`sae.safetensors` and `sae.json` in the folder, each written whole or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in self.state_dict().items()}
        with atomic_write(folder / "sae.safetensors") as path:
            save_file(tensors, path)
        digest = hashlib.sha256((folder / "sae.safetensors").read_bytes()).hexdigest()
        about = {"schema": SCHEMA, "config": to_json(self.config), "sha256": digest}
        with atomic_write(folder / "sae.json") as path:
            path.write_text(json.dumps(about | {"provenance": provenance or {}}, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> "SAE":
        """The SAE saved in the folder."""
        folder = Path(folder)
        about = json.loads((folder / "sae.json").read_text())
        if about.get("schema") != SCHEMA:
            raise ValueError(
                f"{folder}/sae.json has schema {about.get('schema')}: this release reads {SCHEMA}."
            )
        digest = hashlib.sha256((folder / "sae.safetensors").read_bytes()).hexdigest()
        if digest != about.get("sha256"):
            raise ValueError(f"{folder}: sae.safetensors is not the file that sae.json was written for.")
        sae = cls(from_json(about["config"]), generator=torch.Generator())
        sae.load_state_dict(load_file(folder / "sae.safetensors"))
        return sae

    def extra_repr(self) -> str:
        c = self.config
        encoder = "tied to the decoder" if c.tied else "linear"
        lines = [
            f"{c.width} -> {c.units} units",
            f"encoder   {encoder}{', bias' if c.encoder_bias else ''}",
            f"sparsify  {c.sparsifier}",
            f"decoder   unit atoms{', bias' if c.decoder_bias else ''}",
        ]
        return "\n".join(lines)
