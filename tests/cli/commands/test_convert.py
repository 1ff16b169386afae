"""`osae convert` as a user meets it."""

import shutil

import numpy as np
import pytest

from osae.cli import main
from osae.cli.commands.convert import ConvertOptions
from osae.integrations.neuronpedia import write_neuronpedia
from osae.interop import TARGETS
from osae.interop.formats import DESCRIBED
from osae.options import list_options
from osae.sparsify import TopK
from tests.studies.language import language  # noqa: F401
from tests.studies.saes import noise, save_sae


def test_the_libraries_shown_are_those_there_are():
    (to,) = (declared for declared in list_options(ConvertOptions) if declared.name == "to")
    assert set(to.allowed) == {*TARGETS, "neuronpedia"}


@pytest.mark.parametrize("to", TARGETS)
def test_convert_writes_what_inspect_recognises(here, capsys, to):
    described = ["--model", "tiny", "--layer", "3"] if to in DESCRIBED else []
    assert main(["convert", "a", "out", "--to", to, *described]) == 0
    capsys.readouterr()
    assert main(["inspect", "out"]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert facts["format"] == to
    assert (facts["units"], facts["width"]) == ("20", "24")
    assert facts["sparsifier"] == "TopK(k=2)"


def test_dashboards_for_neuronpedia_are_those_of_the_contexts(language, tmp_path, capsys):  # noqa: F811
    sae = save_sae(tmp_path / "sae", noise(12, 16, 0), TopK(3))
    assert main(["contexts", str(sae), "--data", str(language / "x"), "--device", "cpu"]) == 0
    about = {"model": "tiny", "layer": 1, "source_set": "res-osae"}
    write_neuronpedia(sae / "contexts", tmp_path / "expected", **about, sae=sae)
    words = ["--to", "neuronpedia", "--model", "tiny", "--layer", "1", "--source-set", "res-osae"]
    capsys.readouterr()
    assert main(["convert", str(sae), str(tmp_path / "out"), *words]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    names = sorted(file.name for file in (tmp_path / "expected").iterdir())
    assert names == ["batch-0.json", "skipped_indexes.json"]
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    shutil.move(sae / "contexts", tmp_path / "elsewhere")
    again = [*words, "--contexts", str(tmp_path / "elsewhere")]
    assert main(["convert", str(sae), str(tmp_path / "again"), *again]) == 0
    assert (tmp_path / "again/batch-0.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bare.npy", "out", "--to", "saelens"], "only its matrices could be read"),
        (["a", "b", "--to", "saelens"], "b already contains files"),
        (["a", "out", "--to", "saelense"], "--to saelense: did you mean saelens? Give one of saelens"),
        (["a", "out"], "--to must be given"),
        (
            ["a", "out", "--to", "osae", "--orientation", "rows"],
            "applies to bare decoders only: leave it out.",
        ),
        (["nothing", "out", "--to", "osae"], "nothing: there is no such file or folder."),
        (
            ["a", "out", "--to", "sparsify", "--model", "m"],
            "--model cannot be stored with --to sparsify: remove",
        ),
        (["a", "out", "--to", "osae", "--layer", "3"], "--layer cannot be stored with --to osae: remove it."),
        (["a", "out", "--to", "osae", "--source-set", "x"], "--source-set applies to --to neuronpedia only"),
        (["a", "out", "--to", "neuronpedia", "--model", "m"], "--to neuronpedia needs --layer: give it."),
        (
            ["a", "out", "--to", "neuronpedia", "--model", "m", "--layer", "1", "--source-set", "s"],
            "a/contexts",
        ),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "bare.npy", noise(30, 24, 0).numpy())
    assert main(["convert", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
