"""What is loaded encodes, decodes and reconstructs, from torch or numpy; what cannot be run says why."""

from pathlib import Path

import numpy as np
import pytest
import torch

import osae
from osae.interop import Loaded, convert, load
from osae.model import SAE, SAEConfig
from osae.sparsify import Linear, TopK

WIDTH, UNITS, K = 8, 32, 4
GOLDEN = Path(__file__).parents[1] / "golden"
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sae():
    return SAE(SAEConfig(WIDTH, UNITS, TopK(K)), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["memory", "osae", "saelens", "dictionary_learning", "sparsify"])
def loaded(request, sae, tmp_path):
    if request.param == "memory":
        return osae.load(sae)
    convert(sae, tmp_path, to=request.param)
    return osae.load(tmp_path)


def test_loaded_does_what_the_sae_does(loaded, sae):
    with torch.no_grad():
        expected, code = sae(X)
    given = loaded.encode(X)
    assert torch.equal(given.units, code.units)
    torch.testing.assert_close(given.values, code.values)
    torch.testing.assert_close(loaded.decode(given), expected)
    torch.testing.assert_close(loaded(X), expected)
    assert not loaded(X).requires_grad


def test_numpy_arrays_of_any_shape_and_precision_give_the_same(loaded):
    expected = loaded(X)
    for x in (X.numpy(), X.double().numpy(), np.asfortranarray(X.numpy())):
        torch.testing.assert_close(loaded(x), expected)
    torch.testing.assert_close(loaded(X.numpy()[0]), expected[0])
    torch.testing.assert_close(loaded(X.numpy()[:, None, None]), expected[:, None, None])
    values, units = loaded.encode(X.numpy())
    torch.testing.assert_close(loaded.decode((values.numpy(), units.numpy())), expected)


@pytest.mark.parametrize(
    "x", [np.ones((3, WIDTH + 1)), torch.ones(0), np.float32(3)], ids=["wide", "flat", "0-d"]
)
def test_rows_of_another_width_are_refused(loaded, x):
    with pytest.raises(ValueError, match=f"give rows of width {WIDTH}"):
        loaded.encode(x)


def test_units_that_are_not_there_are_refused(loaded):
    with pytest.raises(ValueError, match=f"units from 0 to {UNITS}: give units below {UNITS}"):
        loaded.decode((np.ones((1, 2)), np.array([[0, UNITS]])))


def test_what_cannot_be_run_says_why():
    loaded = load(GOLDEN / "saelens-abstopk")
    assert loaded.sae is None
    for call in (lambda: loaded.encode(X), lambda: loaded(X), lambda: loaded.decode((X, X.long()))):
        with pytest.raises(ValueError, match="only its matrices could be read: abstopk selects"):
            call()


def test_what_is_loaded_prints_as_what_it_is(sae, tmp_path):
    sae.save(tmp_path / "mine")
    said = repr(load(tmp_path / "mine"))
    assert said == f"Loaded('{tmp_path}/mine': osae, 32 units of width 8, TopK(k=4))"
    assert "note: abstopk selects" in repr(load(GOLDEN / "saelens-abstopk"))
    assert len(repr(load(np.eye(2000)))) < 300


def test_an_sae_in_memory_is_loaded_as_it_is(sae):
    loaded = load(sae)
    assert loaded.sae is sae
    assert (loaded.path, loaded.format, loaded.units, loaded.width) == ("in memory", "osae", UNITS, WIDTH)
    assert load(loaded) is loaded
    again = SAE(sae.config, generator=torch.Generator().manual_seed(0))
    assert load(again).sha256 == loaded.sha256
    with torch.no_grad():
        again.decoder_bias[0] += 1
    assert load(again).sha256 != loaded.sha256


@pytest.mark.parametrize(
    "kind", [torch.from_numpy, np.asarray, np.ndarray.tolist], ids=["torch", "numpy", "list"]
)
def test_a_matrix_in_memory_is_a_decoder_with_atoms_as_rows(kind):
    atoms = np.random.default_rng(0).normal(size=(3, 7))
    loaded = load(kind(atoms))
    assert isinstance(loaded, Loaded)
    assert (loaded.format, loaded.units, loaded.width, loaded.encoder) == ("decoder", 3, 7, None)
    np.testing.assert_allclose(loaded.decoder, atoms, rtol=1e-6)
    assert load(kind(atoms), orientation="columns").units == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ones(3), "a decoder of shape .*: give a matrix"),
        (np.ones((0, 3)), "a decoder of shape .*: give a matrix"),
        (np.full((2, 2), np.nan), "row 0 contains NaN"),
        (np.eye(2, dtype=int), "floating-point"),
        (torch.nn.Linear(2, 2), "expected an SAE, got Linear"),
        (123, "expected an SAE, got int: give a path, an SAE, a loaded file, or a decoder as a matrix"),
        (["a", "b"], "expected one SAE, got list: load them one by one, or give the list to osae.compare"),
        (None, "expected an SAE, got NoneType"),
    ],
    ids=str,
)
def test_what_is_no_decoder_is_refused(given, words, unchecked_shapes):
    with pytest.raises(ValueError, match=words):
        load(given)


def test_convert_takes_what_load_takes(sae, tmp_path):
    sae.save(tmp_path / "mine")
    for number, source in enumerate(
        (sae, load(sae), tmp_path / "mine", str(tmp_path / "mine"), load(tmp_path / "mine"))
    ):
        convert(source, tmp_path / str(number), to="sparsify")
        assert torch.equal(load(tmp_path / str(number)).decoder, sae.decoder.detach())
    with pytest.raises(ValueError, match="only its matrices could be read"):
        convert(np.eye(4), tmp_path / "x", to="osae")


def test_a_linear_code_runs_too():
    sae = SAE(SAEConfig(WIDTH, UNITS, Linear()), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(load(sae)(X.numpy()), sae(X).reconstruction.detach())
