"""`osae trust` and `osae prune` as a user meets them."""

import csv
import json
from importlib.resources import files

import jsonschema
import numpy as np

from osae.cli import main
from osae.data.worlds import SparseWorld
from tests.studies.saes import save_sae


def test_trust_trains_twins_and_prune_keeps_what_they_find(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    world = SparseWorld(width=24, units=12, active=2, samples=4000)
    np.save("x.npy", world.draw("train").x.numpy())
    save_sae(tmp_path / "mine", world.dictionary())
    words = ["trust", "mine", "--data", "x.npy", "--runs", "2", "--tokens", "100000", "--out", "twins"]
    assert main([*words, "--json", "t.json", "--units", "u.csv"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words_of_units in (
        "Share of units by the number of SAEs",
        "Most reproducible units of mine",
        "by energy",
    ):
        assert words_of_units in out
    rows = list(csv.DictReader((tmp_path / "u.csv").read_text().splitlines()))
    assert sum(row["sae"] == "mine" for row in rows) == 12
    result = json.loads((tmp_path / "t.json").read_text())
    schema = json.loads((files("osae") / "schemas/compare.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(result)

    words = ["prune", "mine", "--scores", "t.json", "--data", "x.npy", "--model", "none", "--out", "less"]
    assert main([*words, "--json", "p.json", "--html", "p.html"]) == 0
    assert "units are found again in more than 0.5 of 2 other SAEs" in " ".join(
        capsys.readouterr().out.split()
    )
    result = json.loads((tmp_path / "p.json").read_text())
    schema = json.loads((files("osae") / "schemas/prune.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(result)
    assert result["after"]["units"] == len(result["kept"])
    assert main(["convert", "less", "sl", "--to", "saelens"]) == 0
    assert main(["prune", "mine", "--data", "x.npy", "--out", "other"]) == 2
    assert "is not part of a run" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_single_run_of_twins_is_refused(tmp_path, capsys):
    (tmp_path / "x.npy").touch()
    assert main(["trust", str(tmp_path), "--data", str(tmp_path / "x.npy"), "--runs", "1", "--out", "o"]) == 2
    assert "--runs" in capsys.readouterr().err
