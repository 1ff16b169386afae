"""Files of release 0.1.0: SAE folders load, runs resume and end as in that release, shards are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from osae.data.shards import Shards
from osae.dictionary import FreeAtoms, Tied
from osae.interop import load
from osae.model import SAE
from osae.prefix import Full, Mixed, Uniform
from osae.revival import AuxK, Split
from osae.training import run
from osae.training.simple import fit

RELEASE = Path(__file__).parents[1] / "fixtures" / "release-0.1.0"
FOLDERS = sorted(path.parent.relative_to(RELEASE) for path in RELEASE.glob("**/sae.json"))


@pytest.fixture
def release(tmp_path) -> Path:
    return Path(shutil.copytree(RELEASE, tmp_path / "release"))


def test_there_are_folders_to_test():
    kinds = {json.loads((RELEASE / path / "sae.json").read_text())["config"]["tied"] for path in FOLDERS}
    assert len(FOLDERS) >= 14
    assert kinds == {True, False}


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_an_sae_folder_loads_and_is_saved_with_the_same_weights(folder, release, tmp_path):
    sae, found = SAE.load(release / folder), load(release / folder)
    assert found.sae is not None
    assert found.sae.config == sae.config
    assert (sae.config.width, sae.config.units) == (12, 16)
    x = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.sae(x).reconstruction, sae(x).reconstruction)
    sae.save(tmp_path / "again")
    before, after = ((at / "sae.safetensors").read_bytes() for at in (release / folder, tmp_path / "again"))
    assert before == after


def test_tied_saes_load_with_equal_matrices(release):
    sae = SAE.load(release / "resumed" / "osae-tied-seed0")
    assert torch.equal(sae.encoder, sae.decoder)


def test_the_choices_of_a_run_are_where_they_are_now(release):
    paper, batchtopk, vanilla, tied = run.read(release / "interrupted").recipes
    assert [made.dictionary for made in (paper, batchtopk, vanilla)] == [FreeAtoms()] * 3
    assert (paper.prefix, paper.revival) == (Uniform(), None)
    assert (batchtopk.prefix, batchtopk.revival) == (Full(), AuxK(4, 0.03125, 400))
    assert (vanilla.prefix, vanilla.revival) == (Full(), Split(20, 0.35, 0.85, 0.1))
    assert (tied.dictionary, tied.prefix) == (Tied(), Mixed(Uniform(), 0.9))
    assert len(run.read(release / "run").recipes) == 3


def test_an_interrupted_run_resumes_and_ends_as_in_that_release(release):
    before = (release / "interrupted" / "log.jsonl").read_text().splitlines()
    members = run.go(release / "interrupted")
    assert len(members) == 4
    for member in members:
        found = SAE.load(release / "interrupted" / member.name).state_dict()
        expected = SAE.load(release / "resumed" / member.name).state_dict()
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
    lines = (release / "interrupted" / "log.jsonl").read_text().splitlines()
    assert lines[: len(before)] == before
    assert json.loads(lines[-1])["step"] == members[0].recipe.steps
    assert "inactive" in json.loads(lines[-1])


def test_the_checkpoint_was_written_before_the_end(release):
    """So that the test above resumes something."""
    lines = (release / "interrupted" / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert 0 < max(steps) < run.read(release / "interrupted").recipes[0].steps
    assert (release / "interrupted" / "checkpoint.safetensors").exists()


def test_shards_are_read_and_trained_on(release):
    shards = Shards(release / "shards")
    shards.verify()
    rows = shards.read(0, shards.rows)
    assert rows.shape == (shards.rows, shards.width)
    sae = fit("topk", release / "shards", units=8, k=2, samples=10 * shards.rows)
    assert sae.config.width == shards.width
    assert torch.equal(sae.decoder, fit("topk", rows, units=8, k=2, samples=10 * shards.rows).decoder)
