"""The peers' entries, with each library's own training step and default settings; runs in `.venv-interop`.

sparsify is included with both of its optimizers. SAELens' `use_sparse_activations` is not: its backward pass
does not run on a CPU. No unit dies within the few steps of a benchmark, so no entry includes the cost of
revival. This module needs torch and the peers, but not osae.
"""

import os
import sys
import types
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.pipe import Shape
from benchmarks.speed.worker import serve

os.environ["SPARSIFY_DISABLE_TRITON"] = "1"  # its kernels need a GPU
sys.modules["nnsight"] = types.SimpleNamespace(LanguageModel=object)  # type: ignore[assignment]  # never called

DECAY = 5  # the last of so many parts of a run
GROUPS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2 + 1 / 32)  # as in dictionary_learning's demo and in our recipes


class SAELens:
    """SAELens' trainer with its TopK or Matryoshka SAE."""

    def __init__(self, shape: Shape, x: Tensor, *, nested: bool, lr: float = 1e-4, steps: int | None = None):
        """Train at this rate, which falls to zero over the last fifth of the `steps` of a run."""
        from sae_lens import (
            MatryoshkaBatchTopKTrainingSAE,
            MatryoshkaBatchTopKTrainingSAEConfig,
            TopKTrainingSAE,
            TopKTrainingSAEConfig,
        )
        from sae_lens.config import SAETrainerConfig
        from sae_lens.training.sae_trainer import SAETrainer

        shared = {"d_in": shape.d, "d_sae": shape.K, "k": shape.k}
        if nested:
            widths = [round(shape.K * sum(GROUPS[: i + 1])) for i in range(len(GROUPS))]
            sae = MatryoshkaBatchTopKTrainingSAE(
                MatryoshkaBatchTopKTrainingSAEConfig(**shared, matryoshka_widths=widths)
            )
        else:
            sae = TopKTrainingSAE(TopKTrainingSAEConfig(**shared))
        samples, decay = (10**9, 0) if steps is None else (steps * shape.B, steps // DECAY)
        config = SAETrainerConfig(samples, shape.B, lr=lr, lr_end=lr, lr_decay_steps=decay)
        self.trainer, self.x = SAETrainer(config, sae, iter(())), x

    def forward(self) -> Tensor:
        from sae_lens.saes.sae import TrainStepInput

        trainer = self.trainer
        return trainer.sae.training_forward_pass(
            TrainStepInput(
                sae_in=self.x,
                dead_neuron_mask=trainer.dead_neurons,
                coefficients=trainer.get_coefficients(),
                n_training_steps=1,
                is_logging_step=False,
            )
        ).loss

    def step(self) -> None:
        self.trainer.step(self.x)

    def reconstruct(self, x: Tensor) -> Tensor:
        return self.trainer.sae.decode(self.trainer.sae.encode(x))

    def parameters(self) -> list[Tensor]:
        return list(self.trainer.sae.parameters())

    def state(self) -> list[Tensor]:
        return [*self.parameters(), *list_tensors(self.trainer.optimizer)]


class Sparsify:
    """sparsify's SparseCoder with the parts of its training loop that apply to one SAE."""

    def __init__(
        self, shape: Shape, x: Tensor, *, signum: bool, lr: float = 1e-4, plan: tuple[int, int] | None = None
    ):
        """Train at this rate; `plan` are the steps of its warm-up and of the run, after which it is zero."""
        from sparsify import SparseCoder, SparseCoderConfig

        self.x, self.sae = x, SparseCoder(shape.d, SparseCoderConfig(num_latents=shape.K, k=shape.k))
        self.inactive = torch.zeros(shape.K, dtype=torch.long)
        self.fired = torch.zeros(shape.K, dtype=torch.bool)
        if signum:
            from schedulefree import ScheduleFreeWrapper
            from sparsify.sign_sgd import SignSGD

            self.optimizer = ScheduleFreeWrapper(SignSGD(self.sae.parameters(), lr=lr), momentum=0.95)
            self.optimizer.train()
        else:
            self.optimizer = torch.optim.Adam(self.sae.parameters(), lr=lr)
        self.signum, self.schedule = signum, None
        if plan is not None:
            from transformers import get_linear_schedule_with_warmup

            self.schedule = get_linear_schedule_with_warmup(self.optimizer, *plan)

    def forward(self) -> Tensor:
        self.sae.set_decoder_norm_to_unit_norm()
        out = self.sae(self.x)
        self.fired[out.latent_indices.flatten()] = True
        return out.fvu

    def step(self) -> None:
        loss = self.forward()
        loss.backward()
        self.sae.remove_gradient_parallel_to_decoder_directions()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.schedule is not None:
            self.schedule.step()
        self.inactive += len(self.x)
        self.inactive[self.fired] = 0
        self.fired.zero_()

    def reconstruct(self, x: Tensor) -> Tensor:
        if not self.signum:
            return self.sae(x).sae_out
        self.optimizer.eval()  # the averaged weights, which its trainer saves
        found = self.sae(x).sae_out
        self.optimizer.train()
        return found

    def parameters(self) -> list[Tensor]:
        return list(self.sae.parameters())

    def state(self) -> list[Tensor]:
        return [*self.parameters(), *list_tensors(self.optimizer)]


class DictionaryLearning:
    """dictionary_learning's trainers."""

    def __init__(
        self,
        shape: Shape,
        x: Tensor,
        *,
        nested: bool,
        lr: float | None = None,
        plan: tuple[int, int] | None = None,
    ):
        """Train at this rate; `plan` are the steps of its warm-up and of the run, which ends in a decay.

        Without a plan, the first step, which also sets the bias, is left out.
        """
        from dictionary_learning.trainers.matryoshka_batch_top_k import MatryoshkaBatchTopKTrainer
        from dictionary_learning.trainers.top_k import TopKTrainer

        warmup, steps = plan or (1000, 10**6)
        shared = {"steps": steps, "activation_dim": shape.d, "dict_size": shape.K, "k": shape.k}
        about = {"layer": 0, "lm_name": "none", "device": "cpu", "seed": 0, "lr": lr, "warmup_steps": warmup}
        if plan is not None:
            about["decay_start"] = steps - steps // DECAY
        self.x, self.turn = x, 1 if plan is None else 0
        if nested:
            self.trainer = MatryoshkaBatchTopKTrainer(**shared, **about, group_fractions=list(GROUPS))
        else:
            self.trainer = TopKTrainer(**shared, **about)

    def forward(self) -> Tensor:
        return self.trainer.loss(self.x, step=1)

    def step(self) -> None:
        self.trainer.update(self.turn, self.x)
        self.turn += 1

    def reconstruct(self, x: Tensor) -> Tensor:
        return self.trainer.ae(x)

    def parameters(self) -> list[Tensor]:
        return list(self.trainer.ae.parameters())

    def state(self) -> list[Tensor]:
        return [*self.parameters(), *list_tensors(self.trainer.optimizer)]


def list_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return every tensor of an optimizer's state."""
    return [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]


ENTRIES = {
    "saelens-topk": lambda shape, x: SAELens(shape, x, nested=False),
    "saelens-matryoshka": lambda shape, x: SAELens(shape, x, nested=True),
    "sparsify-topk": lambda shape, x: Sparsify(shape, x, signum=False),
    "sparsify-topk-signum": lambda shape, x: Sparsify(shape, x, signum=True),
    "dictionary_learning-topk": lambda shape, x: DictionaryLearning(shape, x, nested=False),
    "dictionary_learning-matryoshka": lambda shape, x: DictionaryLearning(shape, x, nested=True),
}
PACKAGES = {
    "saelens": "sae-lens",
    "sparsify": "eai-sparsify",
    "dictionary_learning": "dictionary-learning",
}

if __name__ == "__main__":
    found = {name: PACKAGES[name.partition("-")[0]] for name in ENTRIES}
    serve(ENTRIES, {name: f"{package} {version(package)}" for name, package in found.items()})
