"""Twins of an SAE, and the SAE of the units that they find too."""

import pytest
import torch

from osae import results
from osae.data.shards import Shards, write_shards
from osae.data.worlds import SparseWorld
from osae.interop import load
from osae.locks import LOCK
from osae.model import SAE
from osae.recipes import Task, world_recipe
from osae.sparsify import Linear
from osae.studies.evaluate import evaluate
from osae.studies.prune import prune
from osae.studies.trust import split_rows, trust
from osae.training.simple import fit
from tests.studies.language import WIDTH
from tests.studies.saes import make_sae, noise

WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=6000)


def train(folder, rows, *, seed=0, name="topk", samples=60_000):
    """Save a trained SAE with its recipe, and return its folder."""
    recipe = world_recipe(name, Task(width=24, units=20, k=2, samples=samples, batch=100))
    from osae.config import to_json

    sae = fit(recipe, rows, seed=seed, progress=False)
    sae.save(folder, provenance={"recipe": to_json(recipe), "seed": seed})
    return folder


def test_parts_are_disjoint_by_document_and_together_the_data(tmp_path):
    documents = torch.arange(400) // 5
    x = torch.arange(400.0)[:, None].repeat(1, 3)
    whole = write_shards(tmp_path / "acts", [{"activations": x, "documents": documents}], rows_per_shard=150)
    parts = split_rows(whole, tmp_path / "parts", 3)
    rows = [torch.cat(list(part.batches()))[:, 0].long() for part in parts]
    assert sorted(torch.cat(rows).tolist()) == list(range(400))
    owners = [set(documents[each].tolist()) for each in rows]
    assert all(not one & other for n, one in enumerate(owners) for other in owners[:n])
    assert len(rows[3]) < len(rows[0])
    again = split_rows(whole, tmp_path / "parts", 3)
    assert [part.provenance() for part in again] == [part.provenance() for part in parts]
    with pytest.raises(ValueError, match="part of different data"):
        split_rows(Shards(tmp_path / "parts" / "0"), tmp_path / "parts", 3)
    with pytest.raises(ValueError, match="too few documents"):
        split_rows(write_shards(tmp_path / "few", [x[:2]]), tmp_path / "more", 3)


def test_twins_have_the_recipe_other_seeds_and_rows_of_their_own(tmp_path):
    x = WORLD.draw("train").x
    mine = train(tmp_path / "mine", x)
    result = trust(mine, x, tmp_path / "twins", twins=2)
    assert [sae.recipe for sae in result.saes] == ["topk"] * 3
    twins = [load(sae.path) for sae in result.saes[1:]]
    assert [twin.metadata["provenance"]["seed"] for twin in twins] == [1, 2]
    sources = {twin.metadata["provenance"]["source"]["sha256"] for twin in twins}
    assert len(sources) == 2
    units = result.units
    assert units is not None
    assert units.saes[0].counted == (1, 2)
    truth = WORLD.dictionary()
    atoms = torch.nn.functional.normalize(load(mine).decoder, dim=1)
    true = (atoms @ truth.T).amax(1) > 0.9
    found = torch.tensor(units.saes[0].measures["reproducibility"])
    assert float(found[true].mean()) > 0.8
    assert any("the same recipe" in note for note in result.remarks())

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "twins").rglob("*.safetensors")}
    again = trust(mine, x, tmp_path / "twins", twins=2)
    assert again.units == units
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "twins").rglob("*.safetensors")}
    with pytest.raises(ValueError, match="twin of a different SAE"):
        trust(mine, x, tmp_path / "twins", twins=2, samples=1000)


def test_twins_of_a_converted_sae_have_its_recipe_and_other_seeds(tmp_path):
    from osae.studies.convert import convert

    x = WORLD.draw("train").x
    convert(train(tmp_path / "mine", x, seed=4, samples=20_000), tmp_path / "theirs", to="saelens")
    result = trust(tmp_path / "theirs", x, tmp_path / "twins", twins=2)
    assert [sae.recipe for sae in result.saes] == ["topk"] * 3
    twins = [load(sae.path) for sae in result.saes[1:]]
    assert [twin.metadata["provenance"]["seed"] for twin in twins] == [5, 6]
    assert any("the same recipe" in note for note in result.remarks())


def test_an_sae_without_a_recipe_gets_twins_of_its_sizes(tmp_path):
    x = WORLD.draw("train", 1500).x
    result = trust(make_sae(WORLD.dictionary()), x, tmp_path, twins=2, samples=3000)
    assert [sae.recipe for sae in result.saes] == [None, "topk", "topk"]
    assert [(sae.units, sae.sparsifier) for sae in result.saes] == [(20, "TopK(k=2)")] * 3
    assert result.units is not None
    assert result.units.saes[0].counted == (1, 2)
    (tmp_path / "twin2" / LOCK).touch()  # its process was killed when all was written
    assert trust(make_sae(WORLD.dictionary()), x, tmp_path, twins=2, samples=3000).saes == result.saes
    assert not (tmp_path / "twin2" / LOCK).exists()
    with pytest.raises(ValueError, match="at least 2"):
        trust(make_sae(WORLD.dictionary()), x, tmp_path, twins=1)


def test_pruning_keeps_the_units_that_are_found_again_in_canonical_order(tmp_path):
    truth, x = WORLD.dictionary(), WORLD.draw("validation", 2000).x
    false = noise(6, 24, 5)
    saes = [make_sae(torch.cat([truth, noise(6, 24, seed)])) for seed in (1, 2)]
    mine = make_sae(torch.cat([false, truth]))
    with torch.no_grad():  # units that never fire lose nothing
        for sae, units in ((mine, slice(0, 6)), (saes[0], slice(20, 26)), (saes[1], slice(20, 26))):
            sae.encoder_bias[units] = -1e6
    result = prune(mine, x, others=saes, model="none")
    assert sorted(result.kept) == list(range(6, 26))
    assert isinstance(result.sae, SAE)
    assert torch.equal(result.sae.decoder, mine.decoder[list(result.kept)])
    assert result.before.measures == pytest.approx(result.after.measures | {"dead": 6 / 26}, rel=1e-6)
    from osae import passes

    assert passes.order_units(result.sae, x.split(500)).tolist() == list(range(20))
    torch.testing.assert_close(result.sae(x).reconstruction, mine(x).reconstruction)

    result.save(tmp_path / "pruned")
    assert torch.equal(load(tmp_path / "pruned").decoder, result.sae.decoder)
    results.write_json(result, tmp_path / "p.json")
    assert results.read(tmp_path / "p.json") == result
    from osae.studies.convert import convert

    convert(tmp_path / "pruned", tmp_path / "saelens", to="saelens")
    again = load(tmp_path / "saelens").sae
    assert again is not None
    torch.testing.assert_close(again(x).reconstruction, result.sae(x).reconstruction)


def test_pruning_says_what_a_model_loses(language):
    """Of the identity, only the units that the other SAE has are left: it does what that SAE does."""
    other = make_sae(torch.cat([torch.eye(WIDTH)[:10], noise(WIDTH - 10, WIDTH, 1)]), Linear())
    result = prune(language / "identity", language / "x", others=[other], tokens=100)
    assert sorted(result.kept) == list(range(10))
    expected = evaluate([language / "identity", language / "some"], language / "x", tokens=100).saes
    for found, sae in zip((result.before, result.after), expected, strict=True):
        assert sae.cross_entropy is not None
        assert found.spliced == pytest.approx(sae.cross_entropy.spliced, rel=1e-5)
        assert found.recovered == pytest.approx(sae.cross_entropy.recovered, abs=1e-5)
    assert "share of the cross-entropy recovered 1.000 →" in result.summary()[0]


def test_pruning_takes_scores_of_a_comparison_and_refuses_what_it_cannot_do(tmp_path):
    from osae.studies.compare import compare

    truth, x = WORLD.dictionary(), WORLD.draw("validation", 500).x
    mine, other = make_sae(truth), make_sae(torch.cat([truth[:12], 0.1 * noise(8, 24, 1)]))
    scores = compare([mine, other], data=x, chance_draws=0)
    results.write_json(scores, tmp_path / "c.json")
    kept = [prune(mine, x, scores=each, model="none").kept for each in (scores, tmp_path / "c.json")]
    assert kept[0] == kept[1] == prune(mine, x, others=[other], model="none").kept
    assert set(kept[0]) == set(range(12))
    for options, message in (
        ({}, "not part of a run"),
        ({"scores": scores, "others": [other]}, "only one"),
        ({"others": [make_sae(noise(20, 24, 9))]}, "nothing would be left"),
        ({"others": [other], "least": 1}, "from 0 to below 1"),
    ):
        with pytest.raises(ValueError, match=message):
            prune(mine, x, model="none", **options)
    with pytest.raises(ValueError, match="none of its SAEs has the same digest"):
        prune(make_sae(noise(20, 24, 9)), x, scores=scores, model="none")


def test_an_sae_that_lost_most_units_is_not_said_to_come_from_other_activations():
    truth, x = WORLD.dictionary(), WORLD.draw("validation", 500).x
    others = [make_sae(torch.cat([truth[:1], 0.1 * noise(19, 24, seed)])) for seed in (1, 2)]
    mine = make_sae(truth)
    with torch.no_grad():
        mine.encoder[0] *= 50  # so that it reconstructs worse than the mean does
    result = prune(mine, x, others=others, model="none")
    assert result.kept == (0,)
    assert (result.after.measures["explained_variance"] or 0) < 0
    assert result.summary()[0].startswith("1 of 20 units is found again in more than half of 2 other SAEs: ")
    assert not [note for note in result.remarks() if "pruned SAE" in note]


def test_siblings_in_a_run_are_those_of_the_same_recipe(tmp_path):
    x = WORLD.draw("train").x
    (tmp_path / "run.json").write_text("{}")
    for seed in (0, 1):
        train(tmp_path / f"topk-seed{seed}", x, seed=seed, samples=20_000)
    train(tmp_path / "osae-seed0", x, name="osae", samples=5000)
    result = prune(tmp_path / "topk-seed0", x, model="none")
    assert result.others == 1
    with pytest.raises(ValueError, match="no other SAE with the recipe of osae-seed0"):
        prune(tmp_path / "osae-seed0", x, model="none")
