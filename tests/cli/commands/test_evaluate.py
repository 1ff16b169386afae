"""`osae evaluate` as a user meets it."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from osae.cli import main
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from tests.studies import language as language_model
from tests.studies.saes import noise, save_sae

WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=600)
language = language_model.language


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a run of two SAEs, an SAE of another library, and activations, where commands are run."""
    monkeypatch.chdir(tmp_path)
    atoms = WORLD.dictionary()
    for name in ("osae-seed0", "osae-seed1"):
        near = atoms + 0.05 * noise(20, 24, len(name))
        save_sae(tmp_path / "run" / name, torch.nn.functional.normalize(near, dim=1))
    (tmp_path / "run" / "run.json").write_text("{}")
    save_sae(tmp_path / "small", atoms[:6])
    assert main(["convert", "small", "peer", "--to", "dictionary_learning"]) == 0
    write_shards(tmp_path / "x", [WORLD.draw("test").x])
    return tmp_path


def test_evaluate_prints_tables_and_writes_json_csv_and_a_page(here, capsys):
    words = ["evaluate", "run", "peer", "--data", "x", "--prefixes", "3,12"]
    assert main([*words, "--json", "e.json", "--csv", "e.csv", "--html", "e.html"]) == 0
    done = capsys.readouterr()
    assert "osae evaluate: 1/1 activations" in done.err
    result = json.loads((here / "e.json").read_text())
    assert result["provenance"]["command"].startswith("osae evaluate run peer --data x")
    assert [sae["path"] for sae in result["saes"]] == ["run/osae-seed0", "run/osae-seed1", "peer"]
    assert result["saes"][2]["format"] == "dictionary_learning"
    for text in ("600 rows of x", "EV EV EV SAE 3 12 20", "osae-seed1", "No cross", "e.html"):
        assert text in " ".join(done.out.split())
    assert "CE" not in done.out
    for sae in result["saes"]:
        assert f"{sae['explained_variance']:.3f}" in done.out
        assert f"{sae['l0']:.2f}" in done.out

    rows = list(csv.DictReader((here / "e.csv").read_text().splitlines()))
    assert len(rows) == 2 * (1 + 8) + (1 + 5)
    assert [row["length"] for row in rows[:9]] == ["", "1", "2", "3", "4", "8", "12", "16", "20"]
    assert float(rows[0]["mse"]) == result["saes"][0]["mse"]
    assert rows[0]["recovered"] == rows[1]["l0"] == ""
    assert {row["sae"] for row in rows} == {"osae-seed0", "osae-seed1", "peer"}

    page = (here / "e.html").read_text()
    HTMLParser().feed(page)
    assert page.count("<figure data-plot=") == 2
    assert "<img" not in page
    assert "default-src &#39;none&#39;" in page  # nothing is loaded from elsewhere
    assert re.search(r"<h1>[^<]*3 SAEs", page)
    assert result["saes"][0]["sha256"][:16] in page


def test_the_cross_entropy_is_shown(language, capsys, tmp_path):
    saes = [str(language / name) for name in ("identity", "inactive", "some")]
    out = tmp_path / "e.json"
    words = ["--data", str(language / "x"), "--tokens", "1e2", "--json", str(out)]
    assert main(["evaluate", *saes, *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Cross-entropy on 10" in shown
    assert "with zeros at layer 1" in shown
    result = json.loads(out.read_text())
    assert result["options"]["tokens"] == 100
    assert [round(sae["cross_entropy"]["recovered"], 5) for sae in result["saes"][:2]] == [1.0, 0.0]
    assert f"{result['saes'][2]['cross_entropy']['recovered']:.3f}" in shown
    assert "Dead CE" in shown
    assert main(["evaluate", *saes, "--data", str(language / "x"), "--model", "none"]) == 0
    assert "tokens" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nowhere", "--data", "x"], "no such file or folder"),
        (["run", "--data", "nowhere"], "no such file or folder"),
        (["run", "--data", "small"], "has no manifest.json"),
        (["x", "--data", "x"], "x contains activations: give an SAE here"),
        (["run", "--data", "x", "--prefixes", "99"], "prefix length 99: give 1 to 20"),
        (["run", "--data", "x", "--json", "no/where.json"], "folder no does not exist"),
        (["run", "--data", "x", "--model", "none", "--text", "a.txt"], "--text applies to the cross-entropy"),
        (["run", "--data", "x", "--model", "none", "--tokens", "9"], "--tokens applies to the cross-entropy"),
        (["run", "--data", "x", "--tokens", "0"], "--tokens 0: give a whole number of at least 1"),
        (["run", "--data", "x", "--prefixes", "a,b"], "--prefixes a: give a whole number"),
        (["run"], "--data must be given"),
        (["run", "--data", "x", "--model", "nowhere"], "does not name the model"),
        (["run", "--data", "x", "--device", "toaster"], "--device toaster: give auto, cpu"),
        (
            ["run", "--data", "x", "--device", "cpu"],
            "--device has no effect: x does not name a language model.",
        ),
        (
            ["run", "--data", "x", "--tokens", "9"],
            "--tokens has no effect: x does not name a language model.",
        ),
        (["bare.npy", "--data", "x"], "only its matrices could be read"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "bare.npy", noise(30, 24, 0).numpy())
    capsys.readouterr()
    assert main(["evaluate", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
