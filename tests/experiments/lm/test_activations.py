"""Where activations come from."""

import pytest

from osae.experiments.lm import activations
from osae.experiments.lm.options import LMOptions


def silent(done, total, text):
    """Progress that nobody sees."""


def test_a_text_that_cannot_be_read_is_named_before_any_is_harvested(tmp_path, monkeypatch):
    def load(name, *words, **options):
        if name == "allenai/dolma":
            raise RuntimeError("Dataset scripts are no longer supported, but found dolma.py")
        return iter([{"text": "a"}])

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load)
    monkeypatch.setattr(activations, "open_model", lambda *words: pytest.fail("too late"))
    options = LMOptions(out=tmp_path, setting="pythia-70m")
    with pytest.raises(
        ValueError, match="allenai/dolma:v1_6-sample cannot be read: Dataset scripts"
    ) as error:
        activations.collect_activations(options, 100, silent)
    assert "--text dolma=FILES" in str(error.value)


def test_files_can_replace_one_of_a_settings_texts(tmp_path):
    options = LMOptions(out=tmp_path, setting="pythia-70m", text=("dolma=d.txt",))
    texts = activations.choose_origin(options).texts
    assert list(texts) == ["pile", "dolma"]
    assert texts["dolma"].files == ("d.txt",)  # pyright: ignore[reportAttributeAccessIssue]
    options = LMOptions(out=tmp_path, setting="pythia-70m", text=("a=a.txt", "dolma=d.txt"))
    assert list(activations.choose_origin(options).texts) == ["a", "dolma"]


def test_given_activations_have_held_out_ones_beside_them(tmp_path):
    options = LMOptions(out=tmp_path, data=(f"wikipedia={tmp_path / 'acts'}",))
    found = activations.collect_activations(options, 100, silent)
    assert found == {"wikipedia": activations.TextShards(tmp_path / "acts", tmp_path / "acts-held-out")}
