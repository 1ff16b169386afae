"""One list for each direction; a format is a module and an entry; exporters write only what they know."""

import importlib
import json
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file

from osae.cli import COMMANDS, main
from osae.cli.commands import convert as convert_command
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


@pytest.fixture
def command_line():
    """Return a function that reads the command line's list of targets again; it is as before afterwards."""

    def read():
        COMMANDS["convert"] = importlib.reload(convert_command).COMMAND

    yield read
    read()


def test_a_new_format_takes_a_module_and_an_entry(command_line, monkeypatch, tmp_path, capsys):
    """A toy format, read and written: nothing else has to know about it."""
    toy = types.ModuleType("osae.interop.toy")
    toy.NAME = "toy"  # pyright: ignore
    toy.recognises = lambda found: "toy_atoms" in found  # pyright: ignore
    toy.read = lambda found: Matrices(found.matrix("toy_atoms"), None, "toys do not run.")  # pyright: ignore
    toy.export = lambda sae, origin: {"a.safetensors": {"toy_atoms": sae.decoder.detach()}}  # pyright: ignore
    monkeypatch.setitem(sys.modules, "osae.interop.toy", toy)
    monkeypatch.setattr(loading, "FORMATS", (*FORMATS, "toy"))
    with monkeypatch.context() as entry:
        entry.setattr(formats, "Target", Literal[(*TARGETS, "toy")])
        entry.setattr(converting, "TARGETS", (*TARGETS, "toy"))
        command_line()
        sae = SAE(SAEConfig(4, 9, TopK(2)))
        sae.save(tmp_path / "sae")
        assert main(["convert", str(tmp_path / "sae"), str(tmp_path / "out"), "--to", "toy"]) == 0
        assert main(["convert", "--help"]) == 0
        assert "toy" in capsys.readouterr().out
    loaded = load(tmp_path / "out")
    assert (loaded.format, loaded.sae, loaded.notes) == ("toy", None, ["toys do not run."])
    assert torch.equal(loaded.decoder, sae.decoder.detach())


def test_a_target_of_another_spelling_is_suggested(tmp_path):
    with pytest.raises(ValueError, match="to='sealens': did you mean saelens\\? Give one of saelens, "):
        convert(SAE(SAEConfig(4, 9, TopK(2))), tmp_path, to="sealens")  # pyright: ignore


@pytest.mark.parametrize("to", TARGETS)
def test_a_model_and_a_layer_are_stored_or_refused(to, tmp_path):
    sae = SAE(SAEConfig(4, 9, TopK(2)))
    try:
        convert(sae, tmp_path / "out", to=to, model="some-model", layer=77)
    except ValueError as error:
        assert "remove both" in str(error)  # noqa: PT017
        assert not (tmp_path / "out").exists()
    else:
        stored = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
        assert "some-model" in stored
        assert "77" in stored


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
