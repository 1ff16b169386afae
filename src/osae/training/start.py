"""Where training starts: from noise or from the data."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from osae.devices import single_thread
from osae.model import SAE
from osae.recipes import FromData, FromNoise, Recipe
from osae.seeds import generator


@single_thread()  # sums and eigenvectors depend on the number of threads in their last bits
@torch.no_grad()
def start_sae(recipe: Recipe, rows: Float[Tensor, "N d"], seed: int) -> SAE:
    """Return a new SAE for this seed; `rows` are the (scaled) activations that it starts from."""
    sae = SAE(recipe.sae, generator=generator(seed, "start"))
    match recipe.start:
        case FromNoise():
            pass
        case FromData(samples):
            sae = SAE(recipe.sae, atoms=_with_principal_directions(sae.decoder, rows, samples, seed))
        case _:
            assert_never(recipe.start)
    if recipe.sae.decoder_bias:
        sae.decoder_bias.copy_(rows.mean(0))
    return sae


def _with_principal_directions(noise: Tensor, rows: Tensor, samples: int, seed: int) -> Tensor:
    """Return the atoms with the first of them replaced by the directions of a random choice of rows."""
    shuffled = torch.randperm(len(rows), generator=generator(seed, "start", "rows"))
    # at most half of the rows: all of them would be the same rows for all seeds
    chosen = shuffled[: min(samples, max(1, len(rows) // 2))]
    directions = signed_principal_directions(rows[chosen], len(noise))
    return torch.cat([directions, noise[len(directions) :]])


def signed_principal_directions(rows: Float[Tensor, "N d"], units: int) -> Float[Tensor, "n d"]:
    """Return v_1, -v_1, v_2, -v_2, ..., up to `units` rows or all directions of the data.

    The third moment of the data along v_i is at least 0.
    """
    centred = (rows - rows.mean(0)).double()
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)
    signs = (centred @ directions.T).pow(3).sum(0).sign()
    directions = directions * torch.where(signs == 0, torch.ones_like(signs), signs).unsqueeze(-1)
    return torch.stack([directions, -directions], dim=1).flatten(0, 1)[:units].to(rows.dtype)
