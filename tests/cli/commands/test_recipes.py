"""`osae recipes` as a user meets it."""

import json

import pytest

from osae.cli import main
from osae.experiments.lm.settings import SETTINGS
from osae.recipes import RECIPES, WORLD_RECIPES


def test_recipes_are_listed_by_what_they_are_for(capsys):
    assert main(["recipes"]) == 0
    parts = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    heads = [part[0] for part in parts]
    assert heads == ["on activations:", "on synthetic worlds:", "settings (osae-paper, live):"]
    listed = [[line.split()[0] for line in part[1:]] for part in parts]
    assert listed == [list(RECIPES), list(WORLD_RECIPES), list(SETTINGS)]
    starts = {len(line) - len(line.split(maxsplit=1)[1]) for part in parts for line in part[1:]}
    assert len(starts) == 1  # descriptions begin in the same column


def test_a_recipe_is_printed_in_full(capsys):
    assert main(["recipes", "osae"]) == 0
    on_activations = json.loads(capsys.readouterr().out)
    assert main(["recipes", "osae", "--worlds"]) == 0
    on_worlds = json.loads(capsys.readouterr().out)
    assert on_activations["name"] == on_worlds["name"] == "osae"
    assert on_activations["start"]["kind"] == "FromData"
    assert on_worlds["start"]["kind"] == "FromNoise"
    sizes = [
        (made["sae"]["width"], made["sae"]["units"], made["batch"]) for made in (on_activations, on_worlds)
    ]
    assert sizes == [(576, 4096, 512), (80, 100, 500)]
    assert on_worlds["samples"] == 3_000_000


def test_a_setting_is_printed_in_full(capsys):
    assert main(["recipes", "gemma-2-2b"]) == 0
    setting = json.loads(capsys.readouterr().out)
    assert setting["recipe"]["prefix"]["ends"] == [128, 384, 896, 1920, 4096]
    assert setting["recipe"]["start"] == {"kind": "FromNoise"}
    assert (setting["source"]["model"], setting["source"]["layer"]) == ("google/gemma-2-2b", 12)
    assert main(["recipes", "smollm2-135m"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["start"]["kind"] == "FromData"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "RECIPE nonsense: give one of"),
        (["--worlds"], "--worlds requires a RECIPE"),
        (["pythia-70m", "--worlds"], "--worlds requires a RECIPE"),
        (["osae-from-noise", "--worlds"], "no recipe 'osae-from-noise'"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_code_2(words, message, capsys):
    assert main(["recipes", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
