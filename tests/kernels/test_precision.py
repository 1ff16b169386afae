"""Products in lower precision: what is rounded, what is not, and that all of a run keeps to it."""

import json
from pathlib import Path

import pytest
import torch

import osae
from osae import kernels
from osae.cli import main
from osae.config import alter
from osae.data.worlds import SparseWorld
from osae.kernels.precision import multiply, multiplying_in, precision_now, round_to
from osae.recipes import Task, recipe
from osae.sparsify import Code, JumpReLU, ReLU
from osae.training.member import Member
from tests.kernels.test_contract import draw_problem

BITS = {"bf16": 8, "tf32": 11}  # significant ones, the leading one too
TASK = Task(width=12, units=16, k=2, samples=800, batch=100)
TINY = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "400"]


def to_bits(tensor, bits):
    """Return the nearest numbers with so many significant bits, by arithmetic alone."""
    fraction, exponent = torch.frexp(tensor.double())
    return torch.ldexp((fraction * 2**bits).round() / 2**bits, exponent).to(tensor.dtype)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("precision", BITS)
def test_rounding_keeps_the_significant_bits_of_the_type(precision):
    x = draw(0, 1000) * torch.logspace(-30, 30, 1000)
    rounded = round_to(precision, x)
    assert torch.equal(rounded, to_bits(x, BITS[precision]))
    assert not torch.equal(rounded, x)
    assert torch.equal(round_to(precision, rounded), rounded)


@pytest.mark.parametrize("precision", BITS)
def test_rounding_keeps_what_is_not_finite(precision):
    spoiled = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    all_ones = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)  # NaN as well
    assert torch.equal(round_to(precision, spoiled)[:2], spoiled[:2])
    assert round_to(precision, torch.cat([spoiled[2:3], all_ones])).isnan().all()
    assert round_to(precision, spoiled)[3:].tolist() == [0, 0]


def test_double_precision_and_fp32_are_left_alone():
    x = draw(0, 5)
    assert round_to("fp32", x) is x
    assert round_to("bf16", x.double()).dtype == torch.float64


@pytest.mark.parametrize("precision", BITS)
def test_products_multiply_rounded_numbers_and_so_do_their_gradients(precision):
    rows, matrix = draw(1, 6, 5).requires_grad_(), draw(2, 4, 5).requires_grad_()
    upstream, bits = draw(3, 6, 4), BITS[precision]
    with multiplying_in(precision):
        product = multiply(rows, matrix)
    found = torch.autograd.grad(product, [rows, matrix], upstream)  # after the block, as in another thread
    low = [to_bits(t.detach(), bits) for t in (rows, matrix, upstream)]
    torch.testing.assert_close(product.detach(), low[0] @ low[1].T)
    torch.testing.assert_close(found[0], low[2] @ low[1])
    torch.testing.assert_close(found[1], low[2].T @ low[0])
    assert precision_now() == "fp32"


@pytest.mark.parametrize("precision", BITS)
@pytest.mark.parametrize("encode", [kernels.topk_encode, kernels.batch_topk_encode])
def test_every_backend_selects_by_rounded_products(backend, precision, encode):
    """And gives atoms and rows gradients of single precision, rounded nowhere else."""
    x, _, _, encoder, _, _ = draw_problem(3, 6, 7, 9, 2, torch.float32)
    bias, bits = encoder[:, 0].clone(), BITS[precision]
    low = [to_bits(t, bits).requires_grad_() for t in (x, encoder)]
    with kernels.using("reference"):
        expected = dense_code(encode, low[0], low[1], bias)
    leaves = [t.clone().requires_grad_() for t in (x, encoder)]
    with multiplying_in(precision):
        found = dense_code(encode, leaves[0], leaves[1], bias)
    torch.testing.assert_close(found.detach(), expected.detach())
    assert not torch.equal(found.detach(), dense_code(encode, x, encoder, bias))
    upstream = to_bits(draw(4, 6, 9), bits)  # some backends round it, where it is part of a product
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, upstream),
        torch.autograd.grad(expected, low, upstream),
        strict=True,
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs)


def dense_code(encode, x, encoder, bias):
    values, units = encode(x, encoder, bias, 2)
    return Code(values, units).dense(len(encoder))


def test_the_ordered_loss_is_never_rounded(backend):
    x, values, units, decoder, weights, upstream = draw_problem(5, 6, 7, 9, 3, torch.float32)
    results = []
    for precision in ("fp32", "bf16"):
        leaves = [t.clone().requires_grad_() for t in (x, values, decoder)]
        with multiplying_in(precision):
            loss = kernels.all_prefix_loss(leaves[0], leaves[1], units, leaves[2], weights)
            results.append([loss, *torch.autograd.grad(loss, leaves, upstream)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_autocast_changes_nothing(backend, precision):
    """Neither around the forward pass nor around the backward pass."""
    x, _, _, encoder, _, _ = draw_problem(3, 6, 7, 9, 2, torch.float32)
    results = []
    for enabled in (False, True):
        leaves = [t.clone().requires_grad_() for t in (x, encoder)]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), multiplying_in(precision):
            values, _ = kernels.topk_encode(leaves[0], leaves[1], None, 2)
            total = values.sum() + multiply(leaves[0], leaves[1]).square().sum()
            results.append([values, *torch.autograd.grad(total, leaves)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("sparsifier", [None, ReLU(0.01), JumpReLU(0.01)], ids=str)
def test_a_step_computes_in_the_precision_of_its_member(sparsifier):
    """Its codes are others; weights and all that is kept stay in single precision."""
    rows = SparseWorld(width=12, units=16, active=2, samples=400).draw().x
    made = recipe("osae", TASK)
    made = made if sparsifier is None else alter(made, {"sae.sparsifier": sparsifier})
    results = {}
    for precision in ("fp32", "tf32", "bf16"):
        member = Member(made, 0, rows, precision=precision)
        results[precision] = member.advance(rows[:100], 0).code.dense(16)
        assert all(t.dtype == torch.float32 for t in member.state().values() if t.is_floating_point())
    full, middle, low = results.values()
    assert 0 < float((middle - full).norm()) < float((low - full).norm()) < 0.1 * float(full.norm())


def train_tiny(out, *words):
    fixed = ["train", "osae", "--epochs", "3", "--batch", "50", "--device", "cpu", *TINY]
    return main([*fixed, "--out", str(out), *words])


def test_a_run_records_its_precision_and_resumes_in_it(tmp_path, monkeypatch):
    assert train_tiny(tmp_path / "whole", "--precision", "bf16") == 0
    assert train_tiny(tmp_path / "single") == 0
    assert json.loads((tmp_path / "whole/run.json").read_text())["config"]["precision"] == "bf16"
    real, steps = Member.advance, []

    def stop(self, x, step):
        steps.append(step)
        if len(steps) == 14:
            raise KeyboardInterrupt
        return real(self, x, step)

    monkeypatch.setattr(Member, "advance", stop)
    assert train_tiny(tmp_path / "cut", "--precision", "bf16", "--checkpoint-seconds", "0") == 130
    monkeypatch.undo()
    assert main(["resume", str(tmp_path / "cut"), "--device", "cpu"]) == 0
    saes = {name: read_sae(tmp_path / name) for name in ("whole", "cut", "single")}
    assert all(torch.equal(saes["whole"][name], saes["cut"][name]) for name in saes["whole"])
    assert not torch.equal(saes["whole"]["encoder"], saes["single"]["encoder"])
    about = json.loads((tmp_path / "cut/osae-seed0/sae.json").read_text())
    assert about["provenance"]["precision"] == "bf16"


def read_sae(run: Path):
    return osae.SAE.load(run / "osae-seed0").state_dict()


def test_fit_takes_a_precision_and_names_those_that_there_are():
    rows = SparseWorld(width=12, units=16, active=2, samples=400).draw().x
    wanted = {"units": 16, "k": 2, "samples": 800, "batch": 100, "progress": False}
    low, full = (osae.fit("osae", rows, precision=p, **wanted) for p in ("bf16", "fp32"))
    assert not torch.equal(low.encoder, full.encoder)
    with pytest.raises(ValueError, match="precision='fp8': give one of fp32, tf32, bf16"):
        osae.fit("osae", rows, precision="fp8", **wanted)
