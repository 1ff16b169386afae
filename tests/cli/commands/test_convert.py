"""`osae convert` as a user meets it."""

import numpy as np
import pytest

from osae.cli import main
from osae.cli.commands.convert import ConvertOptions
from osae.interop import TARGETS
from osae.interop.formats import DESCRIBED
from osae.options import list_options
from tests.studies.saes import noise


def test_the_libraries_shown_are_those_there_are():
    (to,) = (declared for declared in list_options(ConvertOptions) if declared.name == "to")
    assert set(to.allowed) == set(TARGETS)


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
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    np.save(here / "bare.npy", noise(30, 24, 0).numpy())
    assert main(["convert", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
