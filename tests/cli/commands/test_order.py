"""`osae order` as a user meets it."""

import json

import numpy as np
import pytest
import torch

from osae.cli import main
from osae.interop import load
from tests.studies.saes import noise


def test_order_restores_an_order_and_says_where_it_comes_from(here, capsys):
    assert main(["order", "a", "--data", "x", "--out", "g"]) == 0
    assert "units moved" in capsys.readouterr().out
    assert main(["convert", "b", "peer", "--to", "dictionary_learning"]) == 0
    assert main(["order", "peer", "--data", "x", "--by", "gain", "--out", "p"]) == 0
    assert main(["compare", "g", "p", "--json", "o.json"]) == 0
    (pair,) = json.loads((here / "o.json").read_text())["pairs"]
    assert pair["stability"] > 0.9
    assert pair["orderedness"] > 0.9
    about = json.loads((here / "p" / "sae.json").read_text())["provenance"]
    assert about["command"] == "osae order peer --data x --by gain --out p"
    assert about["source"]["format"] == "dictionary_learning"
    assert about["order"]["by"] == "gain"
    assert about["order"]["activations"]["rows"] == 600


def test_every_order_holds_the_same_units(here):
    atoms = load("a").decoder
    for by in ("gain", "energy", "frequency"):
        assert main(["order", "a", "--data", "x", "--by", by, "--out", by]) == 0
        found = load(by).decoder
        assert torch.equal(found[found[:, 0].argsort()], atoms[atoms[:, 0].argsort()])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--data", "x", "--out", "b"], "b already contains files: give a new or empty folder"),
        (["a", "--data", "x", "--out", "bare.npy"], "bare.npy is a file: give a new or empty folder"),
        (["bare.npy", "--data", "x", "--out", "o"], "only its matrices could be read"),
        (["a", "--data", "x", "--out", "o", "--by", "size"], "give one of gain, energy, frequency"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "bare.npy", noise(30, 24, 0).numpy())
    assert main(["order", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
