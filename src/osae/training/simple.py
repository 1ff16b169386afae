"""Training in one call, for a notebook: rows in memory, an SAE out."""

import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.source import Rows
from osae.model import SAE
from osae.recipes import Recipe
from osae.training.loop import train
from osae.training.member import Member


def fit(recipe: Recipe, rows: Float[Tensor, "N d"], *, seed: int = 0) -> SAE:
    """The SAE that this recipe and seed make of these activations."""
    rows = rows.float()
    if rows.ndim != 2 or rows.shape[1] != recipe.sae.width:
        raise ValueError(f"rows of shape {tuple(rows.shape)}: the recipe wants (N, {recipe.sae.width}).")
    if not bool(torch.isfinite(rows).all()):
        raise ValueError("rows hold NaN or infinity: leave such samples out.")
    member = Member(recipe, seed, rows)
    train([member], Rows(rows))
    return member.finish()
