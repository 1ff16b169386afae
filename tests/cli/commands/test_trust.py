"""`osae trust` and `osae prune` as a user meets them."""

import csv
import json
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

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
    assert "units are found again in more than half of 2 other SAEs" in " ".join(
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trust", "--runs", "1"], "--runs 1: give a whole number of at least 2"),
        (["trust", "--device", "toaster"], "--device toaster: give auto, cpu, mps, cuda or cuda:N"),
        (["prune", "--device", "toaster"], "--device toaster: give auto, cpu, mps, cuda or cuda:N"),
        (["prune", "--least", "1"], "--least 1: give a number below 1"),
        (["prune", "--model", "none", "--tokens", "9"], "--tokens applies to the cross-entropy"),
        (["prune", "--scores", "c.json", "--others", "a,b"], "--others has no effect with --scores"),
        (["contexts", "--model", "none", "--device", "cpu"], "--device applies to the logit lens"),
        (["compare", "--same", "1"], "--same 1: give a number below 1"),
    ],
)
def test_a_value_out_of_range_or_without_effect_is_refused_before_anything_is_read(words, said, capsys):
    command, *options = words
    place = [] if command in ("contexts", "compare") else ["--out", "o"]
    assert main([command, "missing", "--data", "missing.npy", *place, *options]) == 2
    assert said in capsys.readouterr().err
