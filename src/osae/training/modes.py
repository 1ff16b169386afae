"""Modes of the data distribution, as directions to start training from.

Shapes: N rows, d width, n directions, K units.

Rows are centred and whitened, so that all directions have the same variance. A feature that is rarely active
then appears as a tail: along a direction w close to its own, a few rows have large values. If q is the value
along w that a share p of the rows exceeds, the iteration

    w <- normalised sum over rows x of max(0, <w, x> - q) x

converges to a direction that points exactly along its own tail: a mode. There are far fewer modes than rows
to start from, and they depend on the distribution of the data and on p, but hardly on the sampled rows or on
chance. Small shares find specific modes, large shares general ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from osae import passes
from osae.model import SAE, SAEConfig
from osae.sparsify import find_k

FLOOR = 0.5  # times the mean variance, added to every variance before whitening so as not to amplify noise
SAME = 0.9  # directions with a larger cosine count as one mode
FEW = 6000  # rows used in the first steps
FIRST, LAST = 6, 4  # steps on few rows from every start, and on all rows from the remaining directions
SORTED = 15_000  # rows for sorting units and fitting atoms
ROUNDS = 2  # of fitting atoms to codes
LEAST = 1e-12  # instead of zero, where the rows are all the same
CELLS = 2**23  # pairs of a direction and a row that are computed at once; arrays of 32 MB are never kept
RIDGE = 1e-2  # times the mean square of the codes, against units that always fire together


class Modes(NamedTuple):
    """Modes, and the share of rows with which each was found."""

    directions: Float[Tensor, "n d"]
    shares: Float[Tensor, "n"]


def sae_from_modes(
    config: SAEConfig, rows: Float[Tensor, "N d"], shares: Sequence[float], generator: torch.Generator
) -> SAE:
    """Return an SAE whose units are the modes of the rows, sorted by gain, with atoms fitted to their codes.

    If there are more modes than units, those with the least gain are dropped; if there are fewer, the last
    units are random.
    """
    centre = rows.mean(0)
    centred = rows - centre
    turn = whitening(centred)
    white = centred @ turn
    found = find_modes(white, shares, config.units, generator)
    parts = [
        _units(some, share, centred, white, turn)
        for share in found.shares.unique()
        for some in _split(found.directions[found.shares == share], len(rows))
    ]
    pool = _assemble(config, centre, [torch.cat(part) for part in zip(*parts, strict=True)])
    order = passes.order_units(pool, rows[:SORTED].split(passes.ROWS), k=find_k(config.sparsifier))
    chosen = [
        tensor.detach()[order[: config.units]] for tensor in (pool.decoder, pool.encoder, pool.encoder_bias)
    ]
    missing = config.units - len(chosen[0])
    noise = normalize(torch.randn(missing, config.width, generator=generator), dim=-1)
    rest = [noise, noise, noise.new_zeros(missing)]
    sae = _assemble(config, centre, [torch.cat(pair) for pair in zip(chosen, rest, strict=True)])
    for _ in range(ROUNDS):
        fit_atoms_(sae, rows[:SORTED])
    return sae


def _units(
    directions: Float[Tensor, "n d"], share: Tensor, centred: Tensor, white: Tensor, turn: Tensor
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], Float[Tensor, "n"]]:
    """Return the atoms, encoders and biases of units that are active in the tails of these directions.

    An atom is the mean of its tail, and a code is the value with which the unit alone best reconstructs a
    row.
    """
    first, second = (_make_room(white, len(white)) for _ in range(2))
    codes, least = tails(directions, white, float(share), first)
    atoms = normalize(codes @ centred, dim=-1)
    shared = _project(atoms, centred, second).mul_(codes).sum(1)
    gain = shared / codes.square_().sum(1).clamp(min=1e-30)
    return atoms, (directions @ turn) * gain[:, None], -least * gain


def _assemble(config: SAEConfig, centre: Float[Tensor, "d"], parts: Sequence[Tensor]) -> SAE:
    """Return the SAE with this centre and any number of atoms, encoders and biases."""
    atoms, encoder, bias = parts
    sae = SAE(replace(config, units=len(atoms)), atoms=atoms)
    sae.encoder.copy_(encoder)
    if config.encoder_bias:
        sae.encoder_bias.copy_(bias)
    if config.decoder_bias:
        sae.decoder_bias.copy_(centre)
    return sae


@torch.no_grad()
def fit_atoms_(sae: SAE, rows: Float[Tensor, "N d"]) -> None:
    """Replace the atoms with those that best reconstruct the rows from their codes, with a small ridge.

    Encoders are scaled with their atoms, so that these have unit norm and units contribute the same as
    before.
    """
    gram, target = _sum_codes(sae, rows)
    gram.diagonal().add_((RIDGE * gram.diagonal().mean()).clamp(min=LEAST))
    atoms = torch.linalg.solve(gram, target).to(rows.dtype)
    norms = atoms.norm(dim=-1)
    fires = norms > 1e-6  # a unit that never fires has no best atom, and is left unchanged
    scale = torch.where(fires, norms, 1.0)
    sae.decoder.copy_(torch.where(fires[:, None], atoms / scale[:, None], sae.decoder))
    sae.encoder.mul_(scale[:, None])
    sae.encoder_bias.mul_(scale)


def _sum_codes(sae: SAE, rows: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "K K"], Float[Tensor, "K d"]]:
    """Return the sums over rows of the products of their codes with each other, and with the rows."""
    units = sae.config.units
    gram, target = (torch.zeros(units, size, dtype=torch.float64) for size in (units, sae.config.width))
    product, room = rows.new_empty(units, units), _make_room(rows, units)
    for some in _split(rows, units):
        code = sae.encode(some, k=find_k(sae.config.sparsifier))
        dense = room[: len(some) * units].view(len(some), units).zero_()
        dense.scatter_add_(1, code.units, code.values)
        gram += torch.mm(dense.T, dense, out=product)
        target += dense.T @ (some - sae.decoder_bias)
    return gram, target


def whitening(centred: Float[Tensor, "N d"], floor: float = FLOOR) -> Float[Tensor, "d d"]:
    """Return the symmetric matrix that gives centred rows about the same variance in every direction."""
    variances, axes = torch.linalg.eigh((centred.T @ centred).double() / len(centred))
    scales = (variances.clamp(min=0) + floor * variances.mean()).clamp(min=LEAST).rsqrt()
    return ((axes * scales) @ axes.T).to(centred.dtype)


def find_modes(
    white: Float[Tensor, "N d"], shares: Sequence[float], starts: int, generator: torch.Generator
) -> Modes:
    """Return the modes of whitened rows, large shares first, starting from `starts` rows per share."""
    found = Modes(white.new_empty(0, white.shape[1]), white.new_empty(0))
    few = white[torch.randperm(len(white), generator=generator)[:FEW]]
    for share in sorted(shares, reverse=True):
        first = few[torch.randperm(len(few), generator=generator)[:starts]]
        directions = merge(climb(normalize(first, dim=-1), few, share, FIRST))
        directions = merge(climb(directions, white, share, LAST))
        if len(found.directions):
            directions = directions[(directions @ found.directions.T).amax(1) < SAME]
        both = torch.cat([found.directions, directions])
        found = Modes(both, torch.cat([found.shares, white.new_full((len(directions),), share)]))
    return found


def climb(
    directions: Float[Tensor, "n d"], white: Float[Tensor, "N d"], share: float, steps: int
) -> Float[Tensor, "n d"]:
    """Return the directions after some steps towards their modes."""
    room = _make_room(white, len(white))
    for _ in range(steps):
        sums = torch.empty_like(directions)
        for some, into in zip(_split(directions, len(white)), _split(sums, len(white)), strict=True):
            torch.mm(tails(some, white, share, room)[0], white, out=into)
        directions = normalize(sums, dim=-1)
    return directions


def _split(rows: Float[Tensor, "n d"], others: int) -> Sequence[Float[Tensor, "m d"]]:
    """Return the rows in parts small enough to be paired with so many others at once."""
    return rows.split(max(1, CELLS // max(1, others)))


def _make_room(rows: Float[Tensor, "N d"], others: int) -> Float[Tensor, "cells"]:
    """Return an array for the pairs with so many others that are computed at once, and then for the next.

    Arrays that are freed and allocated again and again would leave gaps between other ones.
    """
    return rows.new_empty(max(CELLS, others))


def _project(
    directions: Float[Tensor, "n d"], rows: Float[Tensor, "N d"], room: Float[Tensor, "cells"]
) -> Float[Tensor, "n N"]:
    """Return the value of each row along each direction, in the room."""
    shape = len(directions), len(rows)
    return torch.mm(directions, rows.T, out=room[: shape[0] * shape[1]].view(shape))


def tails(
    directions: Float[Tensor, "n d"], white: Float[Tensor, "N d"], share: float, room: Float[Tensor, "cells"]
) -> tuple[Float[Tensor, "n N"], Float[Tensor, "n"]]:
    """Return by how much rows exceed the quantile that a share of them exceeds, and the quantile.

    The former is in the room.
    """
    along = _project(directions, white, room)
    least = _smallest(along, max(1, len(white) - max(1, round(share * len(white)))))
    return along.sub_(least[:, None]).clamp_(min=0), least


def _smallest(values: Float[Tensor, "n N"], rank: int) -> Float[Tensor, "n"]:
    """Return the value with this rank, from 1, in each row; `torch.kthvalue` needs four times the memory."""
    found, row = values.new_empty(len(values)), np.empty_like(values.numpy(), shape=values.shape[1])
    for place, each in enumerate(values.numpy()):
        row[:] = each
        row.partition(rank - 1)
        found[place] = float(row[rank - 1])
    return found


def merge(directions: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """Return one direction for each group of nearly equal ones, the most frequent first."""
    near = directions @ directions.T > SAME
    left, counts, merged = torch.ones(len(directions), dtype=torch.bool), near.sum(1), []
    while bool(left.any()):
        same = near[int((counts * left).argmax())] & left
        merged.append(directions[same].sum(0))
        left &= ~same
        counts -= near[:, same].sum(1)
    return normalize(torch.stack(merged), dim=-1)
