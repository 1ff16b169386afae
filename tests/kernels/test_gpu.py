"""The GPU's programs: their machine code, where they are launched, and what they leave out."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from osae import kernels
from osae.config import alter
from osae.data.worlds import SparseWorld
from osae.dictionary import Aligned, Archetypal, Tied
from osae.recipes import Task, recipe
from osae.training import fused
from osae.training.member import Member
from tests.kernels.test_contract import check_decode, check_loss, check_top, draw_problem

gpu = pytest.importorskip("osae.kernels.gpu", reason="triton is not installed here")
PROGRAMS = [name for name in dir(gpu) if hasattr(getattr(gpu, name), "fn")]
WIDTHS = ("_step_atoms:576", "_step_atoms:2304", "_step_atoms:8192")
QUICK = ("_walk_back", "_step_atoms:576")
SLOW = [*(name for name in PROGRAMS if name not in ("_walk_back", "_step_atoms")), *WIDTHS[1:]]
REGISTERS, SHARED = 65_536, 164 * 1024  # of a multiprocessor; an A100 has less shared memory than an H100
OF_SYSTEM = 1024  # bytes of shared memory that CUDA takes for every block of threads


def compile_all(capability, names):
    """Compile in a process of its own: in this one, triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, str(Path(__file__).with_name("compiled.py")), str(capability), *names]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def machine_code():
    """Return the programs that were asked for, by capability and name, compiled at most once."""
    found = {}

    def compiled(capability, names):
        missing = [name for name in names if (capability, name) not in found]
        if missing:
            programs = compile_all(capability, missing)
            found.update({(capability, name): program for name, program in programs.items()})
        return {name: found[capability, name] for name in names}

    return compiled


CASES = [
    pytest.param(80, QUICK, id="80-quick"),
    pytest.param(90, QUICK, id="90-quick", marks=pytest.mark.slow),
    pytest.param(80, SLOW, id="80", marks=pytest.mark.slow),
    pytest.param(90, SLOW, id="90", marks=pytest.mark.slow),
]


def loops_of(code):
    """Return the instructions of every loop: from its label to the jump back there."""
    lines, loops = code.splitlines(), []
    for end, line in enumerate(lines):
        target = re.search(r"BRA `\((\.L_x_\d+)\)", line)
        starts = [i for i in range(end) if target and lines[i].strip().startswith(f"{target[1]}:")]
        loops += ["\n".join(lines[starts[0] : end])] if starts else []
    return loops


def test_every_program_is_compiled_by_one_of_these_tests():
    assert {name.partition(":")[0] for name in (*QUICK, *SLOW, *WIDTHS)} == set(PROGRAMS)
    assert len(PROGRAMS) == 7


@pytest.mark.parametrize(("capability", "names"), CASES)
def test_no_program_fences_memory_or_waits_for_a_sum(machine_code, capability, names):
    for name, program in machine_code(capability, names).items():
        for slow in ("MEMBAR", "ATOM", "CCTL", "ERRBAR"):
            assert slow not in program["code"], f"{name} has {slow}"
    if "_walk_back" in names:
        code = machine_code(capability, names)["_walk_back"]["code"]
        # additions that return nothing; the newer chip adds four numbers at once
        wanted = "REDG.E.ADD.F32x4" if capability >= 90 else "RED.E.ADD.F32"
        assert any(wanted in loop for loop in loops_of(code))


@pytest.mark.parametrize(("capability", "names"), CASES)
def test_rows_are_read_and_written_four_numbers_at_a_time(machine_code, capability, names):
    for name, program in machine_code(capability, names).items():
        code = program["code"]
        assert "LDG.E.128" in code, name
        assert "STG.E.128" in code or name == "_gather_dot", name  # which has one number to write
        if name in ("_walk_forward", "_walk_back", "_gather_sum", "_scatter_outer"):
            assert any("LDG.E.128" in loop for loop in loops_of(code)), name


@pytest.mark.parametrize(("capability", "names"), CASES)
def test_programs_of_one_warp_have_no_barrier_for_their_sums(machine_code, capability, names):
    """On the older chip, the additions of `_walk_back` go through shared memory, to be next to each other."""
    for name, program in machine_code(capability, names).items():
        if program["warps"] == 1:
            barriers = program["code"].count("BAR.SYNC")
            assert barriers <= (2 if name == "_walk_back" and capability == 80 else 0), name


@pytest.mark.parametrize(("capability", "names"), CASES)
def test_nothing_is_spilled_and_enough_programs_fit_at_once(machine_code, capability, names):
    for name, program in machine_code(capability, names).items():
        assert program["LOCAL"] == program["STACK"] == 0, name
        assert "LDL" not in program["code"]
        assert "STL" not in program["code"]
        threads = 32 * program["warps"]
        fitting = min(
            REGISTERS // (program["REG"] * threads),
            SHARED // (program["SHARED"] + OF_SYSTEM),
            2048 // threads,
            32,
        )
        # one warp: as many as the chip runs at all; whole rows: 16 warps, each with 8 KB on the way
        wanted = 32 if program["warps"] == 1 else max(1, 16 // program["warps"])
        assert fitting >= wanted, (
            f"{name}: {fitting} programs of {program['warps']} warps, {program['REG']} registers"
        )


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
    atoms = [problem[3].abs() for _ in range(4)]
    gpu.step_atoms(*atoms, torch.ones(()), torch.zeros(()), gpu.AdamStep(0.1, 0.9, 0.99, 1e-8))
    assert set(launched) == set(PROGRAMS)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_atoms_of_padding_are_never_read(backend):
    x, values, units, decoder, weights, upstream = draw_problem(1, 5, 6, 8, 3, torch.float64)
    padded = torch.cat([torch.zeros(5, 4, dtype=torch.float64), values], -1)
    places = torch.cat([torch.full((5, 4), 8), units], -1)
    decoder = torch.cat([decoder, torch.full((2, 6), float("nan"), dtype=torch.float64)])
    decoder = decoder[:-1]  # and beyond its end in memory, where unit 9 would be, there are no numbers either
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
    calls, real = [], gpu.sort_slots
    monkeypatch.setattr(gpu, "sort_slots", lambda *args: (calls.append(args), real(*args))[1])
    with kernels.using("gpu"):
        x, values, _, decoder, _, _ = draw_problem(0, 3, 4, 5, 2, torch.float32)
        check_top(x, decoder, decoder[:, 0], 2, values)
    assert len(calls) == 1


WIDE = {"width": 12, "units": 16, "k": 2}


@pytest.mark.parametrize(
    "changes",
    [{}, {"dictionary": Tied()}, {"dictionary": Aligned()}, {"adam.weight_penalty": 0.1}],
    ids=["free", "tied", "aligned", "penalty"],
)
def test_atoms_move_in_one_pass_as_they_do_in_three(changes, monkeypatch):
    """Projection, Adam and normalisation together give what torch gives for one after the other."""
    rows = SparseWorld(width=12, units=16, active=2, samples=300).draw().x
    made = alter(recipe("osae", Task(**WIDE, samples=300, batch=100)), {"adam.eps": 1e-4} | changes)
    members = []
    for fuse in (False, True):
        monkeypatch.setattr(fused, "applies", lambda *_, fuse=fuse: fuse)
        members.append(Member(made, 0, rows))
        for step in range(3):
            members[-1].advance(rows[100 * step : 100 * (step + 1)], step)
    ours, theirs = (member.state() for member in reversed(members))
    assert members[1].fused
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(
            ours[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    norms = members[1].sae.decoder.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))


def test_a_spoiled_step_moves_no_atom_and_does_not_count(monkeypatch):
    monkeypatch.setattr(fused, "applies", lambda *_: True)
    rows = SparseWorld(width=12, units=16, active=2, samples=200).draw().x
    member = Member(recipe("osae", Task(**WIDE, samples=200, batch=100)), 0, rows)
    member.advance(rows[:100], 0)
    before = {name: tensor.clone() for name, tensor in member.state().items()}
    member.weights.parameters["decoder"].grad = torch.ones_like(member.sae.decoder)
    for parameter in member.weights.named().values():
        parameter.grad = parameter.grad if parameter is member.weights.parameters["decoder"] else None
    member.watch.spoiled.fill_(1.0)
    member._step(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in member.state().items())
    member.watch.spoiled.fill_(0.0)
    member._step(1)
    assert not torch.equal(before["sae/decoder"], member.sae.decoder)
    assert float(member.state()["adam/decoder/step"]) == 2


def test_atoms_are_moved_in_one_pass_on_a_gpu_alone(monkeypatch):
    made = recipe("osae", Task(**WIDE, samples=300, batch=100))
    assert fused.applies(made, torch.device("cuda:1"))
    assert not fused.applies(made, torch.device("cpu"))
    assert not fused.applies(alter(made, {"adam.clip": 1.0}), torch.device("cuda"))
    assert not fused.applies(alter(made, {"dictionary": Archetypal(20)}), torch.device("cuda"))
    monkeypatch.setattr(gpu, "WIDEST", 11)
    assert not fused.applies(made, torch.device("cuda"))
