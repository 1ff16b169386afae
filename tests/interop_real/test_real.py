"""The real libraries load what we write and agree with us, and we load what they save: `make test-interop`.

Runs in an environment of its own; where a library is missing, its tests are skipped.
"""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from osae.interop import convert, load
from osae.model import SAE, SAEConfig
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

pytest.importorskip("sae_lens")
pytest.importorskip("sparsify")
sys.modules.setdefault("nnsight", types.SimpleNamespace(LanguageModel=object))  # pyright: ignore
pytest.importorskip("dictionary_learning")

WIDTH, UNITS, K = 8, 32, 4
SPARSIFIERS = [TopK(K), BatchTopK(K), JumpReLU(), ReLU()]
SEEDS = range(3)
TIGHT = {"atol": 1e-5, "rtol": 1e-5}


@torch.no_grad()
def random_sae(sparsifier, seed, *, even=True):
    generator = torch.Generator().manual_seed(seed)
    sae = SAE(SAEConfig(WIDTH, UNITS, sparsifier), generator=generator)
    sae.encoder.add_(0.5 * torch.randn(UNITS, WIDTH, generator=generator))
    sae.encoder_bias.copy_(0.3 * torch.randn(UNITS, generator=generator))
    sae.decoder_bias.copy_(torch.randn(WIDTH, generator=generator))
    sae.threshold.copy_(torch.rand(1 if even else UNITS, generator=generator).expand(UNITS))
    return sae, 2 * torch.randn(64, WIDTH, generator=generator)


@torch.no_grad()
def assert_agrees(sae, x, acts, recon):
    ours, code = sae(x)
    torch.testing.assert_close(acts, code.dense(UNITS), **TIGHT)
    torch.testing.assert_close(recon, ours, **TIGHT)
    assert (acts != 0).any()


# --- what we write ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_saelens_loads_our_export(sparsifier, seed, tmp_path):
    from sae_lens import SAE as Theirs

    sae, x = random_sae(sparsifier, seed, even=False)
    convert(sae, tmp_path, to="saelens", model="gpt2", layer=3)
    theirs = Theirs.load_from_disk(tmp_path)
    with torch.no_grad():
        assert_agrees(sae, x, theirs.encode(x), theirs(x))
    assert theirs.cfg.metadata.model_name == "gpt2"
    assert theirs.cfg.metadata.osae["config"]["kind"] == "SAEConfig"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_dictionary_learning_loads_our_export(sparsifier, seed, even, tmp_path):
    from dictionary_learning.utils import load_dictionary

    sae, x = random_sae(sparsifier, seed, even=even)
    convert(sae, tmp_path, to="dictionary_learning")
    theirs, _ = load_dictionary(str(tmp_path), "cpu")
    with torch.no_grad():
        recon, acts = theirs(x, output_features=True)
    assert_agrees(sae, x, acts, recon)


@pytest.mark.parametrize("seed", SEEDS)
def test_sparsify_loads_our_export(seed, tmp_path):
    from sparsify import SparseCoder

    sae, x = random_sae(TopK(K), seed)
    convert(sae, tmp_path, to="sparsify")
    theirs = SparseCoder.load_from_disk(tmp_path)
    with torch.no_grad():
        values, units, _ = theirs.encode(x)
        acts = torch.zeros(len(x), UNITS).scatter(-1, units, values)
        assert_agrees(sae, x, acts, theirs(x).sae_out)


LOADERS = {
    "TopK": ("topk_sae", "load_dictionary_learning_topk_sae"),
    "BatchTopK": ("batch_topk_sae", "load_dictionary_learning_batch_topk_sae"),
    "JumpReLU": ("jumprelu_sae", "load_dictionary_learning_jump_relu_sae"),
    "ReLU": ("relu_sae", "load_dictionary_learning_relu_sae"),
}


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_saebench_accepts_our_dictionary_learning_export(sparsifier, tmp_path, monkeypatch):
    pytest.importorskip("sae_bench")
    module, name = LOADERS[type(sparsifier).__name__]
    loaders = importlib.import_module(f"sae_bench.custom_saes.{module}")
    sae, x = random_sae(sparsifier, seed=0)
    convert(sae, tmp_path, to="dictionary_learning", model="EleutherAI/pythia-70m", layer=3)
    download = lambda repo_id, filename, force_download, local_dir: str(tmp_path / filename)  # noqa: E731
    monkeypatch.setattr(loaders, "hf_hub_download", download)
    theirs = getattr(loaders, name)(
        "repo", "ae.pt", "pythia-70m", torch.device("cpu"), torch.float32, layer=3
    )
    with torch.no_grad():
        assert_agrees(sae, x, theirs.encode(x), theirs(x))


# --- what they write --------------------------------------------------------------------------------


def golden_makers():
    path = Path(__file__).parents[1] / "interop" / "make_golden.py"
    spec = importlib.util.spec_from_file_location("make_golden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MAKERS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", golden_makers())
def test_we_load_what_they_save(name, seed, tmp_path):
    if name.startswith("llamascopium"):
        pytest.importorskip("llamascopium")
    torch.manual_seed(seed)
    x = 2 * torch.randn(64, WIDTH) + 0.5
    with torch.no_grad():
        acts, recon = golden_makers()[name](tmp_path, x)
    loaded = load(tmp_path)
    golden = load(Path(__file__).parents[1] / "golden" / name)
    assert (loaded.sae is None) == (golden.sae is None)
    if loaded.sae is None:
        return
    with torch.no_grad():
        ours, code = loaded.sae(x)
    torch.testing.assert_close(code.dense(UNITS) * loaded.decoder.norm(dim=1), acts, **TIGHT)
    torch.testing.assert_close(ours, recon, **TIGHT)


@pytest.mark.parametrize("to", ["saelens", "dictionary_learning", "sparsify"])
def test_one_library_reads_what_another_saved(to, tmp_path):
    """A sparsify SAE, converted: SAELens' own converter gets these files wrong."""
    golden = Path(__file__).parents[1] / "golden" / "sparsify"
    convert(load(golden), tmp_path / to, to=to)
    expected = {key: torch.from_numpy(value) for key, value in np.load(golden / "expected.npz").items()}
    acts, recon = RUN[to](tmp_path / to, expected["x"])
    torch.testing.assert_close(acts, expected["acts"], **TIGHT)
    torch.testing.assert_close(recon, expected["recon"], **TIGHT)


@torch.no_grad()
def run_saelens(folder, x):
    from sae_lens import SAE as Theirs

    theirs = Theirs.load_from_disk(folder)
    return theirs.encode(x), theirs(x)


@torch.no_grad()
def run_dictionary_learning(folder, x):
    from dictionary_learning.utils import load_dictionary

    recon, acts = load_dictionary(str(folder), "cpu")[0](x, output_features=True)
    return acts, recon


@torch.no_grad()
def run_sparsify(folder, x):
    from sparsify import SparseCoder

    theirs = SparseCoder.load_from_disk(folder)
    values, units, _ = theirs.encode(x)
    return torch.zeros(len(x), UNITS).scatter(-1, units, values), theirs(x).sae_out


RUN = {"saelens": run_saelens, "dictionary_learning": run_dictionary_learning, "sparsify": run_sparsify}
