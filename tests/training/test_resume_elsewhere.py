"""A resumed run reads the data that it began with, from wherever it is resumed, or says that it cannot."""

import pytest
import torch

from osae.cli import main
from osae.data.shards import write_shards
from tests.data.tiny import documents, saved_model, saved_text

SIZES = ["--units", "24", "--k", "3", "--batch", "50", "--device", "cpu"]


def test_activations_are_found_from_another_folder(tmp_path, monkeypatch):
    write_shards(tmp_path / "acts", [torch.randn(200, 8, generator=torch.Generator().manual_seed(0))])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "topk", "--data", "acts", *SIZES, "--out", "run"]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", str(tmp_path / "run"), "--device", "cpu"]) == 0


def test_a_live_run_refuses_another_text(tmp_path, capsys):
    text, model = tmp_path / "a.jsonl", saved_model(tmp_path / "model")
    saved_text(text, documents(40))
    kept = text.read_bytes()
    words = ["train", "topk", "--live", "--model", str(model), "--layer", "1", "--text", str(text)]
    words += [*SIZES, "--tokens", "300", "--context", "8", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    saved_text(text, documents(40)[::-1])
    assert main(["resume", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert "the text differs from the one this run started with" in capsys.readouterr().err
    text.write_bytes(kept)
    assert main(["resume", str(tmp_path / "run"), "--device", "cpu"]) == 0


def test_text_is_identified_by_the_content_of_its_files(tmp_path):
    from osae.data.source import digest_text
    from osae.data.text import HubText, TextFiles

    for name, content in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.txt").write_text(content)
    one, both = (TextFiles((str(tmp_path / pattern),)) for pattern in ("a.txt", "*.txt"))
    assert digest_text(one) != digest_text(both)
    before = digest_text(one)
    (tmp_path / "a.txt").write_text("z")
    assert digest_text(one) != before
    assert digest_text(HubText("pile")) == ""


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_fit_checks_its_device_before_it_reads_anything(device):
    from osae import fit

    with pytest.raises(ValueError, match=f"device='{device}' cannot be used on this machine"):
        fit("topk", "/nowhere", units=8, k=2, device=device)
