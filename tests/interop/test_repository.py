"""One folder for SAELens, sparsify and us."""

import json

import pytest
import torch

from osae.interop import load
from osae.interop.repository import write_sae
from osae.model import SAE, SAEConfig
from osae.scaling import LayerNorm
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK


@pytest.mark.parametrize(
    ("config", "libraries"),
    [
        (SAEConfig(8, 16, TopK(3)), ("saelens", "sparsify")),
        (SAEConfig(8, 16, TopK(3), scaling=LayerNorm()), ("saelens",)),
        (SAEConfig(8, 16, BatchTopK(3)), ("saelens",)),
        (SAEConfig(8, 16, JumpReLU()), ("saelens",)),
        (SAEConfig(8, 16, ReLU()), ("saelens",)),
    ],
    ids=str,
)
def test_a_folder_has_the_files_of_the_libraries_that_can_express_the_sae(tmp_path, config, libraries):
    sae = SAE(config)
    assert write_sae(load(sae), tmp_path) == libraries
    assert (tmp_path / "sae.safetensors").exists() == ("sparsify" in libraries)
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load(tmp_path)(x), sae(x).reconstruction.detach(), atol=1e-6, rtol=1e-6)


def test_an_sae_that_no_library_has_is_refused(tmp_path):
    with pytest.raises(ValueError, match="SAELens does not support Linear"):
        write_sae(load(SAE(SAEConfig(8, 16, Linear()))), tmp_path)
    assert not list(tmp_path.iterdir())


def test_folders_of_this_machine_are_not_published(tmp_path):
    secret = tmp_path / "secret-home" / "sae"
    about = {
        "source": {"path": str(tmp_path / "acts")},
        "harvested": {"model": str(tmp_path / "m"), "layer": 2},
    }
    SAE(SAEConfig(8, 16, TopK(3))).save(secret, provenance=about)
    write_sae(load(secret), tmp_path / "out", known={"scores": {"l0": 3.0}})
    text = (tmp_path / "out/cfg.json").read_text()
    assert str(tmp_path) not in text
    about = json.loads(text)["metadata"]["osae"]
    assert about["source"]["path"] == "sae"
    assert about["source"]["provenance"]["source"]["path"] == "acts"
    assert about["scores"] == {"l0": 3.0}
    assert json.loads(text)["metadata"]["model_name"] == "m"
