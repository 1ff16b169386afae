"""Starting points for training: noise, the data, or an SAE."""

from pathlib import Path
from typing import NamedTuple, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from osae.arrays import IN_MEMORY
from osae.devices import single_thread
from osae.interop import Loaded, load
from osae.interop.parts import has_unit_atoms
from osae.model import SAE
from osae.recipes import FromConsensus, FromData, FromKMeans, FromModes, FromNoise, FromSAE, Recipe
from osae.seeds import generator
from osae.sparsify import starting_threshold
from osae.training.modes import sae_from_modes


class Consensus(NamedTuple):
    """The SAE that several runs have in common, with scores: how many runs find a unit, and how closely."""

    sae: SAE
    scores: Float[Tensor, "K"]


@single_thread()  # the last bits of sums and eigenvectors depend on the number of threads
@torch.no_grad()
def start_sae(
    recipe: Recipe, rows: Float[Tensor, "N d"], seed: int, *, scale: float = 1.0, given: SAE | None = None
) -> SAE:
    """Return a new SAE for this seed; `rows` are the activations that it starts from, times `scale`.

    `given` is the SAE that the recipe starts from, if it is already in memory. A consensus always is, because
    it takes training runs to find.
    """
    if isinstance(recipe.start, FromSAE):
        return take_over(recipe, given or find_start(recipe.start).require_sae(), scale)
    if isinstance(recipe.start, FromConsensus):
        if given is None:
            raise ValueError(
                "a start from a consensus needs short runs: train with `osae.fit` or `osae train`, or pass "
                "`start`."
            )
        return take_over(recipe, given, scale)
    sae = SAE(recipe.sae, generator=generator(seed, "start"))
    match recipe.start:
        case FromNoise():
            pass
        case FromData(samples):
            sae = SAE(recipe.sae, atoms=_with_principal_directions(sae.decoder, rows, samples, seed))
        case FromKMeans(samples, rounds):
            sae = SAE(recipe.sae, atoms=_with_clusters(sae.decoder, rows, samples, rounds, seed))
        case FromModes(samples, shares):
            chosen = _choose_rows(rows, samples, seed)
            sae = sae_from_modes(recipe.sae, chosen, shares, generator(seed, "start", "modes"))
        case _:
            assert_never(recipe.start)
    if recipe.sae.decoder_bias:
        sae.decoder_bias.copy_(rows.mean(0))
    return sae


def describe_start(loaded: Loaded) -> FromSAE:
    """Return the start from an SAE as data; raise `ValueError` if it cannot be trained further."""
    scaling = loaded.require_sae().config.scaling
    if scaling is not None:
        raise ValueError(
            f"{loaded.path} scales each input separately ({scaling}), which cannot be trained: start from "
            "another SAE."
        )
    return FromSAE(locate(loaded.path), loaded.sha256)


def locate(path: str) -> str:
    """Return a path that is valid in any folder, since a run may be resumed from another one."""
    return path if path == IN_MEMORY or path.startswith("hf:") else str(Path(path).absolute())


def find_start(start: FromSAE) -> Loaded:
    """Load the SAE that a recipe starts from; raise `ValueError` if it has changed since."""
    if start.path == IN_MEMORY:
        raise ValueError(
            "this recipe starts from an SAE that was in memory: pass it again, or save it to disk."
        )
    loaded = load(start.path)
    if start.sha256 and loaded.sha256 != start.sha256:
        raise ValueError(
            f"{start.path} differs from the SAE that training started from: restore the original."
        )
    return loaded


def take_over(recipe: Recipe, sae: SAE, scale: float) -> SAE:
    """Return an SAE with the recipe's choices and the weights of another SAE, for inputs times `scale`.

    Atoms are scaled to unit norm, and encoders are multiplied by the norms instead: reconstructions stay the
    same as long as the same units fire.
    """
    wanted, found = (recipe.sae.width, recipe.sae.units), (sae.config.width, sae.config.units)
    if wanted != found:
        raise ValueError(
            f"the SAE to start from has width {found[0]} and {found[1]} units, but the recipe is for "
            f"{wanted[0]} and {wanted[1]}: give a recipe of the same sizes."
        )
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in sae.state_dict().items()}
    norms = tensors["decoder"].norm(dim=-1)
    if not has_unit_atoms(tensors["decoder"]):
        gain = torch.where(norms > 0, norms, 1.0)
        tensors["decoder"] /= gain[:, None]
        tensors["encoder"] *= gain[:, None]
        tensors["encoder_bias"] *= gain
        tensors["threshold"] *= gain
    if not isinstance(recipe.sae.sparsifier, type(sae.config.sparsifier)):
        tensors["threshold"] = torch.full_like(norms, starting_threshold(recipe.sae.sparsifier) / scale)
    return SAE.from_tensors(recipe.sae, tensors).fold_scale(1 / scale)


def _with_principal_directions(noise: Tensor, rows: Tensor, samples: int, seed: int) -> Tensor:
    """Return the atoms, with the first ones replaced by principal directions of randomly chosen rows."""
    directions = signed_principal_directions(_choose_rows(rows, samples, seed), len(noise))
    return torch.cat([directions, noise[len(directions) :]])


def _with_clusters(noise: Tensor, rows: Tensor, samples: int, rounds: int, seed: int) -> Tensor:
    """Return the atoms, with the first ones replaced by clusters of randomly chosen rows."""
    chosen = _choose_rows(rows, samples, seed)
    clusters = cluster_directions(chosen - chosen.mean(0), len(noise), rounds)
    return torch.cat([clusters, noise[len(clusters) :]])


def _choose_rows(rows: Tensor, samples: int, seed: int) -> Tensor:
    """Return some rows in random order, at most half of them, so that seeds differ."""
    shuffled = torch.randperm(len(rows), generator=generator(seed, "start", "rows"))
    return rows[shuffled[: min(samples, max(1, len(rows) // 2))]]


def cluster_directions(rows: Float[Tensor, "N d"], clusters: int, rounds: int) -> Float[Tensor, "n d"]:
    """Return the directions of the clusters that k-means finds among the directions of the rows.

    The first rows are the first centres; there are no more clusters than rows. A row belongs to the centre
    with the largest cosine, and a centre becomes the direction of the sum of its rows. A centre without rows
    does not change.
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
