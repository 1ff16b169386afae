"""The pace of harvest against the bare model's, on a tiny one."""

import json

import torch

from benchmarks.speed.harvesting import cut_model, main
from osae.data.lm import LanguageModel
from tests.data.tiny import documents, saved_model, saved_text


def test_the_bare_pass_is_the_model_up_to_the_layer(tmp_path):
    lm = LanguageModel(str(saved_model(tmp_path / "model")), layer=1, device="cpu")
    ids = torch.arange(12).reshape(2, 6)
    whole = lm.activations(ids)
    with cut_model(lm, 1) as decoder, torch.no_grad():
        decoder.norm, norm = torch.nn.Identity(), decoder.norm
        assert torch.equal(decoder(input_ids=ids, use_cache=False).last_hidden_state, whole)
        decoder.norm = norm
    assert torch.equal(lm.activations(ids), whole)


def test_both_paces_and_their_ratio_are_kept(tmp_path, capsys):
    model, text = saved_model(tmp_path / "model"), saved_text(tmp_path / "text.jsonl", documents(60, seed=3))
    words = ["--model", str(model), "--layer", "1", "--text", str(text), "--tokens", "600", "--rounds", "2"]
    words += ["--context", "16"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "harvesting.json").read_text())
    assert {len(paces) for paces in found["rows_a_second"].values()} == {2}
    assert 0 < found["share"] < 2
    assert f"{found['share']:.1%} of the bare pass" in capsys.readouterr().out
