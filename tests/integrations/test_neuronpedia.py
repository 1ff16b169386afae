"""Contexts in the files that Neuronpedia takes; SAEDashboard's own classes read them in interop_real."""

import json

import numpy as np
import pytest

from osae.context_files import read_contexts
from osae.integrations.neuronpedia import write_neuronpedia
from osae.interop import load
from osae.sparsify import TopK
from osae.studies.contexts import contexts
from tests.studies.language import language  # noqa: F401
from tests.studies.saes import noise, save_sae

CLOSE = {"rel": 1e-3, "abs": 1e-3}  # activations in windows are kept in half precision


@pytest.fixture
def written(language, tmp_path):  # noqa: F811
    """Return an SAE of which two units never fire, its contexts, and what was written of them."""
    atoms = noise(12, 16, 0)
    sae = save_sae(tmp_path / "sae", atoms, TopK(3))
    ((folder, _),) = contexts(sae, language / "x", top=5, random=2, before=3, after=2, device="cpu")
    batches = write_neuronpedia(
        folder, tmp_path / "out", model="tiny", layer=1, source_set="res-osae", sae=sae
    )
    return sae, read_contexts(folder), batches, tmp_path / "out"


def test_every_unit_is_in_a_batch_or_skipped(written):
    _, found, batches, out = written
    (batch,) = [json.loads(path.read_text()) for path in batches]
    assert (batch["model_id"], batch["layer"], batch["sae_set"]) == ("tiny", 1, "res-osae")
    skipped = json.loads((out / "skipped_indexes.json").read_text())["skipped_indexes"]
    units = [unit["feature_index"] for unit in batch["features"]]
    assert sorted(units + skipped) == list(range(12))
    assert skipped == np.flatnonzero(found.arrays["fired"] == 0).tolist()


def test_a_dashboard_has_the_contexts_of_its_unit(written):
    sae, found, (path,), _ = written
    unit = json.loads(path.read_text())["features"][0]
    number, arrays = unit["feature_index"], found.arrays
    assert unit["frac_nonzero"] == pytest.approx(arrays["fired"][number] / found.about.activations.rows)
    strongest = unit["activations"][0]
    assert strongest["bin_contains"] == -1
    assert max(strongest["values"]) == pytest.approx(arrays["largest"][number], **CLOSE)
    at = strongest["qualifying_token_index"]
    assert strongest["values"][at] == pytest.approx(arrays["strengths"][number, 0], **CLOSE)
    token = arrays["tokens"][number, 0, found.about.options.before]
    assert strongest["tokens"][at] == found.about.tokens[str(token)]
    assert unit["pos_values"] == sorted(unit["pos_values"], reverse=True)
    atom = load(sae).decoder[number]
    assert unit["neuron_alignment_indices"] == atom.topk(3).indices.tolist()


def test_bins_contain_the_activations_that_stand_for_them(written):
    _, _, (path,), _ = written
    for unit in json.loads(path.read_text())["features"]:
        for shown in unit["activations"]:
            value = shown["values"][shown["qualifying_token_index"]]
            assert 0.999 * shown["bin_min"] <= value + 1e-3
            assert value <= 1.001 * shown["bin_max"] + 1e-3


def test_another_sae_is_refused(written, tmp_path):
    other = save_sae(tmp_path / "other", noise(12, 16, 1), TopK(3))
    with pytest.raises(ValueError, match="digests differ"):
        write_neuronpedia(
            tmp_path / "sae/contexts", tmp_path / "new", model="m", layer=1, source_set="s", sae=other
        )
    with pytest.raises(ValueError, match="already contains files"):
        write_neuronpedia(tmp_path / "sae/contexts", tmp_path / "out", model="m", layer=1, source_set="s")
