"""One SAE in training: its weights, its optimizer, its counters, and a step of each."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from osae import kernels, passes
from osae.devices import single_thread
from osae.kernels.precision import Precision, check_precision, multiplying_in
from osae.model import SAE
from osae.objective import Terms, encode, objective
from osae.prefix import RandomBoundaries, Sampled, prefix_weights
from osae.ranks import ALONE, Mesh
from osae.recipes import FromNoise, Recipe
from osae.results.ordering import By
from osae.revival import AuxK, Resample
from osae.seeds import generator
from osae.sparsify import BatchTopK, Code, find_k
from osae.training import fused
from osae.training.finite import NotFinite, Watch, are_finite, waits
from osae.training.parallel import check_mesh, clip_gradients, share_gradients, take_units
from osae.training.revive import revive
from osae.training.schedules import make_schedules
from osae.training.start import Consensus, start_sae
from osae.training.weights import Weights

REVIVAL_ROWS = 50_000  # rows to search for poorly reconstructed ones
SEEN = 1000  # rows from which the scale of the loss is measured
ROUNDING = 1e-6  # relative deviation of rows that are the same, up to rounding in single precision
SMALLEST = 1e-12  # deviation of rows that are scaled to one; smaller ones stay smaller
REVIVAL_NUMBERS = 2**26  # of the dense code of those rows


@single_thread()  # the last bits of a sum depend on the number of threads
def input_scale(rows: Float[Tensor, "N d"]) -> float:
    """Return the factor that scales rows to a mean square of one per coordinate around their mean.

    If all rows are the same, their distances from the mean are rounding errors, which must not be magnified:
    the factor then scales the rows to a mean square of one around zero.
    """
    deviation = _root_mean_square(rows - rows.mean(0))
    if not math.isfinite(deviation):  # in single precision, squares of numbers above 1e19 are infinite
        rows = rows.double()
        deviation = _root_mean_square(rows - rows.mean(0))
    size = _root_mean_square(rows)
    return 1.0 / max(deviation if deviation > ROUNDING * size else size, SMALLEST)


def _root_mean_square(numbers: Tensor) -> float:
    return float(numbers.square().mean().sqrt())


def name_member(recipe: Recipe, seed: int) -> str:
    """Return the name of the SAE of a recipe and a seed."""
    return f"{recipe.name}-seed{seed}"


class Member:
    """A recipe and a seed in training. `advance` takes one optimizer step, a function of this state."""

    sorted_by: By = "gain"

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        rows: Float[Tensor, "N d"],
        *,
        device: torch.device | str = "cpu",
        mesh: Mesh = ALONE,
        start: SAE | Consensus | None = None,
        precision: str = "fp32",
    ):
        """Start the SAE; `rows` are the first activations of the stream, which set the input scale.

        `start` is the SAE that the recipe starts from, if it is already in memory; the scores of a consensus
        stay with its units. `precision` applies to the products of a step; sorting, revival and logs use
        single precision.

        On a mesh, this is the part of the SAE and of every batch that belongs to this rank.
        """
        self.recipe, self.seed, self.name = recipe, seed, name_member(recipe, seed)
        self.device, self.mesh = torch.device(device), mesh
        self.precision: Precision = check_precision(precision)
        check_mesh(recipe, mesh)
        self.mine = mesh.units.cut(recipe.sae.units)  # the units of this rank
        self.scale = input_scale(rows) if recipe.rescale else 1.0
        rows = rows * self.scale
        given, scores = start if isinstance(start, Consensus) else (start, None)
        assert scores is None or mesh.everyone.size == 1, "check_mesh refuses short runs on several ranks"
        self.scores = None if scores is None else scores.to(self.device, copy=True)
        self.sae = take_units(start_sae(recipe, rows, seed, scale=self.scale, given=given), self.mine).to(
            self.device
        )
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
        self.fused = fused.applies(recipe, self.device)
        self.last_fired = torch.zeros(len(self.sae.decoder), dtype=torch.int64, device=self.device)
        self.skipped = 0  # batches skipped because their loss or gradients were not finite
        self.watch = Watch(self.name, self.device, self._measure_empty(rows[:SEEN]))
        self.may_skip = True
        self._oldest = 0  # every unit has fired at this step or later
        self._set_schedules()

    def _measure_empty(self, rows: Float[Tensor, "N d"]) -> float:
        """Return the loss of an SAE that reconstructs nothing; rescaled rows count at least as ones."""
        least = rows.shape[1] if self.recipe.rescale else 0
        return max(float(rows.square().sum(-1).mean()), least)

    def _set_schedules(self) -> None:
        recipe, plan = self.recipe, make_schedules(self.recipe)
        self.has_k = find_k(recipe.sae.sparsifier) is not None
        self._lr_at, self.k_at = plan.rate, plan.k
        self.frozen_at, self.placed_at = plan.frozen, plan.placed
        self._resorts, self._last_resorts, self._revivals = plan.resorts, plan.last_resorts, plan.revivals
        restarts = recipe.sweep is not None and recipe.sweep.restart
        self._restart_at = self.frozen_at if restarts else lambda step: 0
        self._drawn = restarts or isinstance(recipe.prefix, RandomBoundaries | Sampled)
        self._prefix_weights = self._draw_prefix_weights()

    def _draw_prefix_weights(self, *step: int) -> Tensor:
        """Return the weight of each prefix.

        Prefixes within the frozen units have no weight if prefixes restart.
        """
        source = generator(self.seed, "prefix", *step)
        behind = min(self._restart_at(*step), self.recipe.sae.units - 1) if step else 0
        weights = prefix_weights(self.recipe.prefix, self.recipe.sae.units - behind, source)
        return torch.nn.functional.pad(weights, (behind, 0))

    def advance(self, x: Float[Tensor, "B d"], step: int) -> Terms:
        """Take one optimizer step on x, and return the terms of the loss before it.

        Raise `NotFinite`, with nothing changed, if the loss or a gradient is NaN or infinite; on a GPU, this
        may be some steps later, unless `may_skip` is set (see `Watch`).
        """
        with multiplying_in(self.precision):
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
        x = x[self.mesh.rows.cut(len(x))].to(self.device) * self.scale
        return objective(
            self.sae,
            x,
            k=self.k_at(step),
            weights=weights[self.mine],
            dead=self.dead(step),
            aux=aux,
            mesh=self.mesh,
        )

    def _differentiate(self, terms: Terms, step: int) -> None:
        """Compute the gradients of all parameters; raise `NotFinite` if they or the loss are not finite."""
        self.weights.zero_grad()
        terms.total.backward()
        share_gradients(self.weights, self.mesh)
        self.weights.pull_back(project=not self.fused, units=self.mesh.units)
        gradients = [p.grad for p in self.weights.named().values() if p.grad is not None]
        wait = self.may_skip or waits(self.device)
        self.watch.check(terms, gradients, step, wait=wait, ranks=self.mesh.everyone)
        # torch's own way of telling a fused optimizer on the device to do nothing
        self.optimizer.found_inf = None if wait else self.watch.spoiled  # type: ignore[attr-defined]

    def dead(self, step: int) -> Tensor | None:
        """Return which units have been inactive for too long; None if there are none or not needed.

        The device is queried only if a unit can have become inactive for that long since the last query.
        """
        revival = self.recipe.revival
        if not isinstance(revival, AuxK | Resample):
            return None
        if (step - self._oldest) * self.recipe.batch > revival.dead_after:
            self._oldest = int(self.mesh.units.min_(self.last_fired.min()))
        if (step - self._oldest) * self.recipe.batch <= revival.dead_after:
            return None
        return (step - self.last_fired) * self.recipe.batch > revival.dead_after

    @torch.no_grad()
    def _step(self, step: int) -> None:
        """Take one optimizer step; the first `frozen` units and their moments do not change."""
        frozen = max(0, self.frozen_at(step) - self.mine.start)  # slices end with the units of this rank
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr_at(step)
        if self.recipe.adam.clip is not None:
            clip_gradients(self.weights, self.recipe.adam.clip, self.mesh)
        kept = [(t, t[:frozen].clone()) for t in self._frozen_tensors()] if frozen else []
        if self.fused:
            fused.step(self.optimizer, self.weights.parameters["decoder"], self.watch.spoiled)
        else:
            self.optimizer.step()
        self.weights.constrain(dictionary=not self.fused)
        for tensor, rows in kept:
            tensor[:frozen] = rows
        self.weights.refresh()

    @torch.no_grad()
    def _count(self, code: Code, step: int) -> None:
        """Update the counters, which nothing else does."""
        largest = code.values.new_zeros(len(self.last_fired))
        largest.scatter_reduce_(0, code.units.flatten(), code.values.flatten(), "amax")
        self.last_fired.masked_fill_(largest > 0, step)
        self.mesh.rows.max_(self.last_fired)
        sparsifier = self.recipe.sae.sparsifier
        if isinstance(sparsifier, BatchTopK):
            firing = torch.where(code.values > 0, code.values, torch.inf)
            lowest = self.mesh.everyone.min_(firing.min())
            target = torch.where(lowest.isinf(), self.sae.threshold, lowest)  # none fires: it stays
            self.sae.threshold.lerp_(target, 1 - sparsifier.threshold_momentum)

    @torch.no_grad()
    def revive_if_due(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Revive units if due after `done` steps, based on rows of the current block."""
        if done in self._revivals:
            self.watch.settle()
            count = min(REVIVAL_ROWS, REVIVAL_NUMBERS // self.recipe.sae.units)
            rows = self._rows(block, done, count)
            self._change_whole(lambda whole: revive(whole, rows.to(whole.device) * whole.scale, done), block)

    @torch.no_grad()
    def resort_if_due(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Sort units if due after `done` steps, based on rows of the current block."""
        if self.recipe.resort is not None and done in self._resorts:
            self.watch.settle()
            last = done in self._last_resorts
            rows = block if last else self._rows(block, done, self.recipe.resort.samples)
            self._change_whole(lambda whole: whole.resort(rows, done), block)

    @torch.no_grad()
    def stop_early(self, block: Float[Tensor, "N d"], done: int) -> None:
        """Sort units as after the last step, if the recipe does so; training ends after `done` steps."""
        if self.recipe.resort is not None:
            self.watch.settle()
            self._change_whole(lambda whole: whole.resort(block, done), block)

    def _change_whole(self, change: "Callable[[Member], None]", rows: Tensor) -> None:
        """Change the SAE as a whole: the first of several ranks does so, and the others copy the result."""
        if self.mesh.everyone.size == 1:
            change(self)
            return
        state = self.state()
        if self.mesh.is_first:
            whole = Member(replace(self.recipe, start=FromNoise()), self.seed, rows, device=self.device)
            whole.scale = self.scale
            whole.restore(state)
            change(whole)
            state = whole.state()
        spread = self.mesh.everyone.spread_
        self.restore({name: spread(state[name].detach().cpu()) for name in sorted(state)})

    def _rows(self, block: Tensor, done: int, count: int) -> Tensor:
        """Return a random selection of rows, which depends only on the number of steps."""
        if count >= len(block):
            return block
        return block[torch.randperm(len(block), generator=generator(self.seed, "rows", done))[:count]]

    @torch.no_grad()
    def resort(self, rows: Tensor, done: int) -> None:
        """Sort the units without a fixed position, with everything that belongs to them.

        They are sorted by gain or, from a consensus, by gain times score.
        """
        batches, k = (part * self.scale for part in rows.split(passes.ROWS)), self.k_at(done - 1)
        order = passes.order_units(self.sae, batches, by=self.sorted_by, k=k, weights=self.scores)
        placed = self.placed_at(done - 1)
        order = torch.cat([torch.arange(placed), order[order >= placed]]).to(self.device)
        for tensor in self.unit_tensors():
            tensor.copy_(tensor[order])
        self.weights.refresh()

    def unit_tensors(self) -> list[Tensor]:
        """Return every tensor with one row per unit: parameters, optimizer moments, counters."""
        parameters = self.weights.per_unit()
        scores = [] if self.scores is None else [self.scores]
        return [*parameters, *self.moments(parameters), self.last_fired, *scores]

    def moments(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the optimizer's moments of these parameters, if there are any yet."""
        states = [self.optimizer.state[p] for p in parameters if p in self.optimizer.state]
        return [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]

    def _frozen_tensors(self) -> list[Tensor]:
        """Return the tensors whose first rows do not change while units are frozen."""
        if self.recipe.sweep is None or not self.recipe.sweep.atoms_only:
            return self.unit_tensors()
        atoms = self.weights.of_atoms()
        return [*atoms, *self.moments(atoms)]

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, by name, besides the recipe, seed and step.

        Raise `NotFinite` if any of it is NaN or infinite, since no run could be resumed from it.
        """
        units = self.mesh.units
        return {name: units.join(part) if spread else part for name, (part, spread) in self.parts().items()}

    def parts(self) -> dict[str, tuple[Tensor, bool]]:
        """Return what this rank has of `state`, and of each tensor whether its rows are spread over ranks."""
        self._check_weights()
        weights = self.weights
        found = {
            f"sae/{name}": (tensor, weights.has_units(name, tensor))
            for name, tensor in weights.state().items()
        }
        for name, parameter in weights.named().items():
            state = self.optimizer.state.get(parameter, {})
            found |= {
                f"adam/{name}/{key}": (value, weights.has_units(name, value)) for key, value in state.items()
            }
        found |= {} if self.scores is None else {"scores": (self.scores, True)}
        return found | {"last_fired": (self.last_fired, True), "skipped": (torch.tensor(self.skipped), False)}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore this member from the output of `state`, on any number of ranks."""
        weights, mine = self.weights, self.mine
        weights.restore({name: weights.cut(name, t, mine) for name, t in _below("sae/", state).items()})
        for name, parameter in weights.named().items():
            if moments := _below(f"adam/{name}/", state):
                self.optimizer.state[parameter] = {
                    # a copy: the optimizer writes to it
                    key: weights.cut(name, tensor, mine).to(self.device, copy=True)
                    for key, tensor in moments.items()
                }
        self.last_fired.copy_(state["last_fired"][mine])
        if self.scores is not None:
            self.scores.copy_(state["scores"])
        self._oldest = 0
        self.skipped = int(state.get("skipped", 0))  # release 0.1.0 did not count them

    def sum_up(self, terms: Terms) -> dict[str, float]:
        """Return the terms of the whole batch and its mean number of active units, over all ranks."""
        shared = [terms.revival / self.mesh.units.size, (terms.code.values > 0).sum(-1).float().mean()]
        numbers = torch.stack([terms.prefix, terms.penalty, *shared])
        prefix, penalty, revival, l0 = self.mesh.rows.mean_(self.mesh.units.sum_(numbers)).tolist()
        total = float(terms.total) if self.mesh.everyone.size == 1 else prefix + penalty + revival
        return {"total": total, "prefix": prefix, "penalty": penalty, "revival": revival, "l0": l0}

    @torch.no_grad()
    def explained_variance(self, x: Float[Tensor, "B d"], step: int) -> float:
        """Return the explained variance of a batch; x are its scaled rows on this rank."""
        rows, units = self.mesh.rows, self.mesh.units
        code = encode(self.sae, x, self.k_at(step) if self.has_k else None, self.mesh)
        explained = units.sum_(kernels.decode(*code, self.sae.decoder))
        mean = rows.mean_(x.mean(0))
        error, spread = x - self.sae.decoder_bias - explained, x - mean
        sums = rows.sum_(torch.stack([error.square().sum(), spread.square().sum()]))
        return 1 - float(sums[0]) / max(float(sums[1]), 1e-30)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step."""
        return self._lr_at(step)

    def list_scores(self) -> dict[str, list[float]]:
        """Return the scores of the units for the provenance of the SAE; nothing if they have none."""
        return {} if self.scores is None else {"scores": [round(score, 4) for score in self.scores.tolist()]}

    def finish(self) -> SAE:
        """Return the SAE in its current state, for raw activations: the input scale is folded in."""
        self._check_weights()
        # on the host, since the device may have no memory for a second copy
        units = self.mesh.units
        found = {name: self.weights.join(name, t, units) for name, t in self.sae.state_dict().items()}
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in found.items()}
        return SAE.from_tensors(self.recipe.sae, tensors).fold_scale(self.scale)

    def _check_weights(self) -> None:
        self.watch.settle()
        weights = self.weights.state().values()
        spoiled = torch.tensor(not are_finite([*weights, *self.moments(weights)]), dtype=torch.float32)
        if bool(self.mesh.everyone.max_(spoiled)):
            raise NotFinite(
                f"{self.name}: a step has made weights NaN or infinite: use a lower learning rate than "
                f"lr.peak={self.recipe.lr.peak:g}."
            )


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
