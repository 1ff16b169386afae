"""Training on devices that this machine lacks: without float64, and with every sum in a fixed order."""

import re
from dataclasses import replace

import pytest
import torch

from osae import kernels
from osae.cli import main
from osae.config import alter
from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.dictionary import Archetypal
from osae.recipes import Task, recipe
from osae.revival import Resample
from osae.schedule import Resort
from osae.sparsify import BatchTopK, JumpReLU
from osae.training.loop import train
from osae.training.member import Member
from tests.kernels.test_contract import draw_problem, loss_by_definition
from tests.simulated import DEVICE, Limited, on_device

TASK = Task(width=12, units=16, k=2, samples=200, batch=100)


@pytest.fixture(scope="module")
def rows():
    return SparseWorld(width=12, units=16, active=2, samples=400).draw().x


BASE = recipe("osae", TASK)
VARIANTS = [
    *(recipe(name, TASK) for name in ("vanilla", "topk", "batchtopk", "matryoshka-random", "osae")),
    *(alter(BASE, {"sae.sparsifier": each}) for each in (JumpReLU(0.01), BatchTopK(2))),
    replace(BASE, dictionary=Archetypal(20), resort=Resort(2)),
    replace(BASE, revival=Resample(3, 0.0, 1.0, 0)),
]


def test_the_simulated_device_refuses_what_the_real_one_does():
    with on_device():
        tensor = torch.ones(3).to(DEVICE)
        assert isinstance(tensor + 1, Limited)
        assert not isinstance(tensor.cpu(), Limited)
        for refused in (tensor.double, lambda: tensor * torch.ones(3).double()):
            with pytest.raises(RuntimeError, match="no float64"):
                refused()
        with pytest.raises(TypeError, match="float64"):
            torch.ones(3, dtype=torch.float64).to(torch.device(DEVICE))
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(3, dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize("made", VARIANTS, ids=lambda made: made.name)
def test_every_recipe_trains_without_float64(made, rows):
    """And gives what the same kernel gives on the CPU."""
    results = []
    with kernels.using("reference"):
        for device in ("cpu", DEVICE):
            with on_device() as calls:
                member = Member(made, 0, rows, device=device)
                train([member], MemoryRows(rows))
                assert bool(calls) == (device == DEVICE)
                assert isinstance(member.sae.decoder, Limited) == (device == DEVICE)
                results.append(member.finish().decoder.detach())
    assert torch.equal(*results)


def ops_that_raise() -> set[str]:
    """Return the operations that torch lists as raising an error under use_deterministic_algorithms(True)."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    listed = text[text.index("operations will throw a") : text.index("In addition, several")]
    return {name.strip("_") for name in re.findall(r"torch\.(?:Tensor\.)?(\w+)`", listed)}


def raises(name: str, args: tuple, kwargs: dict) -> bool:
    """Return whether torch refuses this call on a GPU in deterministic mode, as the list's conditions say."""
    if name.strip("_") not in ops_that_raise():
        return False
    if name.strip("_") == "cumsum":
        return args[0].is_floating_point()
    if name.strip("_") == "scatter_reduce":
        return "prod" in (*args, *kwargs.values())
    if name == "median":
        return len(args) + len(kwargs) > 1  # with the places of the medians
    return True


@pytest.mark.parametrize(
    "made",
    [*VARIANTS[1:3], *(pytest.param(made, marks=pytest.mark.slow) for made in (VARIANTS[0], *VARIANTS[3:]))],
    ids=lambda made: made.name,
)
def test_no_operation_of_a_run_is_one_that_deterministic_mode_refuses(made, rows):
    pytest.importorskip("triton")
    assert {"cumsum", "scatter_reduce", "median", "bincount"} <= ops_that_raise()
    made, few = replace(made, samples=6, batch=3), rows[:6]
    with kernels.using("gpu"), on_device() as calls:
        train([Member(made, 0, few, device=DEVICE)], MemoryRows(few))
        used = {name for name, _, _ in calls}
        refused = {name for name, args, kwargs in calls if raises(name, args, kwargs)}
    assert used & {"sort", "addmm"}  # the operations inside of kernels are seen too
    assert not refused


@pytest.mark.parametrize("backend", ["reference", "dense", "gpu"])
def test_weights_of_prefixes_may_be_on_the_device(backend):
    """They are summed in double precision, which the device may lack, and in order, which it may not keep."""
    pytest.importorskip("triton")
    x, values, units, decoder, weights, _ = draw_problem(3, 4, 6, 8, 3, torch.float32)
    with kernels.using(backend), on_device() as calls:
        loss = kernels.all_prefix_loss(
            *(part.to(DEVICE) for part in (x, values, units, decoder)), weights.float().to(DEVICE)
        )
        assert isinstance(loss, Limited)
        refused = {name for name, args, kwargs in calls if raises(name, args, kwargs)}
    assert not refused or backend == "reference"  # whose own sums are not in a fixed order
    exact = loss_by_definition(x, values, units, decoder, weights)
    torch.testing.assert_close(loss.as_subclass(torch.Tensor), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("failure", [TypeError, RuntimeError, NotImplementedError])
def test_a_start_that_fails_on_the_device_leaves_nothing_in_the_way_of_the_next(
    failure, tmp_path, monkeypatch
):
    words = ["train", "topk", "--world-samples", "100", "--batch", "50", "--epochs", "1", "--device", "cpu"]
    words += ["--out", str(tmp_path / "run")]

    def fail(*_):
        raise failure("the device cannot do this")

    monkeypatch.setattr(Member, "advance", fail)
    with pytest.raises(failure):
        main(words)
    monkeypatch.undo()
    assert main(words) == 0
