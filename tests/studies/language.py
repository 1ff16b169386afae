"""A small language model, shards of its activations, and SAEs to splice into it."""

import pytest
import torch

from osae.data.harvest import Harvest, harvest
from osae.data.text import TextFiles
from osae.model import SAE, SAEConfig
from osae.sparsify import Linear, ReLU
from tests.studies.saes import make_model, save_sae, write_text

WIDTH, SKIP = 16, 2


@pytest.fixture(scope="session")
def language(tmp_path_factory):
    """A folder with a model, shards of its activations, and SAEs: identity, inactive, and one in between."""
    folder = tmp_path_factory.mktemp("language")
    make_model(folder / "model")
    text = TextFiles((str(write_text(folder / "a.jsonl", 20, 0)),))
    spec = Harvest(str(folder / "model"), text, 200, layer=1, context=12, skip=SKIP, max_norm=0, block=80)
    harvest(spec, folder / "x", dtype="float32", device="cpu")
    save_sae(folder / "identity", torch.eye(WIDTH), Linear())
    inactive = SAE(SAEConfig(WIDTH, 4, ReLU()), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        inactive.encoder_bias.fill_(-1e6)
    inactive.save(folder / "inactive")
    save_sae(folder / "some", torch.eye(WIDTH)[:10], Linear())
    return folder
