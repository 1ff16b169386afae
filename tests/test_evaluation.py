"""Evaluations against the measures they are made of; SAEs put into a small language model."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from osae import evaluation, metrics
from osae.data.harvest import CONTEXTS, Harvest, harvest
from osae.data.lm import LanguageModel
from osae.data.shards import Shards, write_shards
from osae.data.text import TextFiles
from osae.data.worlds import SparseWorld
from osae.evaluation import evaluate
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK
from tests.test_comparison import noise, saved

DOCS = Path(__file__).parent.parent / "docs" / "evaluate.md"
WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=600)
WORDS = ("the", "cat", "sees", "a", "dog", "and", "runs", "home", "old", "blue")
WIDTH, SKIP = 16, 2


def tiny_model(folder, *, width=WIDTH, seed=0):
    """The folder of a random Llama that reads words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = {word: place for place, word in enumerate(("<unk>", *WORDS))}
    words = Tokenizer(WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(known),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def text_file(path, documents, seed):
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(2, 30))) for _ in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="session")
def language(tmp_path_factory):
    """A folder with a model, shards of its activations, and SAEs: identity, silence, and one in between."""
    folder = tmp_path_factory.mktemp("language")
    tiny_model(folder / "model")
    text = TextFiles((str(text_file(folder / "a.jsonl", 20, 0)),))
    spec = Harvest(str(folder / "model"), text, 200, layer=1, context=12, skip=SKIP, max_norm=0, block=80)
    harvest(spec, folder / "x", dtype="float32", device="cpu")
    saved(folder / "identity", torch.eye(WIDTH), Linear())
    silence = SAE(SAEConfig(WIDTH, 4, ReLU()), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        silence.encoder_bias.fill_(-1e6)
    silence.save(folder / "silence")
    saved(folder / "some", torch.eye(WIDTH)[:10], Linear())
    return folder


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "activations", [WORLD.draw("test").x], rows_per_shard=250)


@pytest.mark.parametrize("sparsifier", [TopK(3), BatchTopK(3), JumpReLU(threshold=0.3), ReLU(), Linear()])
def test_numbers_are_those_of_the_measures_on_all_rows(tmp_path, shards, monkeypatch, sparsifier):
    monkeypatch.setattr(evaluation, "BATCH", 128)
    atoms = torch.nn.functional.normalize(WORLD.dictionary() + 0.1 * noise(20, 24, 0), dim=1)
    sae = SAE(SAEConfig(24, 20, sparsifier), atoms=atoms)
    with torch.no_grad():
        sae.decoder_bias.copy_(0.1 * noise(1, 24, 1)[0])
        sae.encoder_bias[7] = -9.0
    sae.save(tmp_path / "a")
    result = evaluate([tmp_path / "a"], shards, prefixes=[3, 7], model="none")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    (found,) = result["saes"]
    x = shards.read(0, shards.rows)
    with torch.no_grad():
        code = sae.encode(x)
        assert found["mse"] == pytest.approx(metrics.mse(x, sae.decode(code)))
        assert found["explained_variance"] == pytest.approx(metrics.explained_variance(x, sae.decode(code)))
        assert found["l0"] == pytest.approx(metrics.l0(code.values))
        assert found["dead"] == pytest.approx(metrics.dead_share(*code, 20))
        assert found["frequencies"]["never"] == round(20 * found["dead"])
        assert sum(found["frequencies"]["units"]) == 20 - found["frequencies"]["never"]
        assert [prefix["length"] for prefix in found["prefixes"]] == [1, 2, 3, 4, 7, 8, 16, 20]
        for prefix in found["prefixes"]:
            first = code.dense(20)[:, : prefix["length"]] @ sae.decoder[: prefix["length"]] + sae.decoder_bias
            assert prefix["mse"] == pytest.approx(metrics.mse(x, first), rel=1e-5)
            expected = metrics.explained_variance(x, first)
            assert prefix["explained_variance"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found["prefixes"][-1]["mse"] == pytest.approx(found["mse"], rel=1e-5)
    assert found["cross_entropy"] is None
    assert result["cross_entropy"] is None
    assert result["activations"] == shards.provenance()
    assert found["sha256"] == load(tmp_path / "a").sha256


def test_identity_recovers_all_and_silence_nothing(language):
    result = evaluate([language / name for name in ("identity", "silence", "some")], language / "x")
    (note,) = result["notes"]
    assert "silence explains less than the mean does" in note
    identity, silence, some = (sae["cross_entropy"] for sae in result["saes"])
    about = result["cross_entropy"]
    assert about["zero"] > about["clean"] + 0.01
    assert identity["recovered"] == pytest.approx(1.0, abs=1e-6)
    assert silence["recovered"] == pytest.approx(0.0, abs=1e-6)
    assert identity["spliced"] == pytest.approx(about["clean"])
    assert silence["spliced"] == pytest.approx(about["zero"])
    lost = (about["zero"] - some["spliced"]) / (about["zero"] - about["clean"])
    assert some["recovered"] == pytest.approx(lost)
    assert min(abs(some["recovered"]), abs(some["recovered"] - 1)) > 0.01
    assert about["model"] == {
        "name": str(language / "model"),
        "revision": "",
        "layer": 1,
        "module": None,
    }


def test_losses_are_means_over_predictions_context_by_context(language, monkeypatch):
    """However contexts are grouped, the result is that of each by itself, without the positions skipped."""
    monkeypatch.setattr(evaluation, "_LOGITS", 40 * (1 + len(WORDS)))
    result = evaluate([language / "some"], language / "x", tokens=10**6)
    lm, sae = LanguageModel(str(language / "model"), layer=1, device="cpu"), load(language / "some").sae
    assert sae is not None
    held = load_file(language / "x" / CONTEXTS)
    contexts = [held["ids"][a:b] for a, b in zip(held["starts"], held["starts"][1:], strict=False)]

    def mean(splice):
        losses = [lm.losses(ids[None].long(), splice, skip=SKIP)[0, SKIP:] for ids in contexts]
        return float(torch.cat(losses).double().mean()), sum(map(len, losses))

    clean, tokens = mean(None)
    about = result["cross_entropy"]
    assert about["tokens"] == tokens
    assert about["contexts"] == sum(len(ids) > SKIP + 1 for ids in contexts)
    assert about["clean"] == pytest.approx(clean, rel=1e-5)
    assert about["zero"] == pytest.approx(mean(torch.zeros_like)[0], rel=1e-5)
    spliced = result["saes"][0]["cross_entropy"]["spliced"]
    assert spliced == pytest.approx(mean(lambda hidden: sae(hidden).reconstruction)[0], rel=1e-5)


def test_few_tokens_take_the_first_contexts_and_text_takes_others(language, tmp_path):
    few = evaluate([language / "some"], language / "x", tokens=20)["cross_entropy"]
    assert 20 <= few["tokens"] < 20 + 12
    path = str(text_file(tmp_path / "b.jsonl", 20, 1))
    other = evaluate([language / "identity"], language / "x", tokens=100, text=[path])
    assert other["cross_entropy"]["text"]["files"] == [path]
    assert 50 < other["cross_entropy"]["tokens"] <= 100
    assert other["saes"][0]["cross_entropy"]["recovered"] == pytest.approx(1.0, abs=1e-6)
    assert other["cross_entropy"]["clean"] != few["clean"]


def test_a_model_that_was_not_asked_for_may_fail_and_one_that_was_may_not(language, tmp_path):
    sae, x = language / "identity", language / "x"
    moved = tmp_path / "moved"
    tensors = load_file(x / "00000.safetensors")
    write_shards(moved, [tensors], about={"harvest": Shards(x).manifest["harvest"]})
    result = evaluate([sae], moved)
    assert result["cross_entropy"] is None
    assert result["saes"][0]["cross_entropy"] is None
    assert result["saes"][0]["mse"] == 0.0
    assert "contexts.safetensors is missing" in result["notes"][0]
    (moved / CONTEXTS).write_bytes(b"torn")
    assert "contexts.safetensors cannot be read" in evaluate([sae], moved)["notes"][0]
    (moved / CONTEXTS).unlink()
    bare = write_shards(tmp_path / "bare", [tensors["activations"]])
    assert "does not say which model" in evaluate([sae], bare)["notes"][0]
    for shards, model, message in (
        (moved, str(language / "model"), "contexts.safetensors is missing"),
        (bare, str(language / "model"), "does not say which model"),
        (x, str(tmp_path / "nowhere"), "cannot be opened as a language model"),
        (x, str(tiny_model(tmp_path / "wide", width=32)), "has width 32 there, and .* has 16"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate([sae], shards, model=model)
    other = evaluate([sae], x, model=str(tiny_model(tmp_path / "other", seed=1)))
    assert other["cross_entropy"]["model"]["name"] == str(tmp_path / "other")
    assert other["cross_entropy"]["clean"] != evaluate([sae], x)["cross_entropy"]["clean"]


def test_a_run_stands_for_its_finished_saes_and_sizes_may_differ(tmp_path, shards):
    run = tmp_path / "run"
    for name in ("b", "a", "snapshots/0/a"):
        saved(run / name, WORLD.dictionary())
    saved(tmp_path / "small", WORLD.dictionary()[:5])
    (run / "run.json").write_text("{}")
    steps = []
    result = evaluate(
        [run, tmp_path / "small"],
        shards,
        prefixes=[6, 12],
        model="none",
        progress=lambda *step: steps.append(step),
    )
    assert [Path(sae["path"]).name for sae in result["saes"]] == ["a", "b", "small"]
    lengths = [[prefix["length"] for prefix in sae["prefixes"]] for sae in result["saes"]]
    assert lengths[0] == [1, 2, 4, 6, 8, 12, 16, 20]
    assert lengths[2] == [1, 2, 4, 5]
    assert steps[-1][:2] == (1, 1)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="no finished SAE yet: `osae resume"):
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
    said = evaluate([tmp_path / "a"], shards, model="none")["notes"]
    assert "trained on these very activations" in said[0]
    assert "explains less than the mean does" in said[1]
    for words, message in (
        ({"prefixes": [21]}, "prefix length 21: give 1 to 20"),
        ({"tokens": 0}, "tokens=0: give at least 1"),
        ({"text": ["a.txt"]}, "leave out one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate([tmp_path / "a"], shards, model="none", **words)
    with pytest.raises(ValueError, match="no SAE to evaluate"):
        evaluate([], shards)
    saved(tmp_path / "narrow", noise(4, 5, 0))
    with pytest.raises(ValueError, match="has width 5"):
        evaluate([tmp_path / "narrow"], shards)


def _fields(value, path=""):
    """The names of all fields in a result, as the docs write them."""
    if isinstance(value, list):
        for item in value:
            yield from _fields(item, f"{path}[]")
    elif isinstance(value, dict) and path != "provenance.versions" and path != "cross_entropy.text":
        for name, inner in value.items():
            full = f"{path}.{name}" if path else name
            yield full
            yield from _fields(inner, full)


def test_docs_name_every_field_and_no_other(language):
    result = evaluate([language / "some"], language / "x")
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    fields = {name for name in documented if not name.startswith("--")}
    assert fields == set(_fields(result)) | {"provenance.command", "provenance.date"}
