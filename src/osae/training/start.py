"""Where training starts: from noise, from principal directions, or from clusters of the data."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from osae.devices import single_thread
from osae.model import SAE
from osae.recipes import FromData, FromKMeans, FromNoise, Recipe
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
        case FromKMeans(samples, rounds):
            sae = SAE(recipe.sae, atoms=_with_clusters(sae.decoder, rows, samples, rounds, seed))
        case _:
            assert_never(recipe.start)
    if recipe.sae.decoder_bias:
        sae.decoder_bias.copy_(rows.mean(0))
    return sae


def _with_principal_directions(noise: Tensor, rows: Tensor, samples: int, seed: int) -> Tensor:
    """Return the atoms with the first of them replaced by the directions of a random choice of rows."""
    directions = signed_principal_directions(_choose_rows(rows, samples, seed), len(noise))
    return torch.cat([directions, noise[len(directions) :]])


def _with_clusters(noise: Tensor, rows: Tensor, samples: int, rounds: int, seed: int) -> Tensor:
    """Return the atoms with the first of them replaced by the clusters of a random choice of rows."""
    chosen = _choose_rows(rows, samples, seed)
    clusters = cluster_directions(chosen - chosen.mean(0), len(noise), rounds)
    return torch.cat([clusters, noise[len(clusters) :]])


def _choose_rows(rows: Tensor, samples: int, seed: int) -> Tensor:
    """Return some rows, in random order; at most half of them: all would be the same for all seeds."""
    shuffled = torch.randperm(len(rows), generator=generator(seed, "start", "rows"))
    return rows[shuffled[: min(samples, max(1, len(rows) // 2))]]


def cluster_directions(rows: Float[Tensor, "N d"], clusters: int, rounds: int) -> Float[Tensor, "n d"]:
    """Return the directions of the clusters that k-means finds among the directions of the rows.

    The first rows are the first centres; there are no more clusters than rows. A row belongs to the centre of
    the largest cosine, and a centre becomes the direction of the sum of its rows. One that no row belongs to
    stays as it is.
    """
    directions = torch.nn.functional.normalize(rows, dim=-1)
    centres = directions[:clusters].clone()
    for _ in range(rounds):
        sums = torch.zeros_like(centres)
        for part in directions.split(4096):
            sums.index_add_(0, (part @ centres.T).argmax(1), part)
        lengths = sums.norm(dim=-1, keepdim=True)
        centres = torch.where(lengths > 1e-6, sums / lengths.clamp(min=1e-6), centres)
    return torch.nn.functional.normalize(centres, dim=-1)


def signed_principal_directions(rows: Float[Tensor, "N d"], units: int) -> Float[Tensor, "n d"]:
    """Return v_1, -v_1, v_2, -v_2, ..., up to `units` rows or all directions of the data.

    The third moment of the data along v_i is at least 0.
    """
    centred = (rows - rows.mean(0)).double()
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)
    signs = (centred @ directions.T).pow(3).sum(0).sign()
    directions = directions * torch.where(signs == 0, torch.ones_like(signs), signs).unsqueeze(-1)
    return torch.stack([directions, -directions], dim=1).flatten(0, 1)[:units].to(rows.dtype)
