"""The order that activations give to units, in worlds with known answers."""

import json

import pytest
import torch

from osae import metrics
from osae.data.shards import write_shards
from osae.interop import load
from osae.results import Ordering, parse
from osae.studies.order import order
from tests.studies.checks import check
from tests.studies.saes import WORLD, make_sae, save_sae


@pytest.mark.parametrize("by", ["gain", "energy", "frequency"])
def test_order_of_a_shuffled_sae_restores_it(shards, by):
    sae = make_sae(WORLD.dictionary())
    canonical = order(sae, shards, by=by)
    shuffle = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    again = order(make_sae(canonical.sae.decoder[shuffle]), shards, by=by)
    if by != "frequency":  # units that fire equally often keep the order they have
        torch.testing.assert_close(again.sae.decoder, canonical.sae.decoder)
    assert again.by == by
    x = WORLD.draw("test").x
    torch.testing.assert_close(again.sae(x).reconstruction, sae(x).reconstruction)
    code, found = sae.encode(x), torch.tensor(canonical.order)
    if by == "gain":
        assert list(canonical.order) == metrics.greedy_order(*code, sae.decoder, x).tolist()
    else:
        energy = metrics.explained_energy(*code, sae.decoder, x)
        score = energy if by == "energy" else metrics.frequency(*code, 20)
        assert (score[found].diff() <= 1e-12).all()


def test_order_subtracts_the_bias(tmp_path, shards):
    x = shards.read(0, shards.rows)
    sae = make_sae(WORLD.dictionary())
    plain = order(sae, shards).order
    with torch.no_grad():
        sae.decoder_bias.fill_(3.0)
    assert order(sae, write_shards(tmp_path / "shifted", [x + 3.0])).order == plain
    assert order(sae, x + 3.0).order == plain
    with pytest.raises(ValueError, match="by='luck'"):
        order(sae, shards, by="luck")  # pyright: ignore[reportArgumentType]


def test_an_ordering_counts_what_moved_and_is_kept_as_json(tmp_path, shards):
    result = check(order(save_sae(tmp_path / "a", WORLD.dictionary()), shards))
    places = torch.arange(20)
    found = torch.tensor(result.order)
    assert result.moved == int((found != places).sum())
    assert result.rank_correlation == metrics.rank_correlation(places, found)
    assert f"{result.moved} of 20 units moved" in repr(result)
    assert [record["unit"] for record in result.records()] == list(result.order)
    (table,) = result.tables()
    assert table.rows[0].values["moved"] == result.moved
    assert table.measures()[1].title == "Moved"


def test_the_ordered_sae_is_saved_with_where_it_comes_from(tmp_path, shards):
    make_sae(WORLD.dictionary()).save(tmp_path / "a", provenance={"recipe": {"name": "mine"}})
    result = order(tmp_path / "a", shards, by="energy")
    result.save(tmp_path / "b")
    assert torch.equal(load(tmp_path / "b").decoder, result.sae.decoder)
    about = json.loads((tmp_path / "b" / "sae.json").read_text())["provenance"]
    assert about["source"]["path"] == str(tmp_path / "a")
    assert about["source"]["provenance"] == {"recipe": {"name": "mine"}}
    assert about["order"]["by"] == "energy"
    assert about["order"]["activations"] == shards.provenance()
    assert "osae" in about["versions"]
    read = parse(result.to_json())
    assert isinstance(read, Ordering)
    with pytest.raises(ValueError, match="without its SAE: order the SAE again"):
        read.save(tmp_path / "c")


def test_progress_counts_the_batches(shards):
    steps = []
    order(make_sae(WORLD.dictionary()), shards, progress=lambda *step: steps.append(step))
    assert steps == [(1, 1, "activations")]
