"""`osae compare`, `order`, `stitch`, `convert` and `inspect` as a user meets them."""

import csv
import json
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from osae.cli import comparing, main
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from osae.interop import TARGETS, load
from osae.roles import ORDERS
from tests.test_comparison import noise, saved

GOLDEN = Path(__file__).parent.parent / "golden"
WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=600)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with three SAEs of one world and activations of it, where the commands are run."""
    monkeypatch.chdir(tmp_path)
    atoms = WORLD.dictionary()
    saved(tmp_path / "a", atoms)
    for seed, name in enumerate(("b", "c")):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
        near = atoms[order] + 0.02 * (seed + 1) * noise(20, 24, seed)
        saved(tmp_path / name, torch.nn.functional.normalize(near, dim=1))
    write_shards(tmp_path / "x", [WORLD.draw("test").x], about={"model": "tiny"})
    return tmp_path


def test_compare_prints_tables_and_writes_json_csv_and_a_page(here, capsys):
    words = ["compare", "a", "b", "c", "--activations", "x", "--prefixes", "4,20"]
    assert main([*words, "--json", "c.json", "--csv", "c.csv", "--html", "c.html"]) == 0
    out = capsys.readouterr().out
    assert all(
        word in out for word in ("Stab", "by", "chance", "0 – 1", "1 – 2", "mean", "first 4", "c.html")
    )
    result = json.loads((here / "c.json").read_text())
    schema = json.loads((files("osae") / "schemas/compare.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(result)
    assert result["provenance"]["command"].startswith("osae compare a b c --activations x")
    assert f"{result['pairs'][0]['stability']:.3f}" in out
    assert f"{result['summary']['stream_stability']['mean']:.3f}" in out

    rows = list(csv.DictReader((here / "c.csv").read_text().splitlines()))
    assert len(rows) == 3 * (1 + 2)
    assert float(rows[0]["stability"]) == result["pairs"][0]["stability"]
    assert [row["length"] for row in rows[:3]] == ["", "4", "20"]
    assert (rows[4]["a"], rows[4]["b"]) == ("a", "c")

    page = (here / "c.html").read_text()
    HTMLParser().feed(page)
    assert page.count("<img") == page.count("data:image/png;base64,") == 2
    assert "http://" not in page
    assert "a – b" in page
    assert result["saes"][0]["sha256"][:16] in page
    assert {path.name for path in here.iterdir()} == {"a", "b", "c", "x", "c.json", "c.csv", "c.html"}


def test_compare_of_many_draws_means_and_the_first_panels(here, capsys):
    for number in range(5):
        np.save(here / f"{number}.npy", noise(30, 8, number).numpy())
    assert main(["compare", *(f"{number}.npy" for number in range(5)), "--html", "m.html"]) == 0
    assert "the first 8 of 10 pairs" in (here / "m.html").read_text()
    assert "4.npy" in capsys.readouterr().out


def test_compare_takes_any_mix_of_libraries(capsys):
    peers = (
        "saelens-topk",
        "sparsify",
        "gemma_scope",
        "dictionary_learning-BatchTopKSAE",
        "llamascopium-topk",
    )
    assert main(["compare", *(str(GOLDEN / peer) for peer in peers), "--prefixes", "8"]) == 0
    out = capsys.readouterr().out
    assert all(peer in out for peer in peers)
    assert "3 – 4" in out


def test_compare_says_what_is_dead_and_what_does_not_fit(here, capsys):
    atoms = noise(20, 24, 0)
    atoms[3] = 0
    saved(here / "z", atoms)
    assert main(["compare", "a", "z", "--activations", "x", "--chance-draws", "0", "--abs"]) == 0
    out = capsys.readouterr().out
    assert "z: 1 of 20 units have no direction; they count with cosine 0." in out
    assert "z explains less than the mean does" in out
    assert "chance" not in out
    assert main(["compare", "a", "z", "--activations", "x", "--dead", "drop"]) == 0
    assert "they are left out" in capsys.readouterr().out


def test_order_restores_an_order_and_says_where_it_comes_from(here, capsys):
    for by, out in (("gain", "g"), ("greedy", "h")):
        assert main(["order", "a", "--activations", "x", "--by", by, "--out", out]) == 0
    assert torch.equal(load("g").decoder, load("h").decoder)
    assert "units moved" in capsys.readouterr().out
    assert main(["convert", "b", "peer", "--to", "dictionary_learning"]) == 0
    assert main(["order", "peer", "--activations", "x", "--out", "p"]) == 0
    capsys.readouterr()
    assert main(["compare", "g", "p", "--json", "o.json"]) == 0
    (pair,) = json.loads((here / "o.json").read_text())["pairs"]
    assert pair["stability"] > 0.9
    assert pair["orderedness"] > 0.9
    about = json.loads((here / "p" / "sae.json").read_text())["provenance"]
    assert about["source"]["format"] == "dictionary_learning"
    assert about["order"]["by"] == "gain"
    assert about["order"]["activations"]["rows"] == 600
    assert main(["order", "a", "--activations", "x", "--out", "p"]) == 2
    assert "holds files already" in capsys.readouterr().err


def test_stitch_prints_the_shares_and_the_novel_unit(here, capsys):
    saved(here / "small", WORLD.dictionary()[1:])
    assert main(["stitch", "small", "a", "--activations", "x", "--json", "s.json"]) == 0
    out = capsys.readouterr().out
    assert "Novel" in out
    result = json.loads((here / "s.json").read_text())
    assert result["kind"] == "stitching"
    assert result["most_novel"][0]["unit"] == 0
    assert result["novel"] + result["reconstruction"] + result["unchanged"] == pytest.approx(1.0)
    assert len(result["change"]) == 20


@pytest.mark.parametrize("to", comparing.TARGETS)
def test_convert_writes_what_inspect_recognises(here, capsys, to):
    assert main(["convert", "a", "out", "--to", to, "--model", "tiny", "--layer", "3"]) == 0
    capsys.readouterr()
    assert main(["inspect", "out"]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert facts["format"] == to
    assert (facts["units"], facts["width"]) == ("20", "24")
    assert facts["sparsifier"] == "TopK(k=2)"


def test_inspect_tells_activations_and_bare_decoders(here, capsys):
    assert main(["inspect", "x", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "activations" in out
    assert "model   tiny" in out
    np.save(here / "bare.npy", noise(30, 8, 0).numpy())
    assert main(["inspect", "bare.npy", "--orientation", "columns"]) == 0
    out = capsys.readouterr().out
    assert "unknown" in out
    assert "atoms are columns, as told." in out


def test_the_choices_shown_are_the_choices_there_are():
    assert set(comparing.TARGETS) == set(TARGETS)
    assert set(comparing.ORDERS) == {*ORDERS, "greedy"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a"], "at least two"),
        (["compare", "a", "nowhere"], "no such file or folder"),
        (["compare", "a", "b", "--json", "no/where.json"], "no folder no"),
        (["compare", "a", "b", "--prefixes", "99"], "prefix length 99: give 1 to 20"),
        (["compare", "a", "b", "--activations", "nowhere"], "no such file or folder of activations"),
        (["compare", "a", "x"], "x holds activations: name an SAE here"),
        (["compare", "a", "nan.npy"], "NaN"),
        (["order", "bare.npy", "--activations", "x", "--out", "o"], "cannot be run on activations"),
        (["stitch", "a", "b", "--activations", "a"], "has no manifest.json"),
        (["convert", "bare.npy", "out", "--to", "saelens"], "only its matrices could be read"),
        (["inspect", "nowhere"], "no such file or folder"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "bare.npy", noise(30, 24, 0).numpy())
    np.save(here / "nan.npy", np.full((30, 24), np.nan, dtype=np.float32))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["--prefixes", "a,b"], ["--chance-draws", "-1"]])
def test_options_that_make_no_sense_are_explained(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "a", "b", *words])
    assert ended.value.code == 2
    assert "give" in capsys.readouterr().err


def test_compare_without_a_page_needs_no_matplotlib(here):
    code = (
        "import sys; from osae.cli import main; code = main(['compare', 'a', 'b', '--csv', 'c.csv'])\n"
        "sys.exit(code or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
