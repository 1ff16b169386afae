"""Second lives: units that do nothing get something to do.

Shapes: n samples, d width. Units that change start without optimizer momentum.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from osae.model import Resample, Split
from osae.seeds import generator

if TYPE_CHECKING:
    from osae.train.member import Member

ROUNDS = 10  # of two-means; it settles in three or four
LEAST_SAMPLES = 20  # a unit seen less often is not split: its two halves would be noise


@torch.no_grad()
def revive(member: "Member", rows: Tensor, done: int) -> None:
    """The member's idle units at work again, as its recipe says, measured on these (scaled) rows."""
    code = member.sae.encode(rows, k=member.k_at(done - 1))
    residual = rows - member.sae.decode(code)
    match member.recipe.sae.revival:
        case Resample():
            _resample(member, residual, done)
        case Split(weak=weak):
            _split(member, residual, code.dense(member.recipe.sae.units), weak, done)


def _resample(member: "Member", residual: Tensor, done: int) -> None:
    """Dead units point at badly explained rows, drawn with chances ~ squared error."""
    dead = member.dead(done)
    if dead is None or not bool(dead.any()):
        return
    which = dead.nonzero().squeeze(-1)
    error = residual.square().sum(-1).double()
    source = generator(member.seed, "resample", done)
    drawn = error.multinomial(len(which), replacement=True, generator=source)
    _forget(member, which, done)
    member.sae.decoder[which] = normalize(residual[drawn], dim=-1)
    member.sae.encoder[which] = member.sae.decoder[which]


def _split(member: "Member", residual: Tensor, values: Tensor, weak: float, done: int) -> None:
    """Each spare unit shares the work of a unit with a large error wherever it speaks."""
    energy, count = values.square().sum(0), (values > 0).sum(0)
    spare = energy < weak * energy.median()
    badness = ((values > 0).to(residual.dtype).T @ residual.square().sum(-1)) / count.clamp(min=1)
    badness[spare | (count < LEAST_SAMPLES)] = -1
    worst = badness.argsort(descending=True, stable=True)[: int((badness >= 0).sum())]
    sae = member.sae
    for new, old in zip(spare.nonzero().squeeze(-1).tolist(), worst.tolist(), strict=False):
        speaks = values[:, old] > 0
        atom, row, bias = sae.decoder[old].clone(), sae.encoder[old].clone(), sae.encoder_bias[old].clone()
        halves = two_directions(residual[speaks] + values[speaks, old].unsqueeze(-1) * atom)
        both = torch.tensor([old, new])
        _forget(member, both, done)
        sae.decoder[both] = halves
        sae.encoder[both] = row + halves - atom if not sae.config.tied else halves
        sae.encoder_bias[both] = bias


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
    """Parameters, moments and counters of some units back at nothing."""
    for tensor in member.unit_tensors():
        tensor[which] = 0
    member.last_fired[which] = done
