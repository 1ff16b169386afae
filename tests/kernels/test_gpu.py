"""The GPU's programs: their machine code, where they are launched, and what they leave out."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from osae import kernels
from tests.kernels.test_contract import check_decode, check_loss, check_top, draw_problem

gpu = pytest.importorskip("osae.kernels.gpu", reason="triton is not installed here")
PROGRAMS = [name for name in dir(gpu) if hasattr(getattr(gpu, name), "fn")]


def machine_code(capability: int, *names: str) -> str:
    """Compile in a process of its own: in this one, triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, str(Path(__file__).with_name("compiled.py")), str(capability), *names]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_gradients_are_added_without_fences_and_nobody_waits_for_the_sums(capability):
    code = machine_code(capability, "_walk_back")
    assert "RED" in code  # an addition that returns nothing
    for slow in ("MEMBAR", "ATOMG", "CCTL"):
        assert slow not in code


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_program_compiles(capability):
    assert len(PROGRAMS) == 6
    code = machine_code(capability, *PROGRAMS)
    assert all(f".text.{name}" in code for name in PROGRAMS)


def test_every_launch_is_on_the_device_of_its_tensors(monkeypatch):
    """Triton launches on the current device, which need not be where the tensors are."""
    inside, launched = [], []

    @contextmanager
    def device_of(tensor):
        inside.append(tensor)
        yield
        inside.pop()

    class Watched:
        def __init__(self, name):
            self.name, self.program = name, getattr(gpu, name)

        def __getitem__(self, grid):
            def launch(*args, **options):
                assert inside, f"{self.name} is launched on the current device"
                launched.append(self.name)
                return self.program[grid](*args, **options)

            return launch

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(gpu, "PIECE", 2)
    for name in PROGRAMS:
        monkeypatch.setattr(gpu, name, Watched(name))
    with kernels.using("gpu"):
        problem = draw_problem(0, 3, 4, 5, 2, torch.float32)
        check_loss(problem)
        check_decode(problem)
        check_top(problem[0], problem[3], problem[3][:, 0], 2, problem[1])
    assert set(launched) == set(PROGRAMS)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_atoms_of_padding_are_never_read(backend):
    x, values, units, decoder, weights, upstream = draw_problem(1, 5, 6, 8, 3, torch.float64)
    padded = torch.cat([torch.zeros(5, 4, dtype=torch.float64), values], -1)
    places = torch.cat([torch.full((5, 4), 8), units], -1)
    decoder = torch.cat([decoder, torch.full((1, 6), float("nan"), dtype=torch.float64)])
    leaves = [t.requires_grad_() for t in (padded, decoder)]
    with kernels.using(backend):
        weights = torch.cat([weights, weights[:1]])
        loss = kernels.all_prefix_loss(x, leaves[0], places, leaves[1], weights)
        row = kernels.decode(leaves[0], places, leaves[1])
        grads = [
            *torch.autograd.grad(loss, leaves, upstream),
            *torch.autograd.grad(row, leaves, torch.ones_like(row)),
        ]
    assert all(found.isfinite().all() for found in (loss, row, *grads))


@pytest.mark.parametrize("piece", [1, 2, 3, 256])
def test_a_unit_that_always_fires_is_summed_in_pieces(piece, monkeypatch):
    monkeypatch.setattr(gpu, "PIECE", piece)
    x, values, units, decoder, weights, upstream = draw_problem(2, 7, 5, 6, 2, torch.float64, padding=0.1)
    units[:, 0], units[:, 1] = 3, torch.tensor([0, 0, 0, 5, 5, 1, 2])
    problem = (x, values, units, decoder, weights, upstream)
    torch.use_deterministic_algorithms(True)
    try:
        with kernels.using("gpu"):
            check_loss(problem)
            check_decode(problem)
            check_top(x, decoder, decoder[:, 0], 6, torch.cat([values] * 3, -1))
    finally:
        torch.use_deterministic_algorithms(False)


def test_entries_are_sorted_by_unit_once(monkeypatch):
    calls, real = [], gpu._sort_slots
    monkeypatch.setattr(gpu, "_sort_slots", lambda *args: (calls.append(args), real(*args))[1])
    with kernels.using("gpu"):
        x, values, _, decoder, _, _ = draw_problem(0, 3, 4, 5, 2, torch.float32)
        check_top(x, decoder, decoder[:, 0], 2, values)
    assert len(calls) == 1
