import pytest
import torch

from osae.data.shards import write_shards
from tests.studies.saes import WORLD, noise, save_sae


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder with three SAEs of one world and activations of it, made the current one."""
    monkeypatch.chdir(tmp_path)
    atoms = WORLD.dictionary()
    save_sae(tmp_path / "a", atoms)
    for seed, name in enumerate(("b", "c")):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
        near = atoms[order] + 0.02 * (seed + 1) * noise(20, 24, seed)
        save_sae(tmp_path / name, torch.nn.functional.normalize(near, dim=1))
    write_shards(tmp_path / "x", [WORLD.draw("test").x], about={"model": "tiny"})
    return tmp_path
