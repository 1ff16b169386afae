"""Where a training begins: from noise or from the data."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from osae.model import SAE
from osae.recipes import FromData, FromNoise, Recipe
from osae.seeds import generator


@torch.no_grad()
def start_sae(recipe: Recipe, rows: Float[Tensor, "N d"], seed: int) -> SAE:
    """A new SAE for this seed; `rows` are (scaled) activations to read a mean and directions from."""
    sae = SAE(recipe.sae, generator=generator(seed, "start"))
    if recipe.sae.decoder_bias:
        sae.decoder_bias.copy_(rows.mean(0))
    match recipe.start:
        case FromNoise():
            pass
        case FromData(samples):
            shuffled = torch.randperm(len(rows), generator=generator(seed, "start", "rows"))
            chosen = shuffled[
                : min(samples, max(1, len(rows) // 2))
            ]  # all rows would be the same for all seeds
            atoms = signed_principal_directions(rows[chosen], recipe.sae.units)
            sae.decoder[: len(atoms)] = atoms
            if not recipe.sae.tied:
                sae.encoder.copy_(sae.decoder)
        case _:
            assert_never(recipe.start)
    return sae


def signed_principal_directions(rows: Float[Tensor, "N d"], units: int) -> Float[Tensor, "n d"]:
    """v_1, -v_1, v_2, -v_2, ... up to `units` rows or all directions; the third moment along v_i is >= 0."""
    centred = (rows - rows.mean(0)).double()
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)
    signs = (centred @ directions.T).pow(3).sum(0).sign()
    directions = directions * torch.where(signs == 0, torch.ones_like(signs), signs).unsqueeze(-1)
    return torch.stack([directions, -directions], dim=1).flatten(0, 1)[:units].to(rows.dtype)
