"""What the real libraries saved and computed (see make_golden.py), against what we read in their files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from osae.interop import load
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

GOLDEN = Path(__file__).parents[1] / "golden"
RUNNABLE = {
    "saelens-standard": ReLU(),
    "saelens-topk": TopK(4),
    "saelens-topk-norms": TopK(4),
    "saelens-topk-rescaled": TopK(4),
    "saelens-jumprelu": JumpReLU(),
    "saelens-jumprelu-no-pre-bias": JumpReLU(),
    "saelens-gated": JumpReLU(),
    "saelens-layer-norm": ReLU(),
    "saelens-checkpoint-topk": TopK(4),
    "saelens-checkpoint-batchtopk": BatchTopK(4),
    "saelens-checkpoint-matryoshka": BatchTopK(4),
    "saelens-checkpoint-scaled": TopK(4),
    "saelens-old": ReLU(),
    "saelens-old-topk": TopK(4),
    "dictionary_learning-AutoEncoder": ReLU(),
    "dictionary_learning-AutoEncoderNew": ReLU(),
    "dictionary_learning-AutoEncoderTopK": TopK(4),
    "dictionary_learning-BatchTopKSAE": BatchTopK(4),
    "dictionary_learning-BatchTopKSAE-unset": BatchTopK(4),
    "dictionary_learning-MatryoshkaBatchTopKSAE": BatchTopK(4),
    "dictionary_learning-JumpReluAutoEncoder": JumpReLU(),
    "dictionary_learning-GatedAutoEncoder": JumpReLU(),
    "dictionary_learning-backup": TopK(4),
    "sparsify": TopK(4),
    "sparsify-norms": TopK(4),
    "llamascopium-topk": TopK(4),
    "llamascopium-jumprelu": JumpReLU(),
    "llamascopium-relu": ReLU(),
    "gemma_scope": JumpReLU(),
}
MATRICES = {
    "saelens-abstopk": "abstopk",
    "sparsify-groupmax": "groupmax",
    "llamascopium-batchtopk": "batchtopk",
}


def test_every_golden_folder_is_tested():
    assert {folder.name for folder in GOLDEN.iterdir()} == {*RUNNABLE, *MATRICES}


def test_golden_files_are_small():
    assert sum(file.stat().st_size for file in GOLDEN.rglob("*") if file.is_file()) < 300_000


@pytest.mark.parametrize("name", RUNNABLE)
def test_code_and_reconstruction_are_those_of_the_library(name):
    loaded = load(GOLDEN / name)
    assert loaded.format == name.partition("-")[0]
    assert loaded.sae is not None
    assert loaded.sae.config.sparsifier == RUNNABLE[name]
    expected = {
        key: torch.from_numpy(value) for key, value in np.load(GOLDEN / name / "expected.npz").items()
    }
    with torch.no_grad():
        recon, code = loaded.sae(expected["x"])
    norms = loaded.decoder.norm(dim=1)
    torch.testing.assert_close(code.dense(32) * norms, expected["acts"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(recon, expected["recon"], atol=1e-5, rtol=1e-5)
    assert (expected["acts"] != 0).any(1).all()  # the golden inputs do exercise the code


@pytest.mark.parametrize("name", RUNNABLE)
def test_atoms_have_unit_norm_unless_the_top_k_forbids_it(name):
    loaded = load(GOLDEN / name)
    kept = any("are kept" in note for note in loaded.notes)
    assert kept == (name in ("saelens-topk-norms", "saelens-old-topk", "sparsify-norms"))
    if not kept:
        torch.testing.assert_close(loaded.decoder.norm(dim=1), torch.ones(32), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", MATRICES)
def test_what_we_cannot_run_still_gives_its_matrices_and_says_why(name):
    loaded = load(GOLDEN / name)
    assert loaded.sae is None
    assert loaded.encoder is not None
    assert loaded.decoder.shape == loaded.encoder.shape == (32, 8)
    assert MATRICES[name] in loaded.notes[0]


def test_groups_of_a_matryoshka_are_noted():
    loaded = load(GOLDEN / "dictionary_learning-MatryoshkaBatchTopKSAE")
    assert loaded.sae is not None
    assert "it is a Matryoshka SAE whose groups end at 4, 16, 32 units." in loaded.notes


def test_metadata_is_the_json_beside_the_weights():
    trainer = load(GOLDEN / "dictionary_learning-AutoEncoderTopK").metadata["trainer"]
    assert trainer["dict_class"] == "AutoEncoderTopK"
