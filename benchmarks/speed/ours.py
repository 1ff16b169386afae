"""Our entries: each takes the same training step as `osae.training.loop`."""

from dataclasses import replace
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.speed.pipe import Shape
from benchmarks.speed.worker import serve
from osae.kernels import cpu
from osae.objective import Terms
from osae.prefix import Boundaries, Full, PrefixWeights, Uniform
from osae.recipes import Task, group_ends, world_recipe
from osae.schedule import LearningRate
from osae.training.member import Member

GROUPS = 5


class Trained:
    """TopK with any prefix weights; k is fixed, and both biases are trained, as in the peers."""

    def __init__(self, prefix: PrefixWeights, shape: Shape, x: Tensor):
        task = Task(shape.d, shape.K, shape.k, samples=shape.B, batch=shape.B)
        made = world_recipe("topk", task)
        sae = replace(made.sae, decoder_bias=True)
        made = replace(made, sae=sae, prefix=prefix, k_warmup=None, lr=LearningRate(1e-4))
        self.member, self.x = Member(made, 0, x), x

    def forward(self) -> Tensor:
        return self.member.terms(self.x, 0).total

    def step(self) -> None:
        self.member.advance(self.x, 0)

    def parameters(self) -> list[Tensor]:
        return [p for p in self.member.sae.parameters() if p.requires_grad]

    def state(self) -> list[Tensor]:
        return list(self.member.state().values())


class Decoded(Trained):
    """The plain objective without a walk over prefixes: decode, subtract, square. A fair TopK baseline."""

    def terms(self) -> Terms:
        """Return the plain loss of the batch, without a walk over prefixes."""
        sae, x = self.member.sae, self.x
        code = sae.encode(x, k=self.member.k_at(0))
        error = (x - sae.decode(code)).square().sum(-1).mean()
        none = x.new_zeros(())
        return Terms(error, error, none, none, code, x)

    def forward(self) -> Tensor:
        return self.terms().total

    def step(self) -> None:
        self.member.descend(self.terms(), 0)


class Floor:
    """The encoder's matrix product alone, by torch.mm, into memory that is already allocated."""

    def __init__(self, shape: Shape, x: Tensor):
        self.x, self.encoder = x, torch.randn(shape.K, shape.d, generator=torch.Generator().manual_seed(1))
        self.out = torch.empty(shape.B, shape.K)

    def forward(self) -> Tensor:
        return torch.mm(self.x, self.encoder.T, out=self.out)

    def step(self) -> None:
        self.forward()

    def parameters(self) -> list[Tensor]:
        return []

    def state(self) -> list[Tensor]:
        return [self.encoder, self.out]


class FloorOfSteps(Floor):
    """The same product as the steps of our entries compute it: oneDNN's, where torch has it."""

    def forward(self) -> Tensor:
        for block in cpu.products(self.x, self.encoder):
            self.out = block
        return self.out


ENTRIES = {
    "floor": Floor,
    "floor-of-steps": FloorOfSteps,
    "osae-topk": lambda shape, x: Trained(Full(), shape, x),
    "osae-topk-decoded": lambda shape, x: Decoded(Full(), shape, x),
    "osae-matryoshka": lambda shape, x: Trained(Boundaries(group_ends(shape.K, GROUPS)), shape, x),
    "osae-exact": lambda shape, x: Trained(Uniform(), shape, x),
}

FLOORS = ("floor", "floor-of-steps")

if __name__ == "__main__":
    own = f"osae {version('osae')}"
    serve(ENTRIES, dict.fromkeys(ENTRIES, own) | dict.fromkeys(FLOORS, f"torch {torch.__version__}"))
