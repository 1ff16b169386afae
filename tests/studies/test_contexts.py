"""Contexts of units, held against the text and the codes that they come from."""

import json
import shutil
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch

from osae import passes, results
from osae.cli import main
from osae.context_files import read_contexts
from osae.data.lm import LanguageModel
from osae.data.placing import place_text
from osae.data.shards import Shards
from osae.interop import load
from osae.locks import LOCK
from osae.sparsify import TopK
from osae.studies import contexts as study
from osae.studies.contexts import contexts
from tests.studies.saes import noise, save_sae

OPTIONS = {"top": 5, "random": 2, "before": 3, "after": 2, "device": "cpu"}


@pytest.fixture
def sae(language, tmp_path):
    return save_sae(tmp_path / "sae", noise(12, 16, 0), TopK(3))


@pytest.fixture
def data(language):
    return language / "x"


def encode_by_context(sae, data):
    """The dense codes of the tokens of all contexts, in order; zero where there is no row."""
    shards, text = Shards(data), place_text(Shards(data))
    dense = np.zeros((len(text.contexts.ids), load(sae).units), np.float32)
    first = 0
    for shard in shards.shards:
        tokens, documents, positions = (c.numpy() for c in shards.columns(shard, study.COLUMNS))
        slots = text.place(documents, positions).slots
        assert (text.contexts.ids[slots] == tokens).all()
        with torch.no_grad():
            code = passes.encode(load(sae).require_sae(), shards.read(first, first + shard.rows))
        dense[slots] = code.dense(dense.shape[1]).numpy()
        first += shard.rows
    return dense, text.contexts


def test_every_context_is_the_text_around_a_token_with_the_units_activations(sae, data):
    ((folder, about),) = contexts(sae, data, **OPTIONS)
    dense, text = encode_by_context(sae, data)
    arrays = read_contexts(folder).arrays
    assert folder == sae / "contexts"
    assert about.fired == (dense != 0).any(0).sum()
    np.testing.assert_array_equal(arrays["fired"], (dense != 0).sum(0))
    at = {
        (int(document), int(offset) + place): (start, start + place, stop)
        for document, offset, start, stop in zip(
            text.documents, text.offsets, text.starts, text.starts[1:], strict=False
        )
        for place in range(stop - start)
    }
    for unit in range(12):
        assert arrays["strengths"][unit, 0] == pytest.approx(dense[:, unit].max())
        for place in np.flatnonzero(arrays["strengths"][unit]):
            where = int(arrays["documents"][unit, place]), int(arrays["positions"][unit, place])
            start, slot, stop = at[where]
            around = range(slot - 3, slot + 3)
            ids = [text.ids[i] if start <= i < stop else -1 for i in around]
            values = [dense[i, unit] if start <= i < stop else 0 for i in around]
            assert arrays["tokens"][unit, place].tolist() == ids
            np.testing.assert_allclose(arrays["activations"][unit, place], values, rtol=1e-3)


def test_tokens_have_their_texts_and_their_counts(sae, data):
    ((folder, about),) = contexts(sae, data, **OPTIONS)
    arrays = read_contexts(folder).arrays
    shards = Shards(data)
    tokens = np.concatenate([shards.columns(shard, ["tokens"])[0].numpy() for shard in shards.shards])
    for number, total in zip(arrays["token_ids"], arrays["token_totals"], strict=True):
        assert total == (tokens == number).sum()
    assert set(about.tokens) == {str(number) for number in arrays["token_ids"]}
    assert {"cat", "dog"} <= set(about.tokens.values())
    assert arrays["position_totals"].sum() == shards.rows


def test_the_logit_lens_is_what_the_atom_adds_to_the_logits(sae, data, language):
    ((folder, about),) = contexts(sae, data, **OPTIONS)
    arrays = read_contexts(folder).arrays
    lm = LanguageModel(str(language / "model"), layer=1, device="cpu")
    atom = load(sae).decoder[3]
    scaled = atom / atom.square().mean().add(lm.model.config.rms_norm_eps).sqrt()
    logits = lm.model.lm_head.weight @ (scaled * lm.model.model.norm.weight)
    assert arrays["promoted"][3].tolist() == logits.topk(10).indices.tolist()
    np.testing.assert_allclose(arrays["promoted_logits"][3], logits.topk(10).values, rtol=1e-4)
    assert arrays["suppressed"][3, 0] == logits.argmin()
    assert about.lens is not None


def test_without_the_model_there_are_contexts_and_a_note(sae, data, language, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(data, moved)
    manifest = json.loads((moved / "manifest.json").read_text())
    manifest["harvest"]["model"] = str(tmp_path / "gone")
    del manifest["osae_checksum"]
    (moved / "manifest.json").write_text(json.dumps(manifest))
    ((folder, about),) = contexts(sae, moved, **OPTIONS)
    assert about.lens is None
    assert about.tokens == {}
    assert "No logit lens" in about.notes[0]
    assert "Tokens are shown as numbers" in about.notes[1]
    assert "promoted" not in read_contexts(folder).arrays


def test_an_interrupted_call_continues_and_ends_with_the_same_files(sae, data, tmp_path, monkeypatch):
    ((whole, _),) = contexts(sae, data, out=tmp_path / "whole", **OPTIONS)
    add, calls = study._add_shard, []

    def stop_at_the_third(*arguments):
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(study, "_add_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        contexts(sae, data, out=tmp_path / "cut", save_seconds=0, **OPTIONS)
    ((cut, _),) = contexts(sae, data, out=tmp_path / "cut", **OPTIONS)
    assert len(calls) == len(Shards(data).shards) + 1
    assert (whole / "contexts.safetensors").read_bytes() == (cut / "contexts.safetensors").read_bytes()
    assert {path.name for path in cut.iterdir()} == {"contexts.json", "contexts.safetensors"}


def test_a_finished_folder_is_left_alone_and_another_request_refused(sae, data, monkeypatch):
    ((folder, _),) = contexts(sae, data, **OPTIONS)
    monkeypatch.setattr(study, "_add_shard", None)
    (folder / LOCK).touch()  # its process was killed when all was written
    ((_, about),) = contexts(sae, data, **OPTIONS)
    assert not (folder / LOCK).exists()
    assert about.options.top == 5
    with pytest.raises(ValueError, match="other options: remove it"):
        contexts(sae, data, **OPTIONS | {"top": 6})


def test_several_saes_share_the_pass(sae, data, tmp_path, monkeypatch):
    other = save_sae(tmp_path / "other", noise(7, 16, 1), TopK(2))
    calls, add = [], study._add_shard
    monkeypatch.setattr(study, "_add_shard", lambda *all: (calls.append(len(all[0])), add(*all)))
    both = contexts([sae, other], data, out=tmp_path / "both", **OPTIONS)
    assert set(calls) == {2}
    ((alone, _),) = contexts(other, data, **OPTIONS)
    assert (both[1].folder / "contexts.safetensors").read_bytes() == (
        alone / "contexts.safetensors"
    ).read_bytes()


def test_what_has_no_text_is_refused(sae, tmp_path):
    with pytest.raises(ValueError, match="have no text"):
        contexts(sae, torch.randn(8, 16))
    np.save(tmp_path / "x.npy", np.zeros((4, 16), np.float32))
    with pytest.raises(ValueError, match="without their text"):
        contexts(sae, tmp_path / "x.npy")


def test_damage_is_named(sae, data):
    ((folder, _),) = contexts(sae, data, **OPTIONS)
    with open(folder / "contexts.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(ValueError, match="was written for"):
        read_contexts(folder)


def test_the_command_writes_a_valid_result_and_prints_the_folder(sae, data, capsys):
    assert main(["contexts", str(sae), "--data", str(data), "--model", "none"]) == 0
    out = capsys.readouterr().out
    assert str(sae / "contexts") in out
    assert "12 of 12 units fire" in out
    held = json.loads((sae / "contexts" / "contexts.json").read_text())
    jsonschema.validate(held, results.schema("contexts"))
    found = results.read(sae / "contexts" / "contexts.json")
    assert isinstance(found, results.Contexts)
    assert found.provenance.command.startswith("osae contexts")
    assert replace(found, notes=()).records()[0]["fired"] == 12


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(sae, data, capsys, tmp_path):
    (sae / "contexts").write_text("in the way")
    assert main(["contexts", str(sae), "--data", str(data)]) == 2
    assert "is a file" in capsys.readouterr().err
