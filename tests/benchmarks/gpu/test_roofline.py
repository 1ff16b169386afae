"""Predictions for a GPU: bytes against what the kernels load and store, and the commands that print them."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed here")
from triton.runtime.interpreter import InterpreterBuilder

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import measuring, roofline
from benchmarks.gpu.roofline import A100, BENCHMARK, DEVICES, H100, LARGE, Cost, Shape
from osae.kernels import gpu

SMALL = Shape(3, 300, 8, 4)  # two blocks of columns, the second one not full


@pytest.fixture
def traffic(monkeypatch):
    """Return a list with the bytes of every load, store and addition in triton's interpreter."""
    moved = []
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    add = InterpreterBuilder.create_atomic_rmw

    def size(pointers, mask):
        return int(mask.data.sum()) * pointers.get_element_ty().primitive_bitwidth // 8

    def watch_load(self, ptrs, mask, *args):
        moved.append(size(ptrs, mask))
        return load(self, ptrs, mask, *args)

    def watch_store(self, ptrs, value, mask, *args):
        moved.append(size(ptrs, mask))
        return store(self, ptrs, value, mask, *args)

    def watch_add(self, op, ptr, value, mask, *args):
        moved.append(2 * size(ptr, mask))  # read and written
        return add(self, op, ptr, value, mask, *args)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", watch_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", watch_store)
    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", watch_add)
    return moved


def test_bytes_of_the_ordered_loss_are_those_that_its_kernels_move(traffic):
    problem = measuring.draw_problem(SMALL, "cpu")
    leaves = [t.clone().requires_grad_() for t in (problem.x, problem.values, problem.encoder)]
    loss = gpu.all_prefix_loss(leaves[0], leaves[1], problem.units, leaves[2], problem.weights)
    forward = roofline.walk_forward(SMALL)
    assert sum(traffic) == forward.moved + forward.shared
    traffic.clear()
    torch.autograd.grad(loss.sum(), leaves)
    back, zeroed = roofline.walk_back(SMALL), 4 * SMALL.units * SMALL.width  # by torch
    assert sum(traffic) == back.moved + back.shared - zeroed


def test_bytes_of_the_encoder_gradient_are_those_that_its_kernel_moves(traffic):
    problem = measuring.draw_problem(SMALL, "cpu")
    slots = gpu.sort_slots(problem.values, problem.units, SMALL.units)
    gpu.scatter(problem.values, slots, problem.x, SMALL.k, torch.zeros_like(problem.encoder))
    cost, zeroed = roofline.scatter(SMALL, "fp32"), 4 * SMALL.units * SMALL.width
    assert sum(traffic) == cost.moved + cost.shared - zeroed


def test_bytes_of_the_step_on_the_sphere_are_those_that_its_kernel_moves(traffic):
    rows = [torch.ones(SMALL.units, SMALL.width) for _ in range(4)]
    gpu.step_atoms(*rows, torch.ones(()), torch.zeros(()), gpu.AdamStep(0.1, 0.9, 0.99, 1e-8))
    assert sum(traffic) == roofline.step_atoms(SMALL).moved


def test_a_kernel_takes_as_long_as_its_narrowest_part():
    arithmetic = Cost("a", moved=1.0, operations=A100.arithmetic["bf16"], precision="bf16", launches=0)
    assert arithmetic.seconds(A100) == 1.0
    assert arithmetic.bound(A100) == "arithmetic"
    memory = Cost("b", moved=A100.memory, launches=0)
    assert memory.seconds(A100) == 1.0
    assert memory.bound(A100) == "memory"
    cached = Cost("c", moved=0.0, shared=A100.cache, table=0.0, launches=0)
    assert cached.seconds(A100) == 1.0
    from_memory = Cost("d", moved=0.0, shared=A100.memory, table=A100.cache_bytes + 1.0, launches=0)
    assert from_memory.seconds(A100) == 1.0
    assert Cost("e", moved=0.0).bound(A100) == "launches"


def test_predictions_grow_with_the_dictionary_and_shrink_with_the_precision():
    for device in DEVICES:
        times = [roofline.predict_step(shape, device, "bf16") for shape in (BENCHMARK[3], *LARGE)]
        assert times == sorted(times)
        large = [roofline.predict_step(LARGE[0], device, precision) for precision in ("fp32", "tf32", "bf16")]
        assert large == sorted(large, reverse=True)
    assert roofline.predict_step(LARGE[0], H100) < roofline.predict_step(LARGE[0], A100)


def test_without_a_gpu_the_command_prints_predictions_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert "no GPU here: predictions only" in shown
    assert shown.count("encoder product") == len(BENCHMARK) + len(LARGE)


def test_every_measured_kernel_has_a_prediction():
    """The kernels are interpreted here: their times mean nothing, but all of them run."""
    shape = Shape(4, 8, 12, 2)
    found = measuring.measure_step(shape, "bf16", device="cpu", rounds=1)
    names = {cost.name for cost in roofline.count_step(shape)}
    assert found.keys() - {"step"} < names
    assert len(found) == 8
    lines = command.describe_shape(shape, "bf16", found, A100)
    assert [line[0] for line in lines if line[-1] != "-"] == [
        *(cost.name for cost in roofline.count_step(shape) if cost.name in found),
        "step",
    ]
