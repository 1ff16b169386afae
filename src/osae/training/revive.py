"""Second lives: units that do nothing get something to do.

Shapes: n samples, d width. Units that change start without optimizer momentum.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from osae.revival import Resample, Split
from osae.seeds import generator
from osae.sparsify import JumpReLU

if TYPE_CHECKING:
    from osae.training.member import Member

ROUNDS = 10  # of two-means and of drawing near; both settle in three or four
WORST = 2  # one row in so many, the worst explained, is looked at
ALIGNED = 0.5  # cosine from which a row counts as explained by a new direction
LEAST_SAMPLES = 20  # a unit seen less often is not split: its two halves would be noise


@torch.no_grad()
def revive(member: "Member", rows: Tensor, done: int) -> None:
    """The member's idle units at work again, as its recipe says, measured on these (scaled) rows."""
    placed = member.placed_at(done - 1)
    code = member.sae.encode(rows, k=member.k_at(done - 1))
    residual = rows - member.sae.decode(code)
    match member.recipe.revival:
        case Resample():
            _resample(member, residual, placed, done)
        case Split(weak=weak):
            _split(member, residual, code.dense(member.recipe.sae.units), weak, placed, done)


def _resample(member: "Member", residual: Tensor, placed: int, done: int) -> None:
    """Dead units point at badly explained rows, drawn with chances ~ squared error."""
    dead = member.dead(done)
    which = dead.nonzero().squeeze(-1) if dead is not None else torch.empty(0, dtype=torch.int64)
    which = which[which >= placed]
    if not len(which):
        return
    error = residual.square().sum(-1).double().cpu()
    source = generator(member.seed, "resample", done)
    drawn = error.multinomial(len(which), replacement=True, generator=source)
    _forget(member, which, done)
    member.sae.decoder[which] = normalize(residual[drawn], dim=-1)
    member.sae.encoder[which] = member.sae.decoder[which]


def _split(member: "Member", residual: Tensor, values: Tensor, weak: float, placed: int, done: int) -> None:
    """Each spare unit goes where it lowers the error most: half of a unit's work, or what none explains."""
    sae, energy, count = member.sae, values.square().sum(0), (values > 0).sum(0)
    if not bool(count.any()):
        return
    spare = energy < weak * energy[count > 0].median()
    spare[:placed] = False
    error = residual.square().sum(-1)
    worst = error.topk(-(-len(error) // WORST)).indices
    residual, values, error = residual[worst], values[worst], error[worst]
    speaks = ((values > 0) & ~spare & (count >= LEAST_SAMPLES)).to(error.dtype)
    speaks[:, :placed] = 0
    for new in spare.nonzero().squeeze(-1).tolist():
        # the unit with the largest mean error where it speaks, and what two halves of it would leave
        old = int(((error @ speaks) / count.clamp(min=1)).argmax())
        where = speaks[:, old].nonzero().squeeze(-1)
        parts = residual[where] + values[where, old].unsqueeze(-1) * sae.decoder[old]
        halves = two_directions(parts)
        left = parts - _explained(parts, halves)
        by_halving = error[where].sum() - left.square().sum()
        direction = unexplained_direction(residual)
        explained = _explained(residual, direction.unsqueeze(0), aligned=ALIGNED)
        if max(by_halving, explained.square().sum()) <= energy[new]:
            continue  # what it does now is worth more
        if by_halving > explained.square().sum():
            _halve(member, old, new, halves, done)
            residual[where] = left
            speaks[:, old] = 0
        else:
            _forget(member, torch.tensor([new]), done)
            sae.decoder[new] = direction
            sae.encoder[new] = direction
            residual = residual - explained
        error = residual.square().sum(-1)


def _halve(member: "Member", old: int, new: int, halves: Tensor, done: int) -> None:
    """Two units in place of one; each keeps what the encoder knew, turned as its atom is."""
    sae, both = member.sae, torch.tensor([old, new])
    turned = sae.encoder[old] + halves - sae.decoder[old]
    bias = sae.encoder_bias[old].clone()
    _forget(member, both, done)
    sae.decoder[both] = halves
    sae.encoder[both] = halves if sae.config.tied else turned
    sae.encoder_bias[both] = bias


def _explained(rows: Tensor, directions: Tensor, *, aligned: float = 0.0) -> Tensor:
    """The best that one of the directions does for each row; nothing for rows less aligned than `aligned`."""
    best = (rows @ directions.T).max(-1)
    kept = best.values.clamp(min=0) * (best.values >= aligned * rows.norm(dim=-1))
    return kept.unsqueeze(-1) * directions[best.indices]


def unexplained_direction(residual: Float[Tensor, "n d"]) -> Float[Tensor, "d"]:
    """A direction that many rows share: the worst row's, drawn towards the large rows beside it."""
    lengths = residual.norm(dim=-1)
    residual = residual / lengths.max().clamp(min=1e-30)  # cubes below stay within range
    direction = normalize(residual[lengths.argmax()], dim=0)
    for _ in range(ROUNDS):
        direction = normalize((residual @ direction).relu().pow(3) @ residual, dim=0)
    return direction


def two_directions(rows: Float[Tensor, "n d"]) -> Float[Tensor, "2 d"]:
    """The two unit vectors that best stand for the rows' directions: two-means, heavy rows counting more."""
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


def _forget(member: "Member", which: Int[Tensor, "n"], done: int) -> None:
    """Parameters, moments and counters of some units back at nothing; thresholds at where they begin."""
    threshold = member.sae.threshold.clone()
    for tensor in member.unit_tensors():
        tensor[which] = 0
    begin = member.recipe.sae.sparsifier
    member.sae.threshold[which] = begin.threshold if isinstance(begin, JumpReLU) else threshold[which]
    member.last_fired[which] = done
