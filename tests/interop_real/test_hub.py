"""What `osae push` puts on the hub is read by the real libraries, and computes the same."""

import json
import os
import subprocess
import sys

import pytest
import torch

from osae.interop import load
from osae.sparsify import JumpReLU, TopK
from tests.interop.fake_hub import environment, running_hub
from tests.interop_real.test_real import TIGHT, UNITS, K, random_sae

READ = """
import sys, torch, osae
from sae_lens import SAE
from sparsify import SparseCoder
x, found = torch.load(sys.argv[1]), {}
with torch.no_grad():
    sae = SAE.from_pretrained("me/mine", sys.argv[2])
    found["saelens"] = sae(x)
    found["model"], found["scores"] = sae.cfg.metadata.model_name, sae.cfg.metadata.osae["scores"]
    if sys.argv[3] == "TopK":
        found["sparsify"] = SparseCoder.load_from_hub("me/mine", sys.argv[2])(x).sae_out
        found["all of sparsify"] = SparseCoder.load_many("me/mine")[sys.argv[2]](x).sae_out
    found["osae"] = osae.load("hf:me/mine")(x)
torch.save(found, sys.argv[4])
"""


@pytest.mark.parametrize("sparsifier", [TopK(K), JumpReLU()], ids=repr)
def test_a_pushed_repository_is_read_by_every_library(sparsifier, tmp_path):
    sae, x = random_sae(sparsifier, 0, even=False)
    sae.save(tmp_path / "mine")
    torch.save(x, tmp_path / "x.pt")
    _evaluate(tmp_path, x)
    kind = type(sparsifier).__name__
    with running_hub() as hub:
        variables = os.environ | environment(hub, tmp_path / "home")
        described = ["--model", "gpt2", "--layer", "3", "--results", str(tmp_path / "found.json")]
        push = ["-m", "osae", "push", str(tmp_path / "mine"), "hf:me/mine", *described]
        subprocess.run([sys.executable, *push], env=variables, check=True)
        folder = "blocks.3.hook_resid_post"
        read = ["-W", "ignore", "-c", READ, str(tmp_path / "x.pt"), folder, kind, str(tmp_path / "found.pt")]
        subprocess.run([sys.executable, *read], env=variables, check=True)
    found = torch.load(tmp_path / "found.pt")
    assert found.pop("model") == "gpt2"
    assert found.pop("scores")["explained_variance"] is not None
    assert len(found) == (4 if kind == "TopK" else 2)
    for outputs in found.values():
        torch.testing.assert_close(outputs, sae(x).reconstruction.detach(), **TIGHT)


def _evaluate(folder, x):
    from osae.results import write_json
    from osae.studies.evaluate import evaluate

    write_json(evaluate([load(folder / "mine")], x, model="none"), folder / "found.json")


@pytest.mark.parametrize("seed", range(3))
def test_a_folder_of_a_dry_run_is_read_by_saelens_and_sparsify(seed, tmp_path):
    from sae_lens import SAE as SAELens
    from sparsify import SparseCoder

    from osae.studies.push import write_repository

    sae, x = random_sae(TopK(K), seed)
    write_repository(sae, tmp_path, "hf:me/mine", model="gpt2", layer=3)
    folder = tmp_path / "blocks.3.hook_resid_post"
    with torch.no_grad():
        ours = sae(x).reconstruction
        torch.testing.assert_close(SAELens.load_from_disk(folder)(x), ours, **TIGHT)
        torch.testing.assert_close(SparseCoder.load_from_disk(folder)(x).sae_out, ours, **TIGHT)
    assert json.loads((folder / "cfg.json").read_text())["d_sae"] == UNITS
