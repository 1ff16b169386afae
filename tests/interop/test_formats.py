"""One list for each direction; a format is a module and an entry; exporters write only what they know."""

import json
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from osae.interop import FORMATS, TARGETS, convert, converting, formats, load, loading
from osae.interop.parts import Matrices
from osae.model import SAE, SAEConfig
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_that_is_read_is_a_module_of_its_name(name):
    reader = formats.get_reader(name)
    assert name == reader.NAME
    assert callable(reader.recognises)
    assert callable(reader.read)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "osae"])
def test_every_format_that_is_written_is_a_module_of_its_name(name):
    writer = formats.get_writer(name)
    assert name == writer.NAME
    assert callable(writer.export)


def test_the_documentation_names_every_target():
    pages = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert [name for name in TARGETS if name not in pages] == []


def test_the_lists_of_formats_need_no_torch():
    script = "import sys; from osae.interop import FORMATS, TARGETS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_new_format_takes_a_module_and_an_entry(monkeypatch, tmp_path):
    """A toy format, read and written: nothing else has to know about it."""
    toy = types.ModuleType("osae.interop.toy")
    toy.NAME = "toy"  # pyright: ignore
    toy.recognises = lambda found: "toy_atoms" in found  # pyright: ignore
    toy.read = lambda found: Matrices(found.matrix("toy_atoms"), None, "toys do not run.")  # pyright: ignore
    toy.export = lambda sae, origin: {"a.safetensors": {"toy_atoms": sae.decoder.detach()}}  # pyright: ignore
    monkeypatch.setitem(sys.modules, "osae.interop.toy", toy)
    monkeypatch.setattr(loading, "FORMATS", (*FORMATS, "toy"))
    monkeypatch.setattr(converting, "TARGETS", (*TARGETS, "toy"))
    sae = SAE(SAEConfig(4, 9, TopK(2)))
    convert(sae, tmp_path, to="toy")  # pyright: ignore
    loaded = load(tmp_path)
    assert (loaded.format, loaded.sae, loaded.notes) == ("toy", None, ["toys do not run."])
    assert torch.equal(loaded.decoder, sae.decoder.detach())


@dataclass(frozen=True)
class Sixth:
    """A sparsifier that nobody has taught the exporters."""

    k: int = 2


@pytest.mark.parametrize("to", TARGETS)
def test_a_sparsifier_that_an_exporter_does_not_know_is_never_written_as_another(
    to, tmp_path, unchecked_shapes
):
    sae = SAE(SAEConfig(4, 9, TopK(2)))
    object.__setattr__(sae.config, "sparsifier", Sixth())
    if to == "osae":  # our own files name the class, and reading refuses a name that is not known
        convert(sae, tmp_path / "out", to=to)
        assert set(load_file(tmp_path / "out" / "sae.safetensors")) >= {"decoder"}
        with pytest.raises(ValueError, match="unknown kind 'Sixth'"):
            load(tmp_path / "out")
        return
    with pytest.raises(ValueError, match="Sixth"):
        convert(sae, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


STATED = {
    ("saelens", "TopK"): "topk",
    ("saelens", "BatchTopK"): "jumprelu",
    ("saelens", "JumpReLU"): "jumprelu",
    ("saelens", "ReLU"): "standard",
    ("dictionary_learning", "TopK"): "AutoEncoderTopK",
    ("dictionary_learning", "BatchTopK"): "BatchTopKSAE",
    ("dictionary_learning", "JumpReLU"): "JumpReluAutoEncoder",
    ("dictionary_learning", "ReLU"): "AutoEncoder",
    ("sparsify", "TopK"): "topk",
}
PLACES = {
    "saelens": ("cfg.json", "architecture"),
    "dictionary_learning": ("config.json", "trainer", "dict_class"),
    "sparsify": ("cfg.json", "activation"),
}


@pytest.mark.parametrize(("to", "kind"), STATED)
def test_exported_files_state_their_architecture(to, kind, tmp_path):
    sparsifier = {"TopK": TopK(2), "BatchTopK": BatchTopK(2), "JumpReLU": JumpReLU(), "ReLU": ReLU()}[kind]
    convert(SAE(SAEConfig(4, 9, sparsifier)), tmp_path, to=to)
    file, *keys = PLACES[to]
    stated = json.loads((tmp_path / file).read_text())
    for key in keys:
        stated = stated[key]
    assert stated == STATED[to, kind]
