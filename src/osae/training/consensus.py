"""Consensus: the units that many short runs find, as a start for training.

Shapes: N runs of M units, K units of the start, d width, n centres, P = N M atoms of all runs together.

A run settles in one of many solutions of similar quality, and chance decides in which one. Some of its units
almost every run finds, others hardly any. So several short runs are trained, and the start has the units that
most of them find: two consensuses of N runs agree more than two runs, and the more so the larger N is.

A unit is found by a run if its atom and the nearest one of that run have a cosine c of at least `same`; it is
then found with weight c^4, and its score is the mean weight over all runs. Atoms with a cosine above `same`
count as one unit. Beginning with the atoms that score best,

    centre <- normalised sum over runs of c^4 times the nearest atom of the run

is repeated a few times; a unit's encoder and bias are means with the same weights.

Short runs have more units than the start. With as many, the units of a run with the least gain are a matter
of chance, because many others would have had almost the same gain; with more, almost every run finds the K
units that matter most.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from osae import passes
from osae.config import to_json
from osae.data.source import Source
from osae.devices import single_thread
from osae.dictionary import FreeAtoms
from osae.model import SAE
from osae.prefix import Full
from osae.recipes import FromConsensus, FromNoise, Recipe
from osae.results.ordering import By
from osae.training.finite import OnNan, finite_rows
from osae.training.loop import train
from osae.training.member import Member
from osae.training.start import Consensus

POWER = 4  # of a cosine, as a weight: the nearer, the more it counts
ROUNDS = 8  # of moving centres
SEEDS = 1_000_000  # the seeds of the short runs of seed s follow (s + 1) times this number
SORTED_ROWS = 50_000  # by which the units of the start are sorted
PER_UNIT = ("decoder", "encoder", "encoder_bias", "threshold")  # what is averaged


def make_short(recipe: Recipe, start: FromConsensus) -> Recipe:
    """Return the recipe of a short run: from noise, under the plain loss, with free atoms in any order."""
    return replace(
        recipe,
        sae=replace(recipe.sae, units=round(start.wider * recipe.sae.units)),
        samples=start.samples,
        lr=replace(recipe.lr, peak=start.rate * recipe.lr.peak),
        extensions=(),
        start=FromNoise(),
        prefix=Full(),
        dictionary=FreeAtoms(),
        sweep=None,
        resort=None,
    )


def start_from_runs(
    recipe: Recipe,
    seed: int,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    on_nan: OnNan = "stop",
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Consensus | None:
    """Return the consensus of short runs with its units in order, or None for any other start.

    With `folder`, the SAEs of the short runs are kept there, and those that it already has are not trained
    again. `tell` is called with a sentence before each run.
    """
    start = recipe.start
    if not isinstance(start, FromConsensus):
        return None
    short, saes = make_short(recipe, start), []
    for number in range(start.runs):
        kept = folder / str(number) if folder else None
        if kept and (kept / "sae.json").is_file():
            saes.append(SAE.load(kept))
            continue
        tell(f"short run {number + 1} of {start.runs}, for the start of {recipe.name}, seed {seed}.")
        rows = finite_rows(source.block(0), "block 0", on_nan)
        own = SEEDS * (seed + 1) + number
        member = Member(short, own, rows, device=device, precision=precision)
        train([member], source, on_nan=on_nan)
        saes.append(member.finish())
        if kept:
            saes[-1].save(kept, provenance={"recipe": to_json(short), "seed": own})
    rows = finite_rows(source.block(0), "block 0", on_nan)[:SORTED_ROWS]
    return sort_consensus(find_consensus(saes, start.same, recipe.sae.units), rows)


def sort_consensus(found: Consensus, rows: Float[Tensor, "N d"], by: By = "gain") -> Consensus:
    """Return the consensus with its units sorted by gain times score."""
    order = passes.order_units(found.sae, rows.split(passes.ROWS), by=by, weights=found.scores)
    return Consensus(found.sae.reorder(order), found.scores[order])


class _Found(NamedTuple):
    """Which unit of each run is nearest to each centre, and with which weight it counts."""

    units: Int[Tensor, "N n"]
    weights: Float[Tensor, "N n"]

    def scores(self) -> Float[Tensor, "n"]:
        return self.weights.mean(0)

    def mean(self, tensor: Float[Tensor, "N M ..."]) -> Float[Tensor, "n ..."]:
        """Return the weighted mean of the units that were found."""
        shares = self.weights / self.weights.sum(0).clamp(min=1e-12)
        total = torch.zeros_like(tensor[0][self.units[0]])
        for share, units, of_run in zip(shares, self.units, tensor, strict=True):
            total += share.view(-1, *[1] * (of_run.ndim - 1)) * of_run[units]
        return total


@single_thread()  # the last bits of products depend on the number of threads
@torch.no_grad()
def find_consensus(saes: Sequence[SAE], same: float, units: int) -> Consensus:
    """Return the units that most of these SAEs have, averaged over the SAEs that have them, best first.

    If fewer units are different enough, the others are the atoms farthest from those chosen, one by one.
    """
    stored = [sae.state_dict() for sae in saes]
    parts = {name: torch.stack([one[name].detach().cpu() for one in stored]) for name in PER_UNIT}
    atoms = parts["decoder"]
    pool = atoms.flatten(0, 1)
    centres = pool[_choose(pool, _find(atoms, pool, 0.0).scores(), same)]
    for _ in range(ROUNDS):
        centres = normalize(_find(atoms, centres, same).mean(atoms), dim=-1)
    found = _find(atoms, centres, same)
    chosen = _choose(centres, found.scores(), same)[:units]
    centres = torch.cat([centres[chosen], _farthest(pool, centres[chosen], units - len(chosen))])
    found = _find(atoms, centres, same)
    merged = {name: found.mean(part) for name, part in parts.items()}
    merged["decoder"] = normalize(merged["decoder"], dim=-1)
    merged["decoder_bias"] = torch.stack([one["decoder_bias"].cpu() for one in stored]).mean(0)
    sae = SAE.from_tensors(replace(saes[0].config, units=units), merged)
    return Consensus(sae.requires_grad_(False), found.scores())


def _find(atoms: Float[Tensor, "N M d"], centres: Float[Tensor, "n d"], same: float) -> _Found:
    """Return the units nearest to the centres; those with a smaller cosine than `same` have no weight."""
    nearest = [(centres @ of_run.T).max(1) for of_run in atoms]
    cosines = torch.stack([found.values for found in nearest]).clamp(min=0)
    weights = torch.where(cosines >= same, cosines**POWER, 0.0)
    return _Found(torch.stack([found.indices for found in nearest]), weights)


def _choose(atoms: Float[Tensor, "n d"], scores: Float[Tensor, "n"], same: float) -> Int[Tensor, "m"]:
    """Return the atoms by score, without those that have a cosine above `same` with one chosen before."""
    free, chosen = scores > 0, []
    for one in scores.argsort(descending=True, stable=True).tolist():
        if free[one]:
            chosen.append(one)
            free &= atoms @ atoms[one] <= same
    return torch.tensor(chosen, dtype=torch.int64)


def _farthest(
    pool: Float[Tensor, "P d"], chosen: Float[Tensor, "n d"], count: int
) -> Float[Tensor, "count d"]:
    """Return this many atoms, each the farthest from those chosen before it."""
    nearest, found = (pool @ chosen.T).amax(1) if count else pool[:, 0], []
    for _ in range(count):
        found.append(pool[nearest.argmin()])
        nearest = torch.maximum(nearest, pool @ found[-1])
    return torch.stack(found) if found else pool[:0]
