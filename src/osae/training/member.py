"""One SAE in training: its optimizer, its counters, and a step of each."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from osae import passes
from osae.model import SAE
from osae.objective import Terms, objective
from osae.prefix import RandomBoundaries, Sampled, prefix_weights
from osae.recipes import Recipe
from osae.revival import AuxK, Resample, Split
from osae.schedule import active_units, evenly, frozen_units, learning_rate, placed_units
from osae.seeds import generator
from osae.sparsify import BatchTopK, Code
from osae.training.revive import revive
from osae.training.start import start_sae

REVIVAL_ROWS = 50_000  # rows among which badly explained ones are sought
REVIVAL_NUMBERS = 2**26  # of the dense code of those rows
BLOCK = 2**18  # numbers of the decoder at a time: a block stays in cache from one operation to the next


def input_scale(rows: Float[Tensor, "N d"]) -> float:
    """The factor that gives rows a mean square of one per coordinate around their mean."""
    return 1.0 / max(float((rows - rows.mean(0)).square().mean().sqrt()), 1e-12)


class Member:
    """A recipe and a seed on their way: `advance` is one optimizer step, a function of all that is here."""

    def __init__(
        self, recipe: Recipe, seed: int, rows: Float[Tensor, "N d"], *, device: torch.device | str = "cpu"
    ):
        """`rows` are the first activations of the stream, for the scale and the start."""
        self.recipe, self.seed, self.name = recipe, seed, f"{recipe.name}-seed{seed}"
        self.device = torch.device(device)
        self.scale = input_scale(rows) if recipe.rescale else 1.0
        self.sae = start_sae(recipe, rows * self.scale, seed).to(self.device)
        trained = [p for p in self.sae.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=recipe.lr.peak, fused=True)
        self.last_fired = torch.zeros(recipe.sae.units, dtype=torch.int64, device=self.device)
        steps, units = recipe.steps, recipe.sae.units
        self._lr_at = learning_rate(recipe.lr, steps)
        # a sparsifier without a k has nothing to warm up
        k = getattr(recipe.sae.sparsifier, "k", None)
        self.k_at = active_units(recipe.k_warmup if k else None, k or units, units, steps)
        self.frozen_at = frozen_units(recipe.sweep, units, steps)
        self.placed_at = placed_units(recipe.sweep, units, steps)
        resort, revival = recipe.resort, recipe.revival
        self._resorts: tuple[int, ...] = evenly(resort.times, resort.until, steps) if resort else ()
        self._revivals: tuple[int, ...] = ()
        if isinstance(revival, Resample | Split):
            self._revivals = evenly(revival.times, revival.until, steps, revival.since)
        spec = recipe.prefix
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._drawn = isinstance(spec, RandomBoundaries | Sampled)
        self._weights = prefix_weights(spec, units, generator(seed, "prefix")).to(self.device)

    def batch(self, block: Float[Tensor, "N d"], index: int, turn: int) -> Float[Tensor, "B d"]:
        """Batch number `turn` of block number `index`, in this seed's own order."""
        if self._order[0] != index:
            self._order = (index, torch.randperm(len(block), generator=generator(self.seed, "order", index)))
        size = self.recipe.batch
        return block.index_select(0, self._order[1][turn * size : (turn + 1) * size]).to(self.device)

    def advance(self, x: Float[Tensor, "B d"], step: int) -> Terms:
        """The terms of the loss on x, after the step they ask for."""
        terms = self.terms(x, step)
        self.descend(terms, step)
        return terms.detach()

    def terms(self, x: Float[Tensor, "B d"], step: int) -> Terms:
        """The terms of the loss on x, by the schedules of this step."""
        weights = self._weights
        if self._drawn:
            weights = prefix_weights(
                self.recipe.prefix, self.recipe.sae.units, generator(self.seed, "prefix", step)
            ).to(self.device)
        aux = self.recipe.revival if isinstance(self.recipe.revival, AuxK) else None
        x = x * self.scale
        return objective(self.sae, x, k=self.k_at(step), weights=weights, dead=self.dead(step), aux=aux)

    def descend(self, terms: Terms, step: int) -> None:
        """The optimizer step that these terms ask for, and the counters."""
        self.optimizer.zero_grad()
        terms.total.backward()
        self._step(step)
        self._count(terms.code, step)

    def dead(self, step: int) -> Tensor | None:
        """Which units have been silent for too long; None if the recipe does not ask."""
        revival = self.recipe.revival
        if not isinstance(revival, AuxK | Resample):
            return None
        return (step - self.last_fired) * self.recipe.batch > revival.dead_after

    @torch.no_grad()
    def _step(self, step: int) -> None:
        """One optimizer step on unit atoms; the first `frozen` units and their moments do not move."""
        decoder, frozen = self.sae.decoder, self.frozen_at(step)
        together = max(1, BLOCK // decoder.shape[1])
        if decoder.grad is not None:
            for grad, atoms in zip(decoder.grad.split(together), decoder.split(together), strict=True):
                grad -= (grad * atoms).sum(-1, keepdim=True) * atoms
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr_at(step)
        kept = [(t, t[:frozen].clone()) for t in self._frozen_tensors()] if frozen else []
        self.optimizer.step()
        for atoms in decoder.split(together):
            atoms /= atoms.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        self.sae.threshold.clamp_(min=0)
        for tensor, rows in kept:
            tensor[:frozen] = rows

    @torch.no_grad()
    def _count(self, code: Code, step: int) -> None:
        """Counters move here and nowhere else."""
        spoke = code.values > 0
        fired = torch.where(spoke, step, 0).flatten()  # the largest is the latest
        self.last_fired.scatter_reduce_(0, code.units.flatten(), fired, "amax")
        sparsifier = self.recipe.sae.sparsifier
        if isinstance(sparsifier, BatchTopK) and bool(spoke.any()):
            lowest = code.values[spoke].min()
            self.sae.threshold.lerp_(lowest.expand_as(self.sae.threshold), 1 - sparsifier.threshold_momentum)

    @torch.no_grad()
    def tend(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Sorting and resampling that are due after `done` steps, measured on rows of the block at hand."""
        if done in self._revivals:
            count = min(REVIVAL_ROWS, REVIVAL_NUMBERS // self.recipe.sae.units)
            revive(self, self._rows(block, done, count).to(self.device) * self.scale, done)
        if self.recipe.resort is not None and done in self._resorts:
            last = done == self._resorts[-1]
            self.resort(block if last else self._rows(block, done, self.recipe.resort.samples), done)

    def _rows(self, block: Tensor, done: int, count: int) -> Tensor:
        """A random choice of rows, the same whenever the step is the same."""
        if count >= len(block):
            return block
        return block[torch.randperm(len(block), generator=generator(self.seed, "rows", done))[:count]]

    @torch.no_grad()
    def resort(self, rows: Tensor, done: int) -> None:
        """Units that have no place yet stand in order of their gain, with all that belongs to them."""
        batches = (part * self.scale for part in rows.split(passes.ROWS))
        order = passes.order_units(self.sae, batches, k=self.k_at(done - 1))
        placed = self.placed_at(done - 1)
        order = torch.cat([torch.arange(placed), order[order >= placed]]).to(self.device)
        for tensor in self.unit_tensors():
            tensor.copy_(tensor[order])

    def unit_tensors(self) -> list[Tensor]:
        """Every tensor with one row per unit: parameters, optimizer moments, counters."""
        return [*self._with_moments(self.sae.per_unit().values()), self.last_fired]

    def _frozen_tensors(self) -> list[Tensor]:
        """The tensors whose first rows stay as they are when units freeze."""
        sweep = self.recipe.sweep
        return self._with_moments([self.sae.decoder]) if sweep and sweep.atoms_only else self.unit_tensors()

    def _with_moments(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        found = list(parameters)
        moments = [
            self.optimizer.state[p][name]
            for p in found
            if p in self.optimizer.state
            for name in ("exp_avg", "exp_avg_sq")
        ]
        return [*found, *moments]

    def state(self) -> dict[str, Tensor]:
        """All that a resumed training needs, by name; the rest follows from the recipe, seed and step."""
        tensors: dict[str, Tensor] = {f"sae/{name}": t for name, t in self.sae.named_parameters()}
        for name, parameter in self.sae.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            tensors |= {f"adam/{name}/{key}": value for key, value in state.items()}
        return tensors | {"last_fired": self.last_fired}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """This member as it was when `state()` was called."""
        for name, parameter in self.sae.named_parameters():
            parameter.copy_(state[f"sae/{name}"])
            prefix = f"adam/{name}/"
            moments = {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
            if moments:
                self.optimizer.state[parameter] = {n: t.to(self.device) for n, t in moments.items()}
        self.last_fired.copy_(state["last_fired"])

    def finish(self) -> SAE:
        """The SAE as it stands, for raw activations: the input scale is folded in."""
        return self.sae.fold_scale(self.scale).cpu()
