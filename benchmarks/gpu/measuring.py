"""How long the kernels of a training step take on this machine's GPU, one by one and together."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.roofline import Shape
from osae.kernels import gpu
from osae.kernels.precision import Precision, check_precision, multiply_rounded, round_to
from osae.prefix import Uniform, prefix_weights
from osae.recipes import Task, recipe
from osae.training.member import Member

ROUNDS = 10


class Problem(NamedTuple):
    """The tensors of a step; codes are random, and use units more evenly than those of a trained SAE."""

    x: Tensor
    encoder: Tensor
    bias: Tensor
    values: Tensor
    units: Tensor
    weights: Tensor


def draw_problem(shape: Shape, device: str) -> Problem:
    """Draw rows, atoms of norm one, and a code of distinct units for every row."""
    b, d, units, k = shape
    draw = torch.Generator(device).manual_seed(0)
    x = torch.randn(b, d, generator=draw, device=device)
    encoder = torch.nn.functional.normalize(torch.randn(units, d, generator=draw, device=device), dim=-1)
    first = torch.randint(units, (b, 1), generator=draw, device=device)
    places = (first + torch.arange(k, device=device) * (units // k)) % units
    values = torch.rand(b, k, generator=draw, device=device) + 0.1
    weights = prefix_weights(Uniform(), units)
    return Problem(x, encoder, torch.zeros(units, device=device), values, places, weights)


def time_work(work: Callable[[], object], device: str, rounds: int = ROUNDS) -> float:
    """Return seconds: the median of several rounds, after a round for compilation and warm-up."""
    work()
    times = []
    for _ in range(rounds):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - started)
    return median(times)


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def measure_step(shape: Shape, asked: str, device: str = "cuda", rounds: int = ROUNDS) -> dict[str, float]:
    """Return the seconds of the kernels by the names that `roofline` gives them, and of a whole step."""
    problem, precision = draw_problem(shape, device), check_precision(asked)
    parts = {**_of_encoder(problem, shape, precision), **_of_loss(problem), **_of_optimizer(problem)}
    found = {name: time_work(work, device, rounds) for name, work in parts.items()}
    return found | {"step": time_work(_whole_step(problem, shape, precision, device), device, rounds)}


def _of_encoder(problem: Problem, shape: Shape, precision: Precision) -> dict[str, Callable[[], object]]:
    x, encoder, bias, values, units, _ = problem
    cut = gpu.rows_at_once(shape.units)
    pre = torch.randn(min(cut, len(x)), shape.units, device=x.device)

    def multiply() -> None:
        rows, atoms = round_to(precision, x), round_to(precision, encoder)
        for part in rows.split(cut):
            multiply_rounded(part, atoms.T, precision, bias)

    def select() -> None:
        for part in x.split(cut):
            torch.topk(pre[: len(part)], shape.k)

    slots = gpu.sort_slots(values, units, len(encoder))
    low = round_to(precision, x)
    return {
        "encoder product": multiply,
        "top k": select,
        "entries by unit": lambda: gpu.sort_slots(values, units, len(encoder)),
        "encoder gradient": lambda: gpu.scatter(values, slots, low, shape.k, torch.zeros_like(encoder)),
    }


def _of_loss(problem: Problem) -> dict[str, Callable[[], object]]:
    x, encoder, _, values, units, weights = problem
    leaves = [tensor.clone().requires_grad_() for tensor in (x, values, encoder)]

    def forward() -> Tensor:
        return gpu.all_prefix_loss(leaves[0], leaves[1], units, leaves[2], weights).mean()

    loss = forward()
    return {
        "ordered loss": forward,
        "its gradients": lambda: torch.autograd.grad(loss, leaves, retain_graph=True),
    }


def _of_optimizer(problem: Problem) -> dict[str, Callable[[], object]]:
    atoms, grads = problem.encoder.clone(), torch.zeros_like(problem.encoder)
    mean, square = torch.zeros_like(atoms), torch.zeros_like(atoms)
    one, zero = torch.ones((), device=problem.x.device), torch.zeros((), device=problem.x.device)
    adam = gpu.AdamStep(1e-3, 0.9, 0.999, 1e-8)
    return {
        "Adam on the sphere, decoder": lambda: gpu.step_atoms(atoms, grads, mean, square, one, zero, adam)
    }


def _whole_step(problem: Problem, shape: Shape, precision: str, device: str) -> Callable[[], object]:
    task = Task(shape.width, shape.units, shape.k, 4 * shape.batch, batch=shape.batch)
    made = replace(recipe("osae-from-noise", task), k_warmup=None, revival=None, resort=None)
    member = Member(made, 0, problem.x.cpu(), device=device, precision=precision)
    member.may_skip = False
    return lambda: member.advance(problem.x, 1)
