"""SAEs written for other libraries, from whatever they are given as."""

import pytest
import torch

from osae.interop import TARGETS, load
from osae.studies.convert import convert
from tests.studies.saes import make_sae, noise, save_sae


@pytest.mark.parametrize("to", TARGETS)
def test_an_sae_in_memory_and_one_on_disk_are_written_alike(tmp_path, to):
    atoms = torch.nn.functional.normalize(noise(20, 24, 0), dim=1)
    save_sae(tmp_path / "a", atoms)
    for name, subject in (
        ("path", tmp_path / "a"),
        ("sae", make_sae(atoms)),
        ("loaded", load(tmp_path / "a")),
    ):
        convert(subject, tmp_path / name, to=to)
        found = load(tmp_path / name)
        assert found.format == to
        torch.testing.assert_close(found.decoder, atoms)


def test_a_bare_decoder_cannot_be_converted(tmp_path):
    with pytest.raises(ValueError, match="only its matrices could be read"):
        convert(noise(20, 24, 0).numpy(), tmp_path / "out", to="saelens")
    assert not (tmp_path / "out").exists()
