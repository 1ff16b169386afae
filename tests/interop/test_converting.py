"""Round trips: our SAE, written as another library's, read again, computes what it did."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.interop import TARGETS, convert, load
from osae.model import SAE, SAEConfig
from osae.scaling import ConstantNorm, LayerNorm
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK

SPARSIFIERS = {"TopK": TopK, "BatchTopK": BatchTopK, "JumpReLU": JumpReLU, "ReLU": ReLU, "Linear": Linear}
EXPRESSED = {
    "saelens": {"TopK", "BatchTopK", "JumpReLU", "ReLU"},
    "dictionary_learning": {"TopK", "BatchTopK", "JumpReLU", "ReLU"},
    "sparsify": {"TopK"},
    "osae": set(SPARSIFIERS),
}
CASES = [(to, kind) for to, kinds in EXPRESSED.items() for kind in sorted(kinds)]
LOST = [(to, kind) for to, kinds in EXPRESSED.items() for kind in sorted(set(SPARSIFIERS) - kinds)]


@torch.no_grad()
def random_sae(kind, width, units, k, seed, *, even=True, unit=True):
    """An SAE with random parameters; `even` thresholds are one for all units, as training leaves them."""
    generator = torch.Generator().manual_seed(seed)
    choice = SPARSIFIERS[kind](k) if kind in ("TopK", "BatchTopK") else SPARSIFIERS[kind]()
    sae = SAE(SAEConfig(width, units, choice), generator=generator)
    sae.encoder.add_(torch.randn(units, width, generator=generator) * 0.5)
    sae.encoder_bias.copy_(torch.randn(units, generator=generator) * 0.3)
    sae.decoder_bias.copy_(torch.randn(width, generator=generator))
    level = torch.rand(1 if even else units, generator=generator)
    sae.threshold.copy_(level.expand(units))
    if not unit:
        sae.decoder.mul_(torch.rand(units, 1, generator=generator) + 0.5)
    return sae


@torch.no_grad()
def assert_same(ours, theirs, seed):
    """Same values and reconstructions, in units of unit atoms, away from where a rounding error decides."""
    x = 2 * torch.randn(32, ours.config.width, generator=torch.Generator().manual_seed(seed))
    pre = ours.pre_activations(x - ours.decoder_bias)
    near = ((pre - ours.threshold).abs() < 1e-5) | (pre.abs() < 1e-5)
    x = x[~near.any(1)]
    (a, code), (b, other) = ours(x), theirs(x)
    units = ours.config.units
    dense = code.dense(units) * ours.decoder.norm(dim=1)
    torch.testing.assert_close(other.dense(units) * theirs.decoder.norm(dim=1), dense, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(b, a, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("to", "kind"), CASES)
@settings(max_examples=15, deadline=None)
@given(
    width=st.integers(1, 6),
    units=st.integers(1, 12),
    k=st.integers(1, 12),
    seed=st.integers(0, 2**31),
    even=st.booleans(),
    unit=st.booleans(),
)
def test_round_trip_computes_the_same(to, kind, width, units, k, seed, even, unit):
    sae = random_sae(kind, width, units, min(k, units), seed, even=even, unit=unit)
    with tempfile.TemporaryDirectory() as folder:
        convert(sae, folder, to=to)
        loaded = load(folder)
    assert loaded.format == to
    assert loaded.sae is not None
    assert_same(sae, loaded.sae, seed)


@pytest.mark.parametrize("to", TARGETS)
def test_second_round_trip_changes_no_bit(to, tmp_path):
    convert(random_sae("TopK", 8, 32, 4, seed=1), tmp_path / "a", to=to)
    first = load(tmp_path / "a")
    convert(first, tmp_path / "b", to=to)
    second = load(tmp_path / "b")
    assert first.sae is not None
    assert second.sae is not None
    for name, value in first.sae.state_dict().items():
        assert torch.equal(value, second.sae.state_dict()[name])


@pytest.mark.parametrize(("to", "kind"), LOST)
def test_what_a_library_cannot_express_is_refused_and_leaves_no_files(to, kind, tmp_path):
    with pytest.raises(ValueError, match="would be lost"):
        convert(random_sae(kind, 4, 8, 2, seed=0), tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["saelens", "dictionary_learning"])
def test_negative_thresholds_are_refused(to, tmp_path):
    sae = random_sae("JumpReLU", 4, 8, 2, seed=0)
    with torch.no_grad():
        sae.threshold[:3] = -1.0
    with pytest.raises(ValueError, match="3 thresholds are negative"):
        convert(sae, tmp_path, to=to)
    assert not list(tmp_path.iterdir())


def test_provenance_goes_along(tmp_path):
    sae = random_sae("TopK", 4, 8, 2, seed=0)
    sae.save(tmp_path / "own", provenance={"seed": 7})
    for to, file, path in (
        ("saelens", "cfg.json", ("metadata", "osae")),
        ("dictionary_learning", "config.json", ("osae",)),
        ("sparsify", "cfg.json", ("osae",)),
        ("osae", "sae.json", ("provenance",)),
    ):
        convert(load(tmp_path / "own"), tmp_path / to, to=to)
        about = json.loads((tmp_path / to / file).read_text())
        for key in path:
            about = about[key]
        assert about["config"]["kind"] == "SAEConfig"
        assert about["source"]["provenance"] == {"seed": 7}
        assert about["source"]["format"] == "osae"


def test_model_and_layer_fill_the_fields_of_the_library(tmp_path):
    sae = random_sae("TopK", 4, 8, 2, seed=0)
    convert(sae, tmp_path / "s", to="saelens", model="gpt2", layer=3)
    metadata = json.loads((tmp_path / "s/cfg.json").read_text())["metadata"]
    assert metadata["model_name"] == "gpt2"
    assert metadata["hook_name"] == "blocks.3.hook_resid_post"
    convert(sae, tmp_path / "d", to="dictionary_learning", model="gpt2", layer=3)
    trainer = json.loads((tmp_path / "d/config.json").read_text())["trainer"]
    assert (trainer["lm_name"], trainer["layer"], trainer["k"]) == ("gpt2", 3, 2)


@pytest.mark.parametrize("scaling", [LayerNorm(), ConstantNorm()], ids=str)
@pytest.mark.parametrize("kind", sorted(EXPRESSED["saelens"]))
@pytest.mark.parametrize("to", ["saelens", "osae"])
def test_a_scaling_of_each_input_survives_where_it_can_be_expressed(to, kind, scaling, tmp_path):
    plain = random_sae(kind, 8, 32, 4, seed=3)
    sae = SAE.from_tensors(replace(plain.config, scaling=scaling), plain.state_dict())
    convert(sae, tmp_path, to=to)
    loaded = load(tmp_path)
    assert loaded.require_sae().config.scaling == scaling
    x = 5 * torch.randn(32, 8, generator=torch.Generator().manual_seed(0)) + 2
    with torch.no_grad():
        expected, code = sae(x)
    torch.testing.assert_close(loaded(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded.encode(x).dense(32), code.dense(32), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("to", "scaling"),
    [("sparsify", LayerNorm()), ("dictionary_learning", ConstantNorm()), ("saelens", LayerNorm(epsilon=0.1))],
    ids=str,
)
def test_and_is_refused_where_it_cannot(to, scaling, tmp_path):
    with pytest.raises(ValueError, match="would be lost"):
        convert(SAE(SAEConfig(8, 32, TopK(4), scaling=scaling)), tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


def test_full_folder_is_left_alone(tmp_path):
    (tmp_path / "sae.safetensors").write_text("mine")
    with pytest.raises(ValueError, match="already contains files"):
        convert(random_sae("TopK", 4, 8, 2, seed=0), tmp_path, to="sparsify")
    assert (tmp_path / "sae.safetensors").read_text() == "mine"


@pytest.mark.parametrize("to", ["sparsify", "osae"])
def test_files_left_by_a_killed_command_do_not_count(to, tmp_path):
    (tmp_path / ".sae.safetensors.999999999.part").mkdir()
    (tmp_path / ".osae.lock").write_text("")
    convert(random_sae("TopK", 4, 8, 2, seed=0), tmp_path, to=to)
    assert load(tmp_path).units == 8


def test_unknown_library_is_named(tmp_path, unchecked_shapes):
    with pytest.raises(ValueError, match="saelens, dictionary_learning, sparsify, osae"):
        convert(random_sae("TopK", 4, 8, 2, seed=0), tmp_path, to="keras")  # pyright: ignore


def test_matrices_alone_cannot_be_written(tmp_path):
    loaded = load(Path(__file__).parents[1] / "golden" / "saelens-abstopk")
    with pytest.raises(ValueError, match="only its matrices"):
        convert(loaded, tmp_path, to="osae")
