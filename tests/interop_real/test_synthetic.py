"""SAELens' own evaluator of synthetic data and our measures give the same numbers: `make test-interop`."""

from types import SimpleNamespace

import pytest
import torch

from osae.data.worlds import ForestWorld
from osae.experiments.worlds.hard_measures import measure_pair
from osae.interop import convert
from osae.recipes import Task, recipe
from osae.training.simple import fit

pytest.importorskip("sae_lens")

ROWS = 2000
WORLD = ForestWorld(12, 24, 3.0, samples=4000, roots=3, bias=1.0, noise=0.02)


@pytest.fixture(scope="module", params=["topk", "matryoshka-random", "osae"])
def judged(request, tmp_path_factory):
    """Return what SAELens' evaluator and our measures say of one SAE, on the same samples."""
    from sae_lens import SAE as Theirs
    from sae_lens.synthetic import FeatureDictionary
    from sae_lens.synthetic.evals import eval_sae_on_synthetic_data

    sae = fit(recipe(request.param, Task(12, 24, 3, 20_000, 200)), WORLD.draw().x, progress=False)
    folder = tmp_path_factory.mktemp("saelens")
    convert(sae, folder, to="saelens", model="gpt2", layer=0)
    x, code = WORLD.draw("test", ROWS)
    atoms = FeatureDictionary(24, 12, bias=False, initializer=None)
    atoms.feature_vectors.data = WORLD.dictionary()
    # the evaluator multiplies codes and atoms: what else is in our samples takes the place of its bias
    atoms.bias.data = x - code.dense(24) @ WORLD.dictionary()
    draws = SimpleNamespace(sample=lambda count: code.dense(24)[:count])
    theirs = eval_sae_on_synthetic_data(Theirs.load_from_disk(folder), atoms, draws, num_samples=ROWS)
    return theirs, measure_pair([sae], WORLD, ROWS)


def test_mcc_and_f1_are_those_of_saelens(judged):
    theirs, ours = judged
    assert theirs.mcc == pytest.approx(ours["mcc_truth"], abs=1e-5)
    assert theirs.classification.f1_score == pytest.approx(ours["f1_truth"], abs=1e-3)


def test_sparsity_dead_units_and_explained_variance_are_those_of_saelens(judged):
    theirs, ours = judged
    assert theirs.sae_l0 == pytest.approx(ours["l0"], abs=1e-3)
    assert theirs.dead_latents == round(24 * ours["dead"])
    assert theirs.explained_variance == pytest.approx(ours["explained_variance"], abs=1e-3)
    assert theirs.true_l0 == pytest.approx(WORLD.active, rel=0.1)
    assert torch.isfinite(torch.tensor(theirs.shrinkage))
