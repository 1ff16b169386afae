"""`osae stitch` as a user meets it."""

import json

import pytest

from osae.cli import main
from tests.studies.saes import WORLD, save_sae


def test_stitch_prints_the_shares_and_the_novel_unit(here, capsys):
    save_sae(here / "small", WORLD.dictionary()[1:])
    assert main(["stitch", "small", "a", "--data", "x", "--json", "s.json"]) == 0
    out = capsys.readouterr().out
    assert "Novel" in out
    result = json.loads((here / "s.json").read_text())
    assert result["kind"] == "stitching"
    assert result["most_novel"][0]["unit"] == 0
    assert result["novel"] + result["reconstruction"] + result["unchanged"] == pytest.approx(1.0)
    assert len(result["change"]) == 20


def test_activations_without_a_manifest_are_refused(here, capsys):
    assert main(["stitch", "a", "b", "--data", "a"]) == 2
    assert "has no manifest.json" in capsys.readouterr().err
