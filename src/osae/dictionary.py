"""Dictionaries: how the decoder and the encoder are computed from the trained parameters.

Shapes: d width, K units, n points, m some of the units.

A dictionary is one choice of a recipe, and matters during training only: an SAE always has two plain K x d
matrices. Every parameter has one row per unit, and a unit's atom and encoder depend only on its own rows (and
on constants). Units can therefore be sorted, frozen and replaced row by row, whatever the rows mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from osae.config import variant
from osae.ranks import NO_OTHERS, Ranks

BLOCK = 2**18  # numbers of a matrix at a time: a block stays in cache from one operation to the next
LARGE_BLOCK = 2**26  # on a GPU, where every operation has launch overhead: 256 MB in float32
COMPARED = 8192  # atoms whose pairwise cosines are computed at once
ROUNDS = 200  # of projected gradient descent, to find the points that make up a given atom
LEAST_WEIGHT = 0.01  # shared among all points at the start: a point of weight zero would get no gradient

Tensors = Mapping[str, Tensor]


class Matrices(NamedTuple):
    """The decoder and the encoder of some units, one row each."""

    decoder: Float[Tensor, "m d"]
    encoder: Float[Tensor, "m d"]


class Dictionary(ABC):
    """How decoder and encoder are computed from parameters.

    A new dictionary is a frozen dataclass, decorated with `@variant`, that defines `build` and `invert`, and
    `atom_parameters` if its atoms do not come from a parameter called "decoder" alone. The rest is optional.
    """

    atom_parameters: ClassVar[tuple[str, ...]] = ("decoder",)  # those that the decoder depends on

    @abstractmethod
    def build(self, tensors: Tensors) -> Matrices:
        """Return the two matrices computed from the parameters and constants, with gradients.

        If a matrix is itself a parameter, return it unchanged, so that it is never copied.
        """

    @abstractmethod
    def invert(self, wanted: Matrices, constants: Tensors) -> dict[str, Tensor]:
        """Return parameters from which `build` computes the given matrices, exactly or approximately."""

    def draw_constants(self, rows: Float[Tensor, "N d"], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the constants that all units share and training does not change.

        `rows` are centred activations.
        """
        return {}

    def add_gradients_(self, parameters: Tensors, units: Ranks = NO_OTHERS) -> None:
        """Add the gradients of a penalty on the parameters, which is not part of the loss that is logged.

        Called before every optimizer step. `units` are the ranks among which the units are divided.
        """
        return

    def project_gradients_(self, parameters: Tensors) -> None:
        """Remove the part of the gradients that `constrain_` would undo.

        Called before every optimizer step, after `add_gradients_`.
        """
        return

    def constrain_(self, parameters: Tensors) -> None:
        """Project the parameters back onto their constraints; called after every optimizer step."""
        return


class UnitAtoms(Dictionary):
    """A dictionary whose atoms are themselves parameters, kept at unit norm."""

    def project_gradients_(self, parameters: Tensors) -> None:
        """Remove the part of the gradient that would only change the norms of the atoms."""
        decoder = parameters["decoder"]
        if decoder.grad is not None:
            for grad, atoms in zip(_blocks(decoder.grad), _blocks(decoder), strict=True):
                grad -= (grad * atoms).sum(-1, keepdim=True) * atoms

    def constrain_(self, parameters: Tensors) -> None:
        """Scale the atoms to norm one."""
        for atoms in _blocks(parameters["decoder"]):
            atoms /= atoms.norm(dim=-1, keepdim=True).clamp(min=1e-12)


@variant
@dataclass(frozen=True)
class FreeAtoms(UnitAtoms):
    """Unit-norm atoms and encoders are independent parameters."""

    def build(self, tensors: Tensors) -> Matrices:
        """Return the parameters themselves."""
        return Matrices(tensors["decoder"], tensors["encoder"])

    def invert(self, wanted: Matrices, constants: Tensors) -> dict[str, Tensor]:
        """Return the matrices themselves."""
        return wanted._asdict()


@variant
@dataclass(frozen=True)
class Separated(FreeAtoms):
    """Free atoms with a penalty on their nearest neighbours: OrtSAE (Korznikov et al., 2025).

        weight * d * mean over i of (max over j != i of <d_i, d_j>)^2

    The factor d, the squared norm of rescaled rows, makes the weight independent of the width. Dictionaries
    of more than 8,192 atoms are compared in parts, each spread evenly over the dictionary. The cosines of all
    pairs take more time than the rest of a step if there are many more atoms than samples in a batch.
    """

    weight: float = 0.25

    def __post_init__(self):
        if not (isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"weight={self.weight}: give a finite number of at least 0.")

    def add_gradients_(self, parameters: Tensors, units: Ranks = NO_OTHERS) -> None:
        """Add the gradient of the penalty to that of the atoms."""
        decoder = parameters["decoder"]
        if decoder.grad is None:
            return
        everywhere = units.join(decoder.detach())
        scale = 2 * self.weight * decoder.shape[1] / len(everywhere)
        blocks, total = -(-len(everywhere) // COMPARED), torch.zeros_like(everywhere)
        for first in range(blocks):
            atoms, pushed = everywhere[first::blocks], total[first::blocks]
            if len(atoms) > 1:
                cosines, nearest = (atoms @ atoms.T).fill_diagonal_(-2).max(1)
                push = scale * cosines.unsqueeze(1)
                pushed += push * atoms[nearest]
                pushed.index_add_(0, nearest, push * atoms)
        decoder.grad += total[units.cut(len(everywhere))]


@variant
@dataclass(frozen=True)
class Tied(UnitAtoms):
    """The encoder is the decoder: e_i = d_i, of norm one."""

    def build(self, tensors: Tensors) -> Matrices:
        """Return the decoder twice."""
        return Matrices(tensors["decoder"], tensors["decoder"])

    def invert(self, wanted: Matrices, constants: Tensors) -> dict[str, Tensor]:
        """Return the decoder; the encoder equals it."""
        return {"decoder": wanted.decoder}


@variant
@dataclass(frozen=True)
class Aligned(UnitAtoms):
    """Encoder and decoder are aligned: <e_i, d_i> = 1 for every unit.

        e_i = v_i + (1 - <v_i, d_i>) d_i,   |d_i| = 1

    Atoms d_i and vectors v_i are the parameters. The pre-activation of a unit for z times its own atom is
    then z, up to its bias.
    """

    def build(self, tensors: Tensors) -> Matrices:
        """Return the decoder, and encoders moved along their atoms until the inner product is one."""
        atoms, free = tensors["decoder"], tensors["free"]
        return Matrices(atoms, free + (1 - (free * atoms).sum(-1, keepdim=True)) * atoms)

    def invert(self, wanted: Matrices, constants: Tensors) -> dict[str, Tensor]:
        """Return the matrices themselves; `build` aligns them."""
        return {"decoder": wanted.decoder, "free": wanted.encoder}


@variant
@dataclass(frozen=True)
class Archetypal(Dictionary):
    """Atoms are convex combinations of points, plus a small relaxation: Archetypal SAE (Fel et al., 2025).

        d_i = a_i / |a_i|,   a_i = sum_j w_ij p_j + r_i,   w_i = softmax(logits_i),   |r_i| <= relaxation

    The points p_j are `points` centred activations (at most half of those given), drawn with the seed at the
    start and jointly scaled to a mean squared norm of one. Encoders are free parameters.
    """

    points: int = 1024
    relaxation: float = 0.1
    atom_parameters: ClassVar[tuple[str, ...]] = ("logits", "offset")

    def __post_init__(self):
        if self.points < 1:
            raise ValueError(f"points={self.points}: an archetypal dictionary needs at least 1 point.")
        if not (isfinite(self.relaxation) and self.relaxation >= 0):
            raise ValueError(f"relaxation={self.relaxation}: give a finite number of at least 0.")

    def build(self, tensors: Tensors) -> Matrices:
        """Return the atoms of this combination and relaxation, scaled to norm one, and the encoder."""
        atoms = tensors["logits"].softmax(-1) @ tensors["points"] + tensors["offset"]
        return Matrices(normalize(atoms, dim=-1), tensors["encoder"])

    def invert(self, wanted: Matrices, constants: Tensors) -> dict[str, Tensor]:
        """Return the combinations nearest to the given atoms; encoders are rotated with their atoms."""
        points = constants["points"]
        logits = _convex_weights(points, wanted.decoder).log()
        inside = logits.softmax(-1) @ points
        along = (inside * wanted.decoder).sum(-1, keepdim=True).clamp(min=0)
        parameters = {"logits": logits, "offset": along * wanted.decoder - inside, "encoder": wanted.encoder}
        self.constrain_(parameters)
        turned = self.build(parameters | {"points": points}).decoder - wanted.decoder
        return parameters | {"encoder": wanted.encoder + turned}

    def draw_constants(self, rows: Float[Tensor, "N d"], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the points, at most half of the rows, so that seeds differ."""
        shuffled = torch.randperm(len(rows), generator=generator)
        points = rows[shuffled[: min(self.points, max(1, len(rows) // 2))]]
        return {"points": points / points.square().sum(-1).mean().sqrt().clamp(min=1e-30)}

    def constrain_(self, parameters: Tensors) -> None:
        """Shorten relaxations that are too long."""
        for offset in _blocks(parameters["offset"]):
            offset *= (self.relaxation / offset.norm(dim=-1, keepdim=True).clamp(min=1e-30)).clamp(max=1)


def _convex_weights(points: Float[Tensor, "n d"], atoms: Float[Tensor, "m d"]) -> Float[Tensor, "m n"]:
    """Return convex weights with which the points approximate the directions of the atoms.

    The direction of a combination does not depend on the sum of its weights: the weights are found by
    projected gradient descent on |sum_j w_j p_j - a|^2 over w >= 0, and then normalised.
    """
    largest = torch.linalg.matrix_norm(points.cpu().double(), 2)  # not every device has this type
    rate = 1 / largest.square().clamp(min=1e-30).to(points.dtype).to(points.device)
    weights = atoms.new_zeros(len(atoms), len(points))
    for _ in range(ROUNDS):
        weights = (weights + rate * (atoms - weights @ points) @ points.T).relu()
    total = weights.sum(-1, keepdim=True)
    nearest = one_hot((atoms @ points.T).argmax(-1), len(points)).to(atoms.dtype)
    weights = torch.where(total > 0, weights / total.clamp(min=1e-30), nearest)
    return (weights + LEAST_WEIGHT / len(points)) / (1 + LEAST_WEIGHT)


def _blocks(matrix: Float[Tensor, "m d"]) -> tuple[Tensor, ...]:
    numbers = BLOCK if matrix.device.type == "cpu" else LARGE_BLOCK
    return matrix.split(max(1, numbers // matrix.shape[1]))
