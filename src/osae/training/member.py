"""One SAE in training: its weights, its optimizer, its counters, and a step of each."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from osae import passes
from osae.devices import single_thread
from osae.model import SAE
from osae.objective import Terms, objective
from osae.prefix import RandomBoundaries, Sampled, prefix_weights
from osae.recipes import Recipe
from osae.revival import AuxK, Resample, Split
from osae.schedule import active_units, frozen_units, learning_rate, placed_units, space_evenly
from osae.seeds import generator
from osae.sparsify import BatchTopK, Code
from osae.training.finite import NotFinite, are_finite, warn_if_exploded
from osae.training.revive import revive
from osae.training.start import start_sae
from osae.training.weights import Weights

REVIVAL_ROWS = 50_000  # rows that are searched for poorly reconstructed ones
REVIVAL_NUMBERS = 2**26  # of the dense code of those rows


@single_thread()  # a sum depends on the number of threads in its last bits
def input_scale(rows: Float[Tensor, "N d"]) -> float:
    """Return the factor that gives rows a mean square of one per coordinate around their mean."""
    return 1.0 / max(float((rows - rows.mean(0)).square().mean().sqrt()), 1e-12)


class Member:
    """A recipe and a seed in training. `advance` is one optimizer step, a function of all that is here."""

    def __init__(
        self, recipe: Recipe, seed: int, rows: Float[Tensor, "N d"], *, device: torch.device | str = "cpu"
    ):
        """Start the SAE; `rows` are the first activations of the stream, which set the input scale."""
        self.recipe, self.seed, self.name = recipe, seed, f"{recipe.name}-seed{seed}"
        self.device = torch.device(device)
        self.scale = input_scale(rows) if recipe.rescale else 1.0
        rows = rows * self.scale
        self.sae = start_sae(recipe, rows, seed).to(self.device)
        self.weights = Weights(self.sae, recipe.dictionary, rows, generator(seed, "dictionary"))
        trained = [p for p in self.weights.named().values() if p.requires_grad]
        adam = recipe.adam
        self.optimizer = torch.optim.Adam(
            trained,
            lr=recipe.lr.peak,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_penalty,
            fused=True,
        )
        self.last_fired = torch.zeros(recipe.sae.units, dtype=torch.int64, device=self.device)
        self.skipped = 0  # batches left out because their loss or gradients were not finite
        self._first_loss, self._warned = -1.0, False
        self._set_schedules()

    def _set_schedules(self) -> None:
        recipe, steps, units = self.recipe, self.recipe.steps, self.recipe.sae.units
        self._lr_at = learning_rate(recipe.lr, steps)
        # a sparsifier without a k has nothing to warm up
        k = getattr(recipe.sae.sparsifier, "k", None)
        self.k_at = active_units(recipe.k_warmup if k else None, k or units, units, steps)
        self.frozen_at = frozen_units(recipe.sweep, units, steps)
        self.placed_at = placed_units(recipe.sweep, units, steps)
        resort, revival = recipe.resort, recipe.revival
        self._resorts: tuple[int, ...] = space_evenly(resort.times, resort.until, steps) if resort else ()
        self._revivals: tuple[int, ...] = ()
        if isinstance(revival, Resample | Split):
            self._revivals = space_evenly(revival.times, revival.until, steps, revival.since)
        restarts = recipe.sweep is not None and recipe.sweep.restart
        self._restart_at = self.frozen_at if restarts else lambda step: 0
        self._drawn = restarts or isinstance(recipe.prefix, RandomBoundaries | Sampled)
        self._prefix_weights = self._draw_prefix_weights()

    def _draw_prefix_weights(self, *step: int) -> Tensor:
        """Return the weight of each prefix; those within the frozen units have none if prefixes restart."""
        source = generator(self.seed, "prefix", *step)
        behind = min(self._restart_at(*step), self.recipe.sae.units - 1) if step else 0
        weights = prefix_weights(self.recipe.prefix, self.recipe.sae.units - behind, source)
        return torch.nn.functional.pad(weights, (behind, 0))

    def advance(self, x: Float[Tensor, "B d"], step: int) -> Terms:
        """Take the optimizer step that x asks for, and return the terms of the loss before it.

        Raise `NotFinite`, with nothing changed, if the loss or a gradient is NaN or infinite.
        """
        terms = self.terms(x, step)
        self.descend(terms, step)
        self._count(terms.code, step)
        return terms.detach()

    def descend(self, terms: Terms, step: int) -> None:
        """Take the optimizer step for these terms, or raise `NotFinite` with nothing changed."""
        self._differentiate(terms, step)
        self._step(step)

    def terms(self, x: Float[Tensor, "B d"], step: int) -> Terms:
        """Return the terms of the loss on x, with the schedules at this step."""
        weights = self._draw_prefix_weights(step) if self._drawn else self._prefix_weights
        aux = self.recipe.revival if isinstance(self.recipe.revival, AuxK) else None
        x = x.to(self.device) * self.scale
        return objective(self.sae, x, k=self.k_at(step), weights=weights, dead=self.dead(step), aux=aux)

    def _differentiate(self, terms: Terms, step: int) -> None:
        """Compute the gradients of all parameters; raise `NotFinite` if they or the loss are not finite."""
        self.weights.zero_grad()
        terms.total.backward()
        self.weights.pull_back()
        gradients = [p.grad for p in self.weights.named().values() if p.grad is not None]
        if not are_finite([terms.total, *gradients]):
            part = "the loss" if not are_finite([terms.total]) else "a gradient"
            raise NotFinite(f"{self.name}: {part} is NaN or infinite at step {step + 1}", terms.detach())
        loss = float(terms.total.detach())
        self._first_loss = loss if self._first_loss < 0 else self._first_loss
        if not self._warned:
            self._warned = warn_if_exploded(self.name, step + 1, loss, self._first_loss)

    def dead(self, step: int) -> Tensor | None:
        """Return which units have been inactive for too long; None if the recipe does not ask."""
        revival = self.recipe.revival
        if not isinstance(revival, AuxK | Resample):
            return None
        return (step - self.last_fired) * self.recipe.batch > revival.dead_after

    @torch.no_grad()
    def _step(self, step: int) -> None:
        """Take one optimizer step; the first `frozen` units and their moments do not move."""
        frozen = self.frozen_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr_at(step)
        if self.recipe.adam.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.weights.named().values(), self.recipe.adam.clip)
        kept = [(t, t[:frozen].clone()) for t in self._frozen_tensors()] if frozen else []
        self.optimizer.step()
        self.weights.constrain()
        for tensor, rows in kept:
            tensor[:frozen] = rows
        self.weights.refresh()

    @torch.no_grad()
    def _count(self, code: Code, step: int) -> None:
        """Update the counters; nothing else does."""
        fires = code.values > 0
        fired = torch.where(fires, step, 0).flatten()  # the largest is the latest
        self.last_fired.scatter_reduce_(0, code.units.flatten(), fired, "amax")
        sparsifier = self.recipe.sae.sparsifier
        if isinstance(sparsifier, BatchTopK) and bool(fires.any()):
            lowest = code.values[fires].min()
            self.sae.threshold.lerp_(lowest.expand_as(self.sae.threshold), 1 - sparsifier.threshold_momentum)

    @torch.no_grad()
    def revive_if_due(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Revive units if that is due after `done` steps, measured on rows of the current block."""
        if done in self._revivals:
            count = min(REVIVAL_ROWS, REVIVAL_NUMBERS // self.recipe.sae.units)
            revive(self, self._rows(block, done, count).to(self.device) * self.scale, done)

    @torch.no_grad()
    def resort_if_due(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Sort units if that is due after `done` steps, measured on rows of the current block."""
        if self.recipe.resort is not None and done in self._resorts:
            last = done == self._resorts[-1]
            self.resort(block if last else self._rows(block, done, self.recipe.resort.samples), done)

    def _rows(self, block: Tensor, done: int, count: int) -> Tensor:
        """Return a random choice of rows, always the same after the same number of steps."""
        if count >= len(block):
            return block
        return block[torch.randperm(len(block), generator=generator(self.seed, "rows", done))[:count]]

    @torch.no_grad()
    def resort(self, rows: Tensor, done: int) -> None:
        """Sort the units that have no fixed place by their gain, with everything that belongs to them."""
        batches = (part * self.scale for part in rows.split(passes.ROWS))
        order = passes.order_units(self.sae, batches, k=self.k_at(done - 1))
        placed = self.placed_at(done - 1)
        order = torch.cat([torch.arange(placed), order[order >= placed]]).to(self.device)
        for tensor in self.unit_tensors():
            tensor.copy_(tensor[order])
        self.weights.refresh()

    def unit_tensors(self) -> list[Tensor]:
        """Return every tensor with one row per unit: parameters, optimizer moments, counters."""
        parameters = self.weights.per_unit()
        return [*parameters, *self.moments(parameters), self.last_fired]

    def moments(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the optimizer's moments of these parameters, as far as it has any yet."""
        states = [self.optimizer.state[p] for p in parameters if p in self.optimizer.state]
        return [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]

    def _frozen_tensors(self) -> list[Tensor]:
        """Return the tensors whose first rows stay as they are while units are frozen."""
        if self.recipe.sweep is None or not self.recipe.sweep.atoms_only:
            return self.unit_tensors()
        atoms = self.weights.of_atoms()
        return [*atoms, *self.moments(atoms)]

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed run needs, by name; the rest follows from the recipe, seed and step.

        Raise `NotFinite` if any of it is NaN or infinite: nobody could resume from that.
        """
        self._check_weights()
        tensors = {f"sae/{name}": tensor for name, tensor in self.weights.state().items()}
        for name, parameter in self.weights.named().items():
            state = self.optimizer.state.get(parameter, {})
            tensors |= {f"adam/{name}/{key}": value for key, value in state.items()}
        return tensors | {"last_fired": self.last_fired, "skipped": torch.tensor(self.skipped)}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Put this member back to where it was when `state` was called."""
        self.weights.restore(_below("sae/", state))
        for name, parameter in self.weights.named().items():
            if moments := _below(f"adam/{name}/", state):
                self.optimizer.state[parameter] = {n: t.to(self.device) for n, t in moments.items()}
        self.last_fired.copy_(state["last_fired"])
        self.skipped = int(state.get("skipped", 0))  # release 0.1.0 did not count them

    def finish(self) -> SAE:
        """Return the SAE in its current state, for raw activations: the input scale is folded in."""
        self._check_weights()
        return self.sae.fold_scale(self.scale).cpu()

    def _check_weights(self) -> None:
        weights = self.weights.state().values()
        if not are_finite([*weights, *self.moments(weights)]):
            raise NotFinite(
                f"{self.name}: a step has made weights NaN or infinite: "
                f"train with a lower rate than lr.peak={self.recipe.lr.peak:g}."
            )


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
