"""Would many small SAEs train faster stacked, as one batched matrix product, than one after another?

    python -m benchmarks.speed.stacked

Times a step of S plain TopK SAEs of the table-1 world, per SAE: one after another on one thread, as `osae
reproduce` trains them (one process per core), and stacked in torch's batched products, on one thread and on
all threads. Both take the same step: a test compares their weights.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.results import add_out, write_results
from osae.recipes import Task, world_recipe
from osae.schedule import LearningRate
from osae.training.member import Member

RATE = 1e-3


def make_members(seeds: int, x: Tensor, units: int, k: int) -> list[Member]:
    """Return SAEs that are trained one after another on the same batch."""
    made = world_recipe("topk", Task(x.shape[1], units, k, samples=len(x), batch=len(x)))
    made = replace(made, k_warmup=None, lr=LearningRate(RATE))
    return [Member(made, seed, x) for seed in range(seeds)]


class Stacked:
    """The same SAEs in tensors with one more dimension: encoder and decoder (S, K, d), bias (S, K)."""

    def __init__(self, members: Sequence[Member]):
        saes = [member.sae for member in members]
        self.k = saes[0].config.sparsifier.k  # type: ignore[union-attr]
        self.encoder, self.decoder, self.bias = (
            torch.stack([getattr(sae, name).detach() for sae in saes]).requires_grad_()
            for name in ("encoder", "decoder", "encoder_bias")
        )
        trained = [self.encoder, self.decoder, self.bias]
        self.optimizer = torch.optim.Adam(trained, lr=RATE, fused=True)

    def step(self, x: Tensor) -> None:
        """Take one training step of all SAEs on the same batch."""
        batch = x.expand(len(self.encoder), *x.shape)
        pre = torch.baddbmm(self.bias.unsqueeze(1), batch, self.encoder.transpose(1, 2))
        values, units = pre.relu().topk(self.k, sorted=False)
        code = torch.zeros_like(pre).scatter(-1, units, values)
        loss = (batch - code @ self.decoder).square().sum(-1).mean(-1).sum()
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            grad = self.decoder.grad
            assert grad is not None
            grad -= (grad * self.decoder).sum(-1, keepdim=True) * self.decoder
            self.optimizer.step()
            self.decoder /= self.decoder.norm(dim=-1, keepdim=True)


def time_work(work: Callable[[], object], rounds: int) -> float:
    """Return milliseconds: the median of several rounds, after a warm-up round."""
    work()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return median(times)


def measure_stacking(
    seeds: int, rounds: int, *, width: int = 80, units: int = 100, k: int = 5
) -> dict[str, Any]:
    """Return milliseconds per SAE and step for each way; per core if only one is used."""
    x = torch.randn(500, width, generator=torch.Generator().manual_seed(0))
    members, threads = make_members(seeds, x, units, k), torch.get_num_threads()
    stacked = Stacked(members)
    torch.set_num_threads(1)
    one_by_one = time_work(lambda: [member.advance(x, 0) for member in members], rounds) / seeds
    on_one = time_work(lambda: stacked.step(x), rounds) / seeds
    torch.set_num_threads(threads)
    on_all = time_work(lambda: stacked.step(x), rounds) / seeds
    found = {"one_by_one_ms": one_by_one, "stacked_ms": on_one, "stacked_on_all_threads_ms": on_all}
    # throughput of a machine: one process per core, or one process with all threads
    best = min(on_one / threads, on_all)
    return {"seeds": seeds, **found, "threads": threads, "stacked_speedup": one_by_one / threads / best}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its numbers and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.stacked", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="number of steps to time (15)")
    add_out(parser)
    asked = parser.parse_args(arguments)
    found = [measure_stacking(seeds, asked.rounds) for seeds in (1, 4, 10, 32)]
    for row in found:
        print(
            f"{row['seeds']:3d} SAEs, ms per SAE and step: one by one {row['one_by_one_ms']:.2f}, stacked "
            f"{row['stacked_ms']:.2f}, stacked on {row['threads']} threads "
            f"{row['stacked_on_all_threads_ms']:.2f}; stacking is {row['stacked_speedup']:.2f} times as fast"
        )
    write_results({"rows": found}, asked.out / "stacked.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
