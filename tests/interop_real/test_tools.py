"""SAEDashboard, Neuronpedia's classes and SAEBench take what we write: `make test-interop`.

The model is a small random one, and everything runs offline.
"""

import json

import pytest
import torch

pytest.importorskip("sae_lens")
from datasets import Dataset
from sae_lens import SAE, ActivationsStore

from osae.interop import convert, load
from osae.model import SAE as OwnSAE
from osae.model import SAEConfig
from osae.sparsify import BatchTopK, TopK
from tests.interop_real.test_integration import CONTEXT, HOOK, WIDTH, activations, tiny_model, tokens

UNITS, K = 32, 4


def make_sae(sparsifier, folder, to):
    """Write an SAE with random atoms for the first block of the tiny model, and return it."""
    sae = OwnSAE(SAEConfig(WIDTH, UNITS, sparsifier), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        sae.threshold.fill_(0.05)  # so that some unit fires in every row: SAEBench divides by norms
    convert(sae, folder, to=to, model="tiny", layer=0)
    return sae


def test_saedashboard_takes_our_export(tmp_path):
    pytest.importorskip("sae_dashboard")
    from sae_dashboard.sae_vis_data import SaeVisConfig
    from sae_dashboard.sae_vis_runner import SaeVisRunner

    ours, model = make_sae(TopK(K), tmp_path, "saelens"), tiny_model()
    theirs = SAE.load_from_disk(tmp_path)
    text = tokens(32, 5)
    config = SaeVisConfig(
        hook_point=theirs.cfg.metadata.hook_name, features=range(8), minibatch_size_tokens=8
    )
    found = SaeVisRunner(config).run(encoder=theirs, model=model, tokens=text)
    with torch.no_grad():
        _, cache = model.run_with_cache(text)
        dense = ours.encode(cache[HOOK]).dense(UNITS)
    assert sorted(found.feature_data_dict) == list(range(8))
    strongest = False
    for unit, data in found.feature_data_dict.items():
        share = float(data.acts_histogram_data.title.split(" = ")[1].rstrip("%")) / 100
        assert share == pytest.approx(float((dense[..., unit] > 0).float().mean()), abs=1e-3)
        groups = data.sequence_data.seq_group_data
        shown = max((max(each.feat_acts) for group in groups for each in group.seq_data), default=0.0)
        inner = float(dense[:, 5:-5, unit].max())  # contexts are shown of tokens with 5 others on both sides
        assert inner - 2e-3 <= shown <= float(dense[..., unit].max()) + 2e-3
        strongest = strongest or inner > 0
    assert strongest


def test_neuronpedia_classes_read_our_batches(tmp_path):
    pytest.importorskip("sae_dashboard")
    from neuronpedia.np_activation import Activation
    from sae_dashboard.neuronpedia.neuronpedia_dashboard import NeuronpediaDashboardBatch

    from osae.integrations.neuronpedia import write_neuronpedia

    for number, path in enumerate(
        write_neuronpedia(
            make_contexts(tmp_path), tmp_path / "out", model="tiny", layer=0, source_set="res-osae"
        )
    ):
        held = json.loads(path.read_text())
        batch = NeuronpediaDashboardBatch(**held)
        assert batch.to_dict() == held  # no key that it does not know, and none missing
        assert path.name == f"batch-{number}.json"
        for unit in batch.features:
            for shown in unit.activations:
                place = {
                    "modelId": batch.model_id,
                    "source": f"{batch.layer}-{batch.sae_set}",
                    "index": unit.feature_index,
                }
                bins = {
                    "binMin": shown.bin_min,
                    "binMax": shown.bin_max,
                    "binContains": max(0.0, shown.bin_contains),
                }
                again = Activation.from_np_db_json(
                    place | bins | {"tokens": shown.tokens, "values": shown.values}
                )
                assert len(again.tokens) == len(again.values) > 0


def make_contexts(folder):
    """Return contexts of 300 units, some of which never fire, as `osae contexts` writes them."""
    import numpy as np

    from osae.context_files import write_contexts
    from osae.results.base import Activations, Provenance
    from osae.results.contexts import ContextOptions, Contexts
    from osae.results.subject import SubjectInfo

    rng, units, options = (
        np.random.default_rng(0),
        300,
        ContextOptions(top=3, bins=2, random=1, before=2, after=1),
    )
    shape = (units, 6, 4)
    values = np.sort(rng.random(shape).astype(np.float16), axis=-1)
    fired = rng.integers(0, 3, units)
    arrays = {
        "tokens": rng.integers(-1, 9, shape),
        "activations": values,
        "strengths": np.where(fired[:, None] > 0, values[..., 2].astype(np.float32), 0),
        "documents": np.zeros(shape[:2], np.int64),
        "positions": np.zeros(shape[:2], np.int64),
        "fired": fired,
        "mass": fired.astype(np.float64),
        "largest": np.ones(units, np.float32),
        **{name: np.zeros((units, 2), np.int64) for name in ("heavy", "heavy_counts", "heavy_mass")},
        "heavy_slack": np.zeros(units),
        "position_counts": np.zeros((units, 8), np.int64),
    }
    arrays["tokens"][..., 2] = 5
    about = Contexts(
        provenance=Provenance(versions={}),
        activations=Activations("x", 1000, 4, "float32", ""),
        sae=SubjectInfo("a", "osae", "", units, 4, None, ()),
        options=options,
        arrays="",
        sha256="",
        fired=int((fired > 0).sum()),
        median_frequency=0.1,
        tokens={str(token): f"token{token} <b>" for token in range(-1, 9)},
        measures={},
    )
    write_contexts(folder / "contexts", about, arrays)
    return folder / "contexts"


@pytest.mark.parametrize("sparsifier", [TopK(K), BatchTopK(K)], ids=repr)
def test_saebench_core_evaluation_takes_our_export(sparsifier, tmp_path, monkeypatch):
    core = pytest.importorskip("sae_bench.evals.core.main")
    import importlib

    from sae_bench.evals.core.eval_config import CoreEvalConfig

    from tests.interop_real.test_real import LOADERS

    module, name = LOADERS[type(sparsifier).__name__]
    loaders = importlib.import_module(f"sae_bench.custom_saes.{module}")
    make_sae(sparsifier, tmp_path, "dictionary_learning")
    download = lambda repo_id, filename, force_download, local_dir: str(tmp_path / filename)  # noqa: E731
    monkeypatch.setattr(loaders, "hf_hub_download", download)
    theirs = getattr(loaders, name)("repo", "ae.pt", "tiny", torch.device("cpu"), torch.float32, layer=0)
    model = tiny_model()
    store = ActivationsStore(
        model=model,
        dataset=Dataset.from_dict({"tokens": tokens(400, 6).tolist()}),
        streaming=False,
        hook_name=HOOK,
        hook_head_index=None,
        context_size=CONTEXT,
        d_in=WIDTH,
        n_batches_in_buffer=16,
        total_training_tokens=10_000,
        store_batch_size_prompts=16,
        train_batch_size_tokens=64,
        prepend_bos=False,
        normalize_activations="none",
        device=torch.device("cpu"),
        dtype="float32",
    )
    config = CoreEvalConfig(
        model_name="tiny",
        batch_size_prompts=16,
        n_eval_reconstruction_batches=2,
        n_eval_sparsity_variance_batches=8,
        compute_kl=True,
        compute_ce_loss=True,
        compute_l2_norms=True,
        compute_sparsity_metrics=True,
        compute_variance_metrics=True,
        compute_featurewise_density_statistics=True,
    )
    found, _ = core.run_evals(theirs, store, model, config)
    x = activations(model, 7)
    ours = load(tmp_path)
    l0 = float((ours.encode(x).values > 0).sum(-1).float().mean())
    cosine = float(torch.cosine_similarity(x, ours(x), dim=-1).mean())
    assert found["sparsity"]["l0"] == pytest.approx(l0, rel=0.1)
    assert found["reconstruction_quality"]["cossim"] == pytest.approx(cosine, abs=0.03)
    assert found["model_performance_preservation"]["ce_loss_with_sae"] > 0
