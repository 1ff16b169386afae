"""SAEs that scale each input on its own: what the scaling does, and that every study accounts for it."""

import json
from dataclasses import replace

import pytest
import torch

from osae import passes
from osae.config import from_json, to_json
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.recipes import Task, recipe
from osae.scaling import ConstantNorm, LayerNorm, measure_scale
from osae.sparsify import JumpReLU, ReLU, TopK
from osae.studies.compare import compare
from osae.studies.evaluate import evaluate
from osae.studies.order import order
from osae.studies.stitch import stitch

WIDTH, UNITS = 6, 16
SCALINGS = [LayerNorm(), ConstantNorm()]
SPARSIFIERS = [TopK(3), ReLU(), JumpReLU()]


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def make_sae(scaling, sparsifier=None, seed=0):
    sae = SAE(
        SAEConfig(WIDTH, UNITS, sparsifier or TopK(3), scaling=scaling),
        generator=torch.Generator().manual_seed(seed),
    )
    sae.encoder.add_(0.3 * noise(UNITS, WIDTH, seed=seed + 1))
    sae.encoder_bias.copy_(0.2 * noise(UNITS, seed=seed + 2))
    sae.decoder_bias.copy_(0.4 * noise(WIDTH, seed=seed + 3))
    sae.threshold.fill_(0.2)
    return sae


def without(sae):
    return SAE.from_tensors(replace(sae.config, scaling=None), sae.state_dict())


X = noise(200, WIDTH, seed=9) * torch.linspace(0.5, 20, 200)[:, None] + 3


def scaled(scaling, x):
    """The definition: the scaled rows, and the function that undoes it."""
    if isinstance(scaling, LayerNorm):
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True)
        return (x - mean) / (deviation + scaling.epsilon), lambda y: y * deviation + mean
    factor = WIDTH**0.5 / x.norm(dim=1, keepdim=True)
    return x * factor, lambda y: y / factor


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@torch.no_grad()
def test_it_encodes_the_scaled_input_and_undoes_the_scaling_on_the_output(scaling, sparsifier):
    sae = make_sae(scaling, sparsifier)
    rows, undo = scaled(scaling, X)
    expected, code = without(sae)(rows)
    found, own = sae(X)
    torch.testing.assert_close(own.dense(UNITS), code.dense(UNITS))
    torch.testing.assert_close(found, undo(expected), atol=1e-4, rtol=1e-5)
    batched = sae(X.reshape(10, 20, WIDTH))
    torch.testing.assert_close(batched.reconstruction.reshape(-1, WIDTH), found)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@torch.no_grad()
def test_values_in_units_of_the_input_add_up_to_the_reconstruction(scaling):
    sae = make_sae(scaling)
    output = sae(X)
    code, offset = sae.unscale(output.code, X)
    torch.testing.assert_close(offset + code.dense(UNITS) @ sae.decoder, output.reconstruction)


@torch.no_grad()
def test_scaled_inputs_may_be_scaled_or_zero():
    sae = make_sae(ConstantNorm())
    torch.testing.assert_close(sae(7 * X).reconstruction, 7 * sae(X).reconstruction, atol=1e-3, rtol=1e-4)
    assert sae(torch.zeros(2, WIDTH)).reconstruction.isfinite().all()
    same = torch.full((1, WIDTH), 5.0)
    torch.testing.assert_close(make_sae(LayerNorm())(same).reconstruction, same)
    assert torch.equal(measure_scale(LayerNorm(), same).factor, torch.zeros(1, 1))


def test_decoding_needs_the_inputs():
    sae = make_sae(LayerNorm())
    with pytest.raises(ValueError, match=r"pass the inputs as well, decode\(code, x\)"):
        sae.decode(sae.encode(X))
    loaded = load(sae)
    torch.testing.assert_close(loaded.decode(loaded.encode(X.numpy()), X.numpy()), loaded(X))


@pytest.mark.parametrize("scaling", [*SCALINGS, None], ids=str)
def test_it_is_saved_with_the_sae_and_left_out_where_there_is_none(scaling, tmp_path):
    sae = make_sae(scaling)
    sae.save(tmp_path)
    assert SAE.load(tmp_path).config == sae.config
    stored = json.loads((tmp_path / "sae.json").read_text())["config"]
    assert ("scaling" in stored) == (scaling is not None)  # what earlier releases wrote stays equal
    assert from_json(to_json(sae.config)) == sae.config
    assert ("scaling" in repr(sae)) == (scaling is not None)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@torch.no_grad()
def test_evaluation_compares_with_the_unscaled_input(scaling):
    sae = make_sae(scaling)
    found = evaluate(sae, X, model="none").saes[0]
    error = (X - sae(X).reconstruction).double().square().mean()
    assert found.measures["mse"] == pytest.approx(float(error), rel=1e-5)
    assert found.prefixes[-1].measures["mse"] == pytest.approx(float(error), rel=1e-4)
    code, offset = sae.unscale(sae.encode(X), X)
    dense = code.dense(UNITS)
    for prefix in found.prefixes:
        partial = offset + dense[:, : prefix.length] @ sae.decoder[: prefix.length]
        assert prefix.measures["mse"] == pytest.approx(float((X - partial).square().mean()), rel=1e-4)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@torch.no_grad()
def test_comparison_and_stitching_do_so_too(scaling):
    first, second = make_sae(scaling), make_sae(None, seed=20)
    error = (X - first(X).reconstruction).double().square().mean()
    result = compare([first, second], data=X, chance_draws=0)
    assert result.saes[0].reconstruction.measures["mse"] == pytest.approx(float(error), rel=1e-5)  # pyright: ignore
    added = stitch(second, first, X)
    code, _ = first.unscale(first.encode(X), X)
    residual = X - second(X).reconstruction
    with_unit = residual[:, None] - code.dense(UNITS)[..., None] * first.decoder
    change = (with_unit.square().sum(-1) - residual.square().sum(-1, keepdim=True)).mean(0)
    torch.testing.assert_close(torch.tensor(added.change), change, atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@torch.no_grad()
def test_an_ordered_sae_keeps_its_scaling_and_is_ordered_by_what_it_does_to_the_input(scaling):
    sae = make_sae(scaling)
    result = order(sae, X, by="energy")
    torch.testing.assert_close(result.sae(X).reconstruction, sae(X).reconstruction)
    code, offset = sae.unscale(sae.encode(X), X)
    dense, rest = code.dense(UNITS), X - offset
    gains = [
        float(rest.square().sum() - (rest - dense[:, unit, None] * sae.decoder[unit]).square().sum())
        for unit in range(UNITS)
    ]
    assert list(result.order) == sorted(range(UNITS), key=lambda unit: -gains[unit])
    assert passes.reconstruct(sae, [X]).mse == pytest.approx(
        float((X - sae(X).reconstruction).square().mean()), rel=1e-4
    )


def test_training_refuses_it():
    made = recipe("topk", Task(width=WIDTH, units=UNITS, k=3, samples=10_000))
    with pytest.raises(ValueError, match="cannot be used in training"):
        replace(made, sae=replace(made.sae, scaling=LayerNorm()))


def test_one_number_has_no_deviation():
    with pytest.raises(ValueError, match="width=1"):
        SAEConfig(1, 4, TopK(1), scaling=LayerNorm())
