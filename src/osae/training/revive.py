"""Revival: dead or spare units get new directions, based on rows that the SAE reconstructs poorly.

Shapes: n samples, d width, m units. Units that change restart without optimizer momentum.
"""

from typing import TYPE_CHECKING, assert_never

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from osae.revival import AuxK, Resample, Split
from osae.seeds import generator
from osae.sparsify import JumpReLU, starting_threshold

if TYPE_CHECKING:
    from osae.training.member import Member

ROUNDS = (
    10  # iterations of two-means and of the search for a shared direction; both converge in three or four
)
WORST = 2  # the worst reconstructed row out of this many is considered
ALIGNED = 0.5  # cosine above which a new direction counts as explaining a row
LEAST_SAMPLES = 20  # a unit that fires less often is not split: its two halves would be noise


@torch.no_grad()
def revive(member: "Member", rows: Tensor, done: int) -> None:
    """Give idle units of the member new directions according to its recipe, based on these (scaled) rows."""
    placed = member.placed_at(done - 1)
    code = member.sae.encode(rows, k=member.k_at(done - 1))
    residual = rows - member.sae.decode(code)
    match member.recipe.revival:
        case Resample():
            _resample(member, residual, placed, done)
        case Split(weak=weak):
            _split(member, residual, code.dense(member.recipe.sae.units), weak, placed, done)
        case AuxK() | None:  # AuxK is a term of the loss
            pass
        case _:
            assert_never(member.recipe.revival)


def _resample(member: "Member", residual: Tensor, placed: int, done: int) -> None:
    """Point dead units at poorly reconstructed rows, drawn with probability ~ squared error."""
    dead = member.dead(done)
    which = dead.nonzero().squeeze(-1) if dead is not None else torch.empty(0, dtype=torch.int64)
    which = which[which >= placed]
    if not len(which):
        return
    error = residual.square().sum(-1).cpu().double()
    source = generator(member.seed, "resample", done)
    drawn = error.multinomial(len(which), replacement=True, generator=source)
    atoms = normalize(residual[drawn], dim=-1)
    _replace(member, which, atoms, atoms, done)


def _split(member: "Member", residual: Tensor, values: Tensor, weak: float, placed: int, done: int) -> None:
    """Move each spare unit to where it lowers the error most: half of a unit, or an unexplained direction."""
    sae, energy, count = member.sae, values.square().sum(0), (values > 0).sum(0)
    if not bool(count.any()):
        return
    spare = energy < weak * energy[count > 0].median()
    spare[:placed] = False
    error = residual.square().sum(-1)
    worst = error.topk(-(-len(error) // WORST)).indices
    residual, values, error = residual[worst], values[worst], error[worst]
    fires = ((values > 0) & ~spare & (count >= LEAST_SAMPLES)).to(error.dtype)
    fires[:, :placed] = 0
    for new in spare.nonzero().squeeze(-1).tolist():
        # the unit with the largest mean error where it fires, and the error that two halves of it would leave
        old = int(((error @ fires) / count.clamp(min=1)).argmax())
        where = fires[:, old].nonzero().squeeze(-1)
        parts = residual[where] + values[where, old].unsqueeze(-1) * sae.decoder[old]
        halves = two_directions(parts)
        left = parts - _explained(parts, halves)
        by_halving = error[where].sum() - left.square().sum()
        direction = unexplained_direction(residual)
        explained = _explained(residual, direction.unsqueeze(0), aligned=ALIGNED)
        if max(by_halving, explained.square().sum()) <= energy[new]:
            continue  # its current contribution is larger
        if by_halving > explained.square().sum():
            _halve(member, old, new, halves, done)
            residual[where] = left
            fires[:, old] = 0
        else:
            _replace(member, torch.tensor([new]), direction[None], direction[None], done)
            residual = residual - explained
        error = residual.square().sum(-1)


def _halve(member: "Member", old: int, new: int, halves: Tensor, done: int) -> None:
    """Replace one unit with two; each keeps the learned encoder, rotated with its atom."""
    sae, both = member.sae, torch.tensor([old, new])
    turned = sae.encoder[old] + halves - sae.decoder[old]
    bias = sae.encoder_bias[old].clone()
    _replace(member, both, halves, turned, done)
    sae.encoder_bias[both] = bias


def _explained(rows: Tensor, directions: Tensor, *, aligned: float = 0.0) -> Tensor:
    """Return the part of each row along its best direction; zero for rows less aligned than `aligned`."""
    best = (rows @ directions.T).max(-1)
    kept = best.values.clamp(min=0) * (best.values >= aligned * rows.norm(dim=-1))
    return kept.unsqueeze(-1) * directions[best.indices]


def unexplained_direction(residual: Float[Tensor, "n d"]) -> Float[Tensor, "d"]:
    """Return a direction that many rows share: that of the worst row, moved towards large rows near it."""
    lengths = residual.norm(dim=-1)
    residual = residual / lengths.max().clamp(min=1e-30)  # so that the cubes below do not overflow
    direction = normalize(residual[lengths.argmax()], dim=0)
    for _ in range(ROUNDS):
        direction = normalize((residual @ direction).relu().pow(3) @ residual, dim=0)
    return direction


def two_directions(rows: Float[Tensor, "n d"]) -> Float[Tensor, "2 d"]:
    """Return the two unit vectors that best represent the rows' directions: two-means, weighted by length."""
    lengths = rows.norm(dim=-1, keepdim=True)
    directions = rows / lengths.clamp(min=1e-12)
    middle = normalize((lengths * rows).sum(0), dim=0)
    across = lengths * (directions - (directions @ middle).unsqueeze(-1) * middle)
    widest = torch.linalg.eigh(across.T @ across).eigenvectors[:, -1]
    found = normalize(torch.stack([middle + widest / 2, middle - widest / 2]), dim=-1)
    for _ in range(ROUNDS):
        first = directions @ found[0] > directions @ found[1]
        if bool(first.all()) or not bool(first.any()):
            break
        weighted = lengths * rows
        found = normalize(torch.stack([weighted[first].sum(0), weighted[~first].sum(0)]), dim=-1)
    return found


def _replace(
    member: "Member",
    units: Int[Tensor, "m"],
    decoder: Float[Tensor, "m d"],
    encoder: Float[Tensor, "m d"],
    done: int,
) -> None:
    """Give units new atoms and encoders; reset their biases, moments and counters."""
    for moments in member.moments(member.weights.per_unit()):
        moments[units] = 0
    member.sae.encoder_bias[units] = 0
    if isinstance(
        sparsifier := member.recipe.sae.sparsifier, JumpReLU
    ):  # other sparsifiers share one threshold
        member.sae.threshold[units] = starting_threshold(sparsifier)
    member.last_fired[units] = done
    member.weights.replace(units, decoder, encoder)
