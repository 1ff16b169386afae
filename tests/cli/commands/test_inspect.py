"""`osae inspect` as a user meets it."""

import json

import numpy as np
import pytest

from osae.cli import main
from osae.files import read_json
from tests.studies.saes import noise


def test_inspect_tells_activations_and_bare_decoders(here, capsys):
    assert main(["inspect", "x", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "activations" in out
    assert "model   tiny" in out
    np.save(here / "bare.npy", noise(30, 8, 0).numpy())
    assert main(["inspect", "bare.npy", "--orientation", "columns"]) == 0
    out = capsys.readouterr().out
    assert "unknown" in out
    assert "its atoms are its columns." in out
    assert "given as --data, it is read as activations" in out
    np.save(here / "zero.npy", noise(30, 8, 0).numpy() * (np.arange(30) != 4)[:, None])
    assert main(["inspect", "zero.npy"]) == 0
    assert "1 unit without a direction" in capsys.readouterr().out


def test_text_from_files_cannot_control_the_terminal(here, capsys):
    manifest = read_json(here / "x" / "manifest.json")
    manifest |= {"note\x1b[2J": "a\x1b[2J\nverified yes", "long": "x" * 10**6}
    (here / "x" / "manifest.json").write_text(json.dumps(manifest))
    assert main(["inspect", "x"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "verified yes" in out
    assert not any(line.startswith("verified") for line in out.splitlines())
    assert max(map(len, out.splitlines())) < 3000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no such file or folder"),
        (["a", "--verify"], "--verify applies to activations only"),
        (["x", "--orientation", "rows"], "--orientation applies to bare decoders only"),
        (["a", "--orientation", "rows"], "orientation='rows' applies to bare decoders only: leave it out."),
        (["x", "y"], "'y' is an unexpected argument"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    assert main(["inspect", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
