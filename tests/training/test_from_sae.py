"""Training that starts from an SAE: its weights are taken over, and a run is resumed exactly."""

import re
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import osae
from osae.cli import main
from osae.config import alter
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from osae.model import SAE, SAEConfig
from osae.recipes import FromSAE, Task, continue_from, recipe, world_recipe
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK
from osae.training import run as runs
from osae.training.member import Member
from tests.faults.processes import run

TASK = Task(width=12, units=16, k=2, samples=3200, batch=100)
SPARSIFIERS = [TopK(2), BatchTopK(2), ReLU(), JumpReLU(0.01)]


@pytest.fixture(scope="module")
def rows():
    return 7 * SparseWorld(width=12, units=16, active=2, samples=1600).draw().x + 3


def draw_sae(sparsifier, *, norms=1.0):
    """An SAE with something in each of its tensors."""
    source = torch.Generator().manual_seed(0)
    config = SAEConfig(12, 16, sparsifier)
    tensors = {name: torch.randn(shape, generator=source) for name, shape in config.shapes.items()}
    tensors["decoder"] = norms * torch.nn.functional.normalize(tensors["decoder"], dim=-1)
    tensors["threshold"].abs_()
    return SAE.from_tensors(config, tensors)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda one: type(one).__name__)
def test_before_its_first_step_an_sae_is_what_it_starts_from(sparsifier, rows):
    """Whatever the scale at which it is trained."""
    first = draw_sae(sparsifier)
    made = alter(recipe("topk", TASK), {"sae.sparsifier": sparsifier})
    member = Member(continue_from(made, FromSAE("in memory")), 0, rows, start=first)
    assert member.scale != 1
    found = member.finish()
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, msg=name)
    torch.testing.assert_close(found(rows).reconstruction, first(rows).reconstruction, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sparsifier", [ReLU(), JumpReLU(0.01)], ids=lambda one: type(one).__name__)
def test_norms_of_atoms_move_to_the_encoder(sparsifier, rows):
    first = draw_sae(sparsifier, norms=torch.linspace(0.5, 3, 16)[:, None])
    made = alter(recipe("topk", TASK), {"sae.sparsifier": sparsifier})
    found = Member(continue_from(made, FromSAE("in memory")), 0, rows, start=first).finish()
    torch.testing.assert_close(found.decoder.norm(dim=-1), torch.ones(16))
    torch.testing.assert_close(found(rows).reconstruction, first(rows).reconstruction, atol=1e-4, rtol=1e-4)


def test_thresholds_of_another_sparsifier_are_not_taken_over(rows):
    made = continue_from(recipe("batchtopk", TASK), FromSAE("in memory"))
    found = Member(made, 0, rows, start=draw_sae(JumpReLU(0.01))).finish()
    assert float(found.threshold.abs().max()) == 0


def test_fit_goes_on_from_an_sae(rows, tmp_path):
    first = osae.fit("topk", rows, units=16, k=2, samples=30_000, batch=100, progress=False)
    first.save(tmp_path / "sae")
    gentle = {"lr.peak": 1e-4}
    further = [
        osae.fit(alter(recipe("topk", TASK), {**gentle, "k_warmup": None}), rows, start=start, progress=False)
        for start in (first, tmp_path / "sae")
    ]
    assert torch.equal(further[0].decoder, further[1].decoder)
    cosines = torch.nn.functional.cosine_similarity(further[0].decoder, first.decoder).detach()
    assert 0.99 < float(cosines.min()) < 1
    named = osae.fit("batchtopk", rows, start=first, samples=200, batch=100, progress=False)
    assert named.config == replace(first.config, sparsifier=BatchTopK(2))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_run_from_an_sae_is_resumed_exactly_and_refuses_another_sae(rows, tmp_path, warmed, capsys):
    first = osae.fit("topk", rows, units=16, k=2, samples=2000, batch=100, progress=False)
    first.save(tmp_path / "sae")
    world = ["--world-width", "12", "--world-units", "16", "--world-samples", "1600", "--device", "cpu"]
    words = ["train", "topk", "--from", str(tmp_path / "sae"), *world, "--batch", "100", "--epochs", "2"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    config = runs.read(tmp_path / "whole")
    assert config.recipes[0].start == FromSAE(str(tmp_path / "sae"), osae.load(tmp_path / "sae").sha256)
    assert config.recipes[0].k_warmup is None
    often = ["--checkpoint-seconds", "0", "--out", tmp_path / "cut"]
    assert run([*words, *often], at=30)[0] == -signal.SIGKILL
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert main(["resume", str(tmp_path / "cut"), "--device", "cpu"]) == 0
    whole, again = (
        load_file(tmp_path / name / "topk-seed0" / "sae.safetensors") for name in ("whole", "cut")
    )
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    draw_sae(TopK(2)).save(tmp_path / "sae")
    assert main(["resume", str(tmp_path / "cut"), "--device", "cpu"]) == 2
    assert "differs from the SAE that training started from: restore the original" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "has width 12, but the data have width 8: give an SAE of the same width"),
        ({"units": ["--units", "3"]}, "--units has no effect with --from"),
        ({"start": ["--start", "noise"]}, "--start has no effect with --from"),
        (
            {"sae": JumpReLU(0.01)},
            "has no number of active units|which sets no number of active units: give --k",
        ),
        ({"missing": True}, "there is no such file or folder"),
    ],
    ids=["width", "units", "start", "k", "missing"],
)
def test_what_cannot_be_started_from_is_refused_before_anything_is_written(changes, said, tmp_path, capsys):
    draw_sae(changes.get("sae", TopK(2))).save(tmp_path / "sae")
    write_shards(tmp_path / "acts", [torch.randn(300, 8)])
    path = tmp_path / ("gone" if "missing" in changes else "sae")
    words = ["train", "topk", "--from", str(path), "--data", str(tmp_path / "acts"), "--batch", "100"]
    words += [*changes.get("units", ()), *changes.get("start", ()), "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert not (tmp_path / "run").exists()
    assert re.search(said, capsys.readouterr().err)


def test_a_recipe_of_other_sizes_is_refused(rows):
    made = continue_from(world_recipe("topk", replace(TASK, units=20)), FromSAE("in memory"))
    with pytest.raises(ValueError, match="has width 12 and 16 units, but the recipe is for 12 and 20"):
        Member(made, 0, rows, start=draw_sae(TopK(2)))
