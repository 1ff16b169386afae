"""One SAE on several ranks: how units and gradients are divided."""

from dataclasses import replace

import torch
from torch import Tensor

from osae.model import SAE
from osae.ranks import Mesh
from osae.recipes import FromConsensus, Recipe
from osae.sparsify import BatchTopK, TopK
from osae.training.weights import Weights


def check_mesh(recipe: Recipe, mesh: Mesh) -> None:
    """Raise `ValueError` if the batch or the units of a recipe cannot be divided among that many ranks."""
    if recipe.batch % mesh.rows.size:
        raise ValueError(
            f"batch={recipe.batch} cannot be divided equally among {mesh.rows.size} ranks: give a multiple, "
            f"such as {-(-recipe.batch // mesh.rows.size) * mesh.rows.size}."
        )
    if isinstance(recipe.start, FromConsensus) and mesh.everyone.size > 1:
        raise ValueError(
            "short runs are trained on one process: find the consensus with `osae train` on one process, and "
            "give its snapshot at 0 samples as --from; its units are then sorted by gain alone."
        )
    if recipe.sae.units < mesh.units.size:
        raise ValueError(
            f"--dictionary-ranks {mesh.units.size} exceeds the {recipe.sae.units} units: give fewer."
        )


def take_units(sae: SAE, mine: slice) -> SAE:
    """Return the part of the SAE that consists of these units."""
    config, count = sae.config, mine.stop - mine.start
    if count == config.units:
        return sae
    sparsifier = config.sparsifier
    if isinstance(sparsifier, TopK | BatchTopK):  # training asks for the k that it needs
        sparsifier = replace(sparsifier, k=min(sparsifier.k, count))
    tensors = {name: t if name == "decoder_bias" else t[mine].clone() for name, t in sae.state_dict().items()}
    return SAE.from_tensors(replace(config, units=count, sparsifier=sparsifier), tensors)


@torch.no_grad()
def share_gradients(weights: Weights, mesh: Mesh) -> None:
    """Give every rank the gradients of the whole batch, for its own units and for shared parameters."""
    if mesh.everyone.size == 1:
        return
    if weights.sae.decoder_bias.grad is not None:
        mesh.units.sum_(weights.sae.decoder_bias.grad)
    for gradient in weights.gradients():
        mesh.rows.mean_(gradient)


@torch.no_grad()
def clip_gradients(weights: Weights, most: float, mesh: Mesh) -> None:
    """Scale the gradients of all parameters on all ranks to a joint norm of at most `most`."""
    parameters = weights.named()
    if mesh.units.size == 1:
        torch.nn.utils.clip_grad_norm_(parameters.values(), most)
        return
    square = sum(_square(p) for name, p in parameters.items() if name != "decoder_bias")
    total = (mesh.units.sum_(torch.as_tensor(square)) + _square(parameters["decoder_bias"])).sqrt()
    torch.nn.utils.clip_grads_with_norm_(parameters.values(), most, total)


def _square(parameter: Tensor) -> Tensor:
    return parameter.new_zeros(()) if parameter.grad is None else parameter.grad.square().sum()
