"""Evaluations against the metrics they are made of; SAEs spliced into a small language model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from osae import metrics, results
from osae.data.harvest import CONTEXTS
from osae.data.lm import LanguageModel
from osae.data.shards import Shards, write_shards
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK
from osae.studies import evaluate as module
from osae.studies import splice
from osae.studies.evaluate import evaluate
from tests.studies.checks import RELEASED, check, walk_missing
from tests.studies.language import SKIP
from tests.studies.saes import WORDS, WORLD, make_model, make_sae, noise, save_sae, write_text


@pytest.mark.parametrize("sparsifier", [TopK(3), BatchTopK(3), JumpReLU(threshold=0.3), ReLU(), Linear()])
def test_numbers_are_those_of_the_measures_on_all_rows(tmp_path, shards, monkeypatch, sparsifier):
    monkeypatch.setattr(module, "BATCH", 128)
    atoms = torch.nn.functional.normalize(WORLD.dictionary() + 0.1 * noise(20, 24, 0), dim=1)
    sae = SAE(SAEConfig(24, 20, sparsifier), atoms=atoms)
    with torch.no_grad():
        sae.decoder_bias.copy_(0.1 * noise(1, 24, 1)[0])
        sae.encoder_bias[7] = -9.0
    sae.save(tmp_path / "a")
    result = evaluate([tmp_path / "a"], shards, prefixes=[3, 7], model="none")
    (found,) = check(result).saes
    x = shards.read(0, shards.rows)
    with torch.no_grad():
        code = sae.encode(x)
        assert found.measures["mse"] == pytest.approx(metrics.mse(x, sae.decode(code)))
        assert found.measures["explained_variance"] == pytest.approx(
            metrics.explained_variance(x, sae.decode(code))
        )
        assert found.measures["l0"] == pytest.approx(metrics.l0(code.values))
        assert found.measures["dead"] == pytest.approx(metrics.dead_share(*code, 20))
        assert found.frequencies.never == round(20 * found.measures["dead"])
        assert sum(found.frequencies.units) == 20 - found.frequencies.never
        assert [prefix.length for prefix in found.prefixes] == [1, 2, 3, 4, 7, 8, 16, 20]
        for prefix in found.prefixes:
            first = code.dense(20)[:, : prefix.length] @ sae.decoder[: prefix.length] + sae.decoder_bias
            assert prefix.measures["mse"] == pytest.approx(metrics.mse(x, first), rel=1e-5)
            expected = metrics.explained_variance(x, first)
            assert prefix.measures["explained_variance"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found.prefixes[-1].measures["mse"] == pytest.approx(found.measures["mse"], rel=1e-5)
    assert found.cross_entropy is None
    assert result.cross_entropy is None
    assert result.to_json()["activations"] == shards.provenance()
    assert found.sha256 == load(tmp_path / "a").sha256


def test_identity_recovers_all_and_an_inactive_one_nothing(language):
    result = evaluate([language / name for name in ("identity", "inactive", "some")], language / "x")
    (note,) = result.notes
    assert "inactive explains less variance than the mean" in note
    identity, inactive, some = (sae.cross_entropy for sae in result.saes)
    about = result.cross_entropy
    assert about.zero > about.clean + 0.01
    assert identity.recovered == pytest.approx(1.0, abs=1e-6)
    assert inactive.recovered == pytest.approx(0.0, abs=1e-6)
    assert identity.spliced == pytest.approx(about.clean)
    assert inactive.spliced == pytest.approx(about.zero)
    lost = (about.zero - some.spliced) / (about.zero - about.clean)
    assert some.recovered == pytest.approx(lost)
    assert min(abs(some.recovered), abs(some.recovered - 1)) > 0.01
    assert about.model == results.evaluation.ModelInfo(str(language / "model"), "", 1, None)


def test_losses_are_means_over_predictions_context_by_context(language, monkeypatch):
    """However contexts are grouped, the result is that of each by itself, without the positions skipped."""
    monkeypatch.setattr(splice, "_LOGITS", 40 * (1 + len(WORDS)))
    result = evaluate([language / "some"], language / "x", tokens=10**6)
    lm, sae = LanguageModel(str(language / "model"), layer=1, device="cpu"), load(language / "some").sae
    assert sae is not None
    held = load_file(language / "x" / CONTEXTS)
    contexts = [held["ids"][a:b] for a, b in zip(held["starts"], held["starts"][1:], strict=False)]

    def mean(splice):
        losses = [lm.losses(ids[None].long(), splice, skip=SKIP)[0, SKIP:] for ids in contexts]
        return float(torch.cat(losses).double().mean()), sum(map(len, losses))

    clean, tokens = mean(None)
    about = result.cross_entropy
    assert about.tokens == tokens
    assert about.contexts == sum(len(ids) > SKIP + 1 for ids in contexts)
    assert about.clean == pytest.approx(clean, rel=1e-5)
    assert about.zero == pytest.approx(mean(torch.zeros_like)[0], rel=1e-5)
    spliced = result.saes[0].cross_entropy.spliced
    assert spliced == pytest.approx(mean(lambda hidden: sae(hidden).reconstruction)[0], rel=1e-5)


def test_losses_do_not_depend_on_the_number_of_threads(language, monkeypatch):
    monkeypatch.setattr(splice, "_LOGITS", 8 * (1 + len(WORDS)))  # small batches depend on threads the most
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(evaluate([language / "some"], language / "x", tokens=500))
    torch.set_num_threads(before)
    first, *others = [(result.cross_entropy, result.saes[0].cross_entropy) for result in found]
    assert others == [first, first]


def test_few_tokens_take_the_first_contexts_and_text_takes_others(language, tmp_path):
    few = evaluate([language / "some"], language / "x", tokens=20).cross_entropy
    assert 20 <= few.tokens < 20 + 12
    path = str(write_text(tmp_path / "b.jsonl", 20, 1))
    other = evaluate([language / "identity"], language / "x", tokens=100, text=[path])
    assert other.cross_entropy.text["files"] == [path]
    assert 50 < other.cross_entropy.tokens <= 100
    assert other.saes[0].cross_entropy.recovered == pytest.approx(1.0, abs=1e-6)
    assert other.cross_entropy.clean != few.clean


def test_a_model_that_was_not_asked_for_may_fail_and_one_that_was_may_not(language, tmp_path):
    sae, x = language / "identity", language / "x"
    moved = tmp_path / "moved"
    tensors = load_file(x / "00000.safetensors")
    write_shards(moved, [tensors], about={"harvest": Shards(x).manifest["harvest"]})
    result = evaluate([sae], moved)
    assert result.cross_entropy is None
    assert result.saes[0].cross_entropy is None
    assert result.saes[0].measures["mse"] == 0.0
    assert "contexts.safetensors is missing" in result.notes[0]
    (moved / CONTEXTS).write_bytes(b"torn")
    assert "contexts.safetensors cannot be read" in evaluate([sae], moved).notes[0]
    (moved / CONTEXTS).unlink()
    bare = write_shards(tmp_path / "bare", [tensors["activations"]])
    assert "does not name the model" in evaluate([sae], bare).notes[0]
    for shards, model, message in (
        (moved, str(language / "model"), "contexts.safetensors is missing"),
        (bare, str(language / "model"), "does not name the model"),
        (x, str(tmp_path / "nowhere"), "nowhere: there is no such folder"),
        (x, str(make_model(tmp_path / "wide", width=32)), "has width 32 at this layer, but .* has width 16"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate([sae], shards, model=model)
    other = evaluate([sae], x, model=str(make_model(tmp_path / "other", seed=1)))
    assert other.cross_entropy.model.name == str(tmp_path / "other")
    assert other.cross_entropy.clean != evaluate([sae], x).cross_entropy.clean


def test_a_run_stands_for_its_finished_saes_and_sizes_may_differ(tmp_path, shards):
    run = tmp_path / "run"
    for name in ("b", "a", "snapshots/0/a"):
        save_sae(run / name, WORLD.dictionary())
    save_sae(tmp_path / "small", WORLD.dictionary()[:5])
    (run / "run.json").write_text("{}")
    steps = []
    result = evaluate(
        [run, tmp_path / "small"],
        shards,
        prefixes=[6, 12],
        model="none",
        progress=lambda *step: steps.append(step),
    )
    assert [Path(sae.path).name for sae in result.saes] == ["a", "b", "small"]
    lengths = [[prefix.length for prefix in sae.prefixes] for sae in result.saes]
    assert lengths[0] == [1, 2, 4, 6, 8, 12, 16, 20]
    assert lengths[2] == [1, 2, 4, 5]
    assert steps[-1][:2] == (1, 1)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="no finished SAE yet: complete it with `osae resume"):
        evaluate([tmp_path / "new"], shards)


def test_progress_ends_where_it_said_it_would(language):
    steps = []
    evaluate([language / "some"] * 2, language / "x", progress=lambda *step: steps.append(step))
    assert [done for done, _, _ in steps] == list(range(1, steps[-1][1] + 1))
    assert {text for _, _, text in steps} == {"activations", "cross-entropy"}


def test_what_is_not_held_out_or_does_not_fit_is_said(tmp_path, shards):
    atoms = WORLD.dictionary()
    sae = SAE(SAEConfig(24, 20, TopK(2)), atoms=3 * atoms)
    sae.save(tmp_path / "a", provenance={"source": {"sha256": shards.provenance()["sha256"]}})
    said = evaluate([tmp_path / "a"], shards, model="none").notes
    assert said[0] == "a was trained on these activations: they are not held out."
    sae.save(tmp_path / "b", provenance={})
    assert evaluate([tmp_path / "b", tmp_path / "a"], shards, model="none").notes[0] == said[0]
    both = evaluate([tmp_path / "a"] * 2, shards, model="none").notes
    assert both[0] == "All SAEs were trained on these activations: they are not held out."
    assert sum("held out" in line for line in both) == 1
    assert "explains less variance than the mean" in said[1]
    for words, message in (
        ({"prefixes": [21]}, "prefix length 21: give 1 to 20"),
        ({"tokens": 0}, "tokens=0: give at least 1"),
        ({"text": ["a.txt"]}, "remove one of the two"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate([tmp_path / "a"], shards, model="none", **words)
    with pytest.raises(ValueError, match="no SAE was given"):
        evaluate([], shards)
    save_sae(tmp_path / "narrow", noise(4, 5, 0))
    with pytest.raises(ValueError, match="has width 5"):
        evaluate([tmp_path / "narrow"], shards)


def test_an_evaluation_has_every_key_of_release_0_1_0_and_its_numbers(monkeypatch):
    old = json.loads((RELEASED / "evaluate.json").read_text())
    monkeypatch.chdir(RELEASED)
    result = check(evaluate("run", "shards", model="none"))
    del old["provenance"]["command"], old["provenance"]["date"]  # of the command line only
    assert list(walk_missing(old, json.loads(json.dumps(result.to_json())))) == []


def test_tables_and_csv_show_every_sae_and_its_prefixes(tmp_path, shards):
    save_sae(tmp_path / "a", WORLD.dictionary())
    save_sae(tmp_path / "b", WORLD.dictionary()[:5])
    result = evaluate([tmp_path / "a", tmp_path / "b"], shards, prefixes=[3], model="none")
    saes, prefixes = result.tables()
    assert [row.label for row in saes.rows] == ["a", "b"]
    assert saes.columns == ("units", "mse", "explained_variance", "l0", "dead")
    assert prefixes.columns == ("explained_variance_3", "explained_variance_20")
    assert [measure.title for measure in prefixes.measures()] == ["EV 3", "EV 20"]
    head, first, *_ = result.to_csv().splitlines()
    assert head == "sae,length,units,mse,explained_variance,l0,dead,cross_entropy,recovered"
    assert first.startswith("a,,20,")
    assert len(result.records()) == (1 + 7) + (1 + 5)
    assert "a: explained variance 0." in repr(result)


def test_many_saes_are_summarised_by_their_ranges(shards):
    saes = [make_sae(noise(6, 24, seed)) for seed in range(4)]
    (said,) = evaluate(saes, shards, model="none").summary()
    assert said.startswith("4 SAEs: explained variance ")
    assert " to " in said
