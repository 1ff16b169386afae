"""Convert another library's parameters to an `SAE`, folding every difference into the weights exactly.

Shapes: d width, K units. Other libraries compute pre = E (x - b) + c or pre = E x + c, select units, and
decode with atoms of any norm; ours subtracts b and has unit atoms.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from osae.interop.found import check_finite
from osae.model import SAE, SAEConfig
from osae.scaling import InputScaling
from osae.sparsify import JumpReLU, Sparsifier, TopK

TRANSCODER = "it is a transcoder, which does not reconstruct its input"
Kind: TypeAlias = Literal["SAE", "transcoder"]
UNIT = 1e-5  # an atom whose norm is this close to one is left unchanged


@dataclass(frozen=True, eq=False)
class Parts:
    """Another library's SAE in osae's orientation, with nothing folded yet.

    `pre_bias`: b is subtracted before encoding. `ranks_by_norm`: units are selected by pre times the norm of
    the atom. Units fire above `threshold`, which only JumpReLU and BatchTopK use. `scaling` is applied to
    each input first, and undone last.
    """

    encoder: Tensor
    decoder: Tensor
    encoder_bias: Tensor
    decoder_bias: Tensor
    sparsifier: Sparsifier
    threshold: Tensor | None = None
    pre_bias: bool = True
    ranks_by_norm: bool = False
    scaling: InputScaling = None
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        units, width = self.decoder.shape
        wanted = {"encoder": (units, width), "encoder_bias": (units,), "decoder_bias": (width,)}
        if self.threshold is not None:
            wanted["threshold"] = (units,)
        for name, shape in wanted.items():
            if (given := tuple(getattr(self, name).shape)) != shape:
                raise ValueError(
                    f"the {name} is {given}, but a decoder of {units} units and width {width} needs {shape}."
                )

    def with_note(self, note: str) -> "Parts":
        """Return the same parts with one more note."""
        return replace(self, notes=(*self.notes, note))


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices of an SAE that osae cannot run, and the reason."""

    decoder: Tensor
    encoder: Tensor | None
    why: str
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Return what it is, as far as its file says."""
        return "transcoder" if self.why.startswith(TRANSCODER) else "SAE"


def from_gated(
    weight: Tensor, r_mag: Tensor, gate_bias: Tensor, mag_bias: Tensor, decoder: Tensor, decoder_bias: Tensor
) -> Parts:
    """Return a gated SAE as an equivalent JumpReLU.

    With a = W (x - b): the gate a + g > 0 opens where exp(r) a + m > m - exp(r) g, so a unit of magnitude
    exp(r) a + m fires above the threshold max(m - exp(r) g, 0).
    """
    if not len(weight) == len(r_mag) == len(gate_bias) == len(mag_bias):
        raise ValueError(f"{len(weight)} gated units have biases for {len(gate_bias)} and {len(mag_bias)}.")
    gain = r_mag.exp()
    threshold = (mag_bias - gain * gate_bias).clamp(min=0)
    return Parts(gain[:, None] * weight, decoder, mag_bias, decoder_bias, JumpReLU(), threshold)


def scale_input(parts: Parts, scale: float) -> Parts:
    """Return the parts that act on x as these, trained on scale * x, act on scale * x."""
    if not 0 < scale < float("inf"):
        raise ValueError(f"the input scale is {scale:g}: a positive number is required.")
    threshold = None if parts.threshold is None else parts.threshold / scale
    return replace(
        parts,
        encoder_bias=parts.encoder_bias / scale,
        decoder_bias=parts.decoder_bias / scale,
        threshold=threshold,
    )


def whiten_input(parts: Parts, mean: Tensor, matrix: Tensor, inverse: Tensor) -> Parts:
    """Return the parts that act on x as these act on z = (x - mean) M, undoing the map on the output.

    Units are ranked by the norms of the atoms before the map.
    """
    width = parts.decoder.shape[1]
    for name, tensor, shape in (
        ("mean", mean, (width,)),
        ("matrix", matrix, (width, width)),
        ("inverse_matrix", inverse, (width, width)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"the whitening's {name} is {tuple(tensor.shape)}, but width {width} needs {shape}."
            )
    if parts.ranks_by_norm:
        parts = replace(_normalize_atoms(parts), ranks_by_norm=False)
    encoder = parts.encoder.double() @ matrix.double().T
    shift = torch.zeros(len(encoder)) if parts.pre_bias else encoder @ mean.double()
    return replace(
        parts,
        encoder=encoder.float(),
        encoder_bias=(parts.encoder_bias - shift).float(),
        decoder=(parts.decoder.double() @ inverse.double()).float(),
        decoder_bias=(parts.decoder_bias.double() @ inverse.double() + mean).float(),
    )


def fold(parts: Parts) -> tuple[SAE, list[str]]:
    """Return the SAE equivalent to the parts, with notes."""
    parts = _normalize_atoms(parts if parts.pre_bias else _add_pre_bias(parts))
    units, width = parts.decoder.shape
    threshold = torch.zeros(units) if parts.threshold is None else parts.threshold.clamp(min=0)
    config = SAEConfig(width, units, parts.sparsifier, scaling=parts.scaling)
    state = {
        "decoder": parts.decoder,
        "encoder": parts.encoder,
        "encoder_bias": parts.encoder_bias,
        "decoder_bias": parts.decoder_bias,
        "threshold": threshold,
    }
    return assemble(config, state), list(parts.notes)


def assemble(config: SAEConfig, state: dict[str, Tensor]) -> SAE:
    """Return the SAE with these parameters, without drawing random numbers."""
    return SAE.from_tensors(config, {name: check_finite(name, tensor) for name, tensor in state.items()})


def _add_pre_bias(parts: Parts) -> Parts:
    """Return equivalent parts that subtract b from the input: E x + c = E (x - b) + (c + E b)."""
    shift = parts.encoder.double() @ parts.decoder_bias.double()
    bias = (parts.encoder_bias.double() + shift).float()
    return replace(parts, encoder_bias=bias, pre_bias=True)


def has_unit_atoms(decoder: Tensor) -> bool:
    """Return whether all atoms have norm one."""
    return float((decoder.detach().norm(dim=1) - 1).abs().max()) <= UNIT


def _normalize_atoms(parts: Parts) -> Parts:
    """Return equivalent parts with unit-norm atoms: the norms are moved to the encoder."""
    norms = parts.decoder.norm(dim=1)
    if has_unit_atoms(parts.decoder):
        return parts
    span = f"{float(norms.min()):.3g} to {float(norms.max()):.3g}"
    if isinstance(parts.sparsifier, TopK) and not parts.ranks_by_norm:
        # the largest pre-activations need not be the largest once multiplied by the norms
        return parts.with_note(
            f"decoder norms ({span}) are kept: folding them would change which units are in the top k."
        )
    divisor = torch.where(norms > 0, norms, 1.0)  # a zero atom is left unchanged
    gain = norms if parts.ranks_by_norm else divisor
    threshold = parts.threshold
    if threshold is not None and not parts.ranks_by_norm:
        threshold = threshold * gain
    moved = replace(
        parts,
        decoder=parts.decoder / divisor[:, None],
        encoder=parts.encoder * gain[:, None],
        encoder_bias=parts.encoder_bias * gain,
        threshold=threshold,
    )
    return moved.with_note(
        f"decoder norms ({span}) are folded: values are multiplied by the norm of their atom."
    )
