"""Hard worlds: runs share nothing but the recipe, and are measured against the truth and each other."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osae.config import alter
from osae.data.worlds import ForestWorld
from osae.defaults import BATCH
from osae.experiments.methods import HARD_METHODS, UNTRAINED
from osae.experiments.worlds import hard
from osae.experiments.worlds.claims import CLAIMS
from osae.experiments.worlds.hard_measures import measure_pair
from osae.experiments.worlds.options import HARD_WORLDS, HardOptions
from osae.model import SAE
from osae.recipes import Task, default_rate, recipe
from osae.results.experiment import MethodRow

SMALL = ForestWorld(12, 16, 2.0, samples=1500, roots=2)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("hard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hard.WORLDS, "flat", SMALL)
        patch.setattr(hard, "QUICK_SAMPLES", 1500)
        options = HardOptions(out=out, quick=True, jobs=1, forests=("flat",))
        return hard.run(options, lambda *words: None), out


def test_every_method_has_a_row_and_the_claims_find_their_methods(ran):
    rows = ran[0].sections[0].by_method()
    assert {*HARD_METHODS, UNTRAINED} <= set(rows)
    assert all(set(claim.methods) <= set(rows) for claim in CLAIMS["hard"])
    assert rows[UNTRAINED].reference
    for row in rows.values():
        assert set(hard.COLUMNS) <= set(row.measures)
        assert row.mean("mcc_truth") >= row.mean("stability_truth")


def test_each_run_trains_on_a_part_of_its_own(ran):
    seen = {}
    for file in ran[1].glob("flat/saes/topk-seed*/sae.json"):
        about = json.loads(file.read_text())["provenance"]
        seen[about["seed"]] = about["source"]["part"]
    assert seen == {0: 0, 1: 1}


def test_batch_and_start_change_for_all_methods_alike(tmp_path, monkeypatch):
    monkeypatch.setitem(hard.WORLDS, "flat", SMALL)
    monkeypatch.setattr(hard, "QUICK_SAMPLES", 1500)
    methods = ("topk", "osae-aligned")
    options = HardOptions(
        out=tmp_path,
        quick=True,
        jobs=1,
        seeds=1,
        forests=("flat",),
        methods=methods,
        batch=100,
        start="data",
    )
    rows = hard.run(options, lambda *words: None).sections[0].by_method()
    for method in (*methods, UNTRAINED):
        made = rows[method].recipe or {}
        assert (made["batch"], made["start"]["kind"]) == (100, "FromData"), method
    usual = HardOptions(out=tmp_path)
    assert (usual.rows_per_step, usual.start) == (BATCH, "noise")
    with pytest.raises(ValueError, match="--batch 1501 exceeds the world's 1500 samples: give a smaller"):
        hard.hard_task(SMALL, replace(usual, batch=1501))


def test_sorting_and_starts_change_no_atom_and_train_nothing(ran):
    rows: dict[str, MethodRow] = ran[0].sections[0].by_method()
    for key in ("stability_pairs", "mcc_truth", "explained_variance"):
        assert rows["topk-sorted-by-gain"].mean(key) == pytest.approx(rows["topk"].mean(key))
    assert rows[UNTRAINED].mean("explained_variance") < rows["topk"].mean("explained_variance")


def test_the_names_of_the_worlds_are_those_there_are():
    assert tuple(hard.WORLDS) == HARD_WORLDS
    assert len({replace(world, part=1) for world in hard.WORLDS.values()}) == 3


def test_the_true_dictionary_scores_one():
    world = replace(SMALL, spread=0.1)
    made = recipe("topk", Task(12, 16, 2, 1000, 100))
    sae = SAE(replace(made.sae, decoder_bias=False), atoms=world.dictionary())
    found = measure_pair([sae, sae], world, 500)
    for key in (
        "mcc_truth",
        "stability_truth",
        "stability_pairs",
        "orderedness_pairs",
        "stability_firing_pairs",
    ):
        assert found[key] == pytest.approx(1.0)
    turned = SAE(replace(made.sae, decoder_bias=False), atoms=-world.dictionary())
    assert measure_pair([turned], world, 500)["mcc_truth"] == pytest.approx(1.0)


def test_the_explained_variance_of_the_first_units_is_that_of_an_sae_without_the_others():
    made = recipe("topk", Task(12, 16, 2, 1000, 100))
    sae = SAE(made.sae, atoms=SMALL.dictionary())
    x = SMALL.draw("test", 400).x
    code = sae.encode(x)
    kept = code.dense(16)
    kept[:, 4:] = 0
    expected = 1 - (x - kept @ sae.decoder - sae.decoder_bias).square().sum() / (x - x.mean(0)).square().sum()
    found = measure_pair([sae], SMALL, 400)["ev_quarter"]
    assert found == pytest.approx(float(torch.as_tensor(expected).detach()), abs=1e-4)


def test_the_default_rate_falls_with_the_width_and_can_be_overridden():
    rates = [default_rate(Task(width, 256, 4, 1000, 100)) for width in (4, 16, 64, 576, 2304)]
    assert rates[0] == rates[1] == 0.032
    assert rates[2] == pytest.approx(0.0173, abs=1e-4)
    assert rates[3] == 0.004
    assert rates[4] == pytest.approx(0.004 / 4 ** (2 / 3))
    made = recipe("topk", Task(64, 256, 4, 1000, 100))
    assert made.lr.peak == rates[2]
    assert alter(made, {"lr.peak": 0.001}).lr.peak == 0.001


def test_trials_on_record_bear_out_the_default_rate():
    """Of the rates tried at each size, the one nearest to the default is within 0.01 of the best error."""
    file = Path(__file__).parents[3] / "evidence" / "hard" / "trials.jsonl"
    tried: dict[tuple, dict[float, float]] = {}
    for line in file.read_text().splitlines():
        one = json.loads(line)
        if one["method"] == "topk" and set(one["changes"]) == {"lr.peak"} and one["world"]["roots"] == 0:
            size = (one["world"]["width"], one["world"]["units"], one["epochs"])
            tried.setdefault(size, {})[one["changes"]["lr.peak"]] = one["measures"]["explained_variance"]
    assert len(tried) == 5
    for (width, units, _), found in tried.items():
        rule = default_rate(Task(width, units, 4, 1000, 100))
        nearest = min(found, key=lambda rate: abs(math.log(rate / rule)))
        assert found[nearest] > max(found.values()) - 0.01
        assert found[nearest] > found[0.004] + 0.015
