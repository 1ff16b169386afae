"""`osae compare` as a user meets it."""

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

from osae.cli import main
from tests.studies.saes import noise, save_sae

GOLDEN = Path(__file__).parents[2] / "golden"


def test_compare_prints_tables_and_writes_json_csv_and_a_page(here, capsys):
    words = ["compare", "a", "b", "c", "--data", "x", "--prefixes", "4,20"]
    assert main([*words, "--json", "c.json", "--csv", "c.csv", "--html", "c.html"]) == 0
    out = capsys.readouterr().out
    assert all(
        word in out for word in ("Stab", "by", "chance", "a – b", "b – c", "mean", "first 4", "c.html")
    )
    result = json.loads((here / "c.json").read_text())
    schema = json.loads((files("osae") / "schemas/compare.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(result)
    assert result["provenance"]["command"].startswith("osae compare a b c --data x")
    assert f"{result['pairs'][0]['stability']:.3f}" in out
    assert f"{result['summary']['stream_stability']['mean']:.3f}" in out

    rows = list(csv.DictReader((here / "c.csv").read_text().splitlines()))
    assert len(rows) == 3 * (1 + 2)
    assert float(rows[0]["stability"]) == result["pairs"][0]["stability"]
    assert [row["length"] for row in rows[:3]] == ["", "4", "20"]
    assert (rows[4]["a"], rows[4]["b"]) == ("a", "c")

    page = (here / "c.html").read_text()
    HTMLParser().feed(page)
    assert page.count("<figure data-plot=") >= 2
    assert "<img" not in page
    assert "default-src &#39;none&#39;" in page  # nothing is loaded from elsewhere
    assert "a – b" in page
    assert result["saes"][0]["sha256"][:16] in page
    assert {path.name for path in here.iterdir()} == {"a", "b", "c", "x", "c.json", "c.csv", "c.html"}


def test_a_single_sae_is_refused_before_torch_is_loaded(here):
    code = "import sys; from osae.cli import main; main(['compare', 'a']); sys.exit('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == "osae: a is the only SAE given: give at least two, or the folder of a run.\n"


def test_compare_writes_a_table_of_every_unit(here, capsys):
    assert main(["compare", "a", "b", "c", "--data", "x", "--units", "u.csv", "--json", "c.json"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["c.json", "u.csv"]
    rows = list(csv.DictReader((here / "u.csv").read_text().splitlines()))
    units = json.loads((here / "c.json").read_text())["units"]["saes"]
    assert len(rows) == sum(len(sae["unit"]) for sae in units)
    assert [float(row["energy"]) for row in rows if row["sae"] == "b"] == units[1]["energy"]
    assert main(["compare", "a", "b", "--units", "nowhere/u.csv"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_compare_of_many_draws_means_and_the_first_panels(here, capsys):
    for number in range(5):
        np.save(here / f"{number}.npy", noise(30, 8, number).numpy())
    assert main(["compare", *(f"{number}.npy" for number in range(5)), "--html", "m.html"]) == 0
    assert "The first 8 of 10 pairs" in (here / "m.html").read_text()
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
    assert f"{peers[3]} –" in " ".join(out.split())


def test_compare_says_what_is_dead_and_what_does_not_fit(here, capsys):
    atoms = noise(20, 24, 0)
    atoms[3] = 0
    save_sae(here / "z", atoms)
    assert main(["compare", "a", "z", "--data", "x", "--chance-draws", "0", "--absolute"]) == 0
    out = capsys.readouterr().out
    assert "z: 1 of 20 units have no direction; they count with cosine 0." in out
    assert "z explains less variance than the mean does" in out
    assert "chance" not in out
    assert main(["compare", "a", "z", "--data", "x", "--dead", "drop"]) == 0
    assert "they are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "at least two"),
        (["a", "nowhere"], "no such file or folder"),
        (["a", "b", "--json", "no/where.json"], "folder no does not exist"),
        (["a", "b", "--html", "x"], "x is a folder: give the name of a file"),
        (["a", "b", "--json", "y", "--csv", "y"], "y would be written twice"),
        (["a", "b", "--prefixes", "99"], "prefix length 99: give 1 to 20"),
        (["a", "b", "--prefixes", "4,b"], "--prefixes b: give a whole number"),
        (["a", "b", "--chance-draws", "-1"], "--chance-draws -1: give a whole number of at least 0"),
        (["a", "b", "--data", "nowhere"], "no such file or folder"),
        (["a", "b", "--orientation", "rows"], "orientation='rows' applies to bare decoders only"),
        (["a", "x"], "x contains activations: give an SAE here"),
        (["a", "nan.npy"], "NaN"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "nan.npy", np.full((30, 24), np.nan, dtype=np.float32))
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_compare_without_a_page_needs_no_matplotlib(here):
    code = (
        "import sys; from osae.cli import main; code = main(['compare', 'a', 'b', '--csv', 'c.csv'])\n"
        "sys.exit(code or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
