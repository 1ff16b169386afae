"""The terms of the loss against their definitions, and who gets a gradient."""

import pytest
import torch

from osae.model import SAE, SAEConfig
from osae.objective import objective
from osae.prefix import Full, Uniform, prefix_weights
from osae.revival import AuxK
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK, jump
from tests.test_model import UNITS, WIDTH, random_sae

PLAIN = prefix_weights(Full(), UNITS)


@pytest.mark.parametrize(
    "sparsifier", [ReLU(0.0), TopK(3), BatchTopK(3), JumpReLU(0.0)], ids=lambda s: type(s).__name__
)
def test_plain_objective_is_the_squared_error(sparsifier):
    sae, x = random_sae(sparsifier), torch.randn(20, WIDTH)
    terms = objective(sae, x, k=3, weights=PLAIN)
    reconstruction = sae.decode(sae.encode(x, k=3))
    torch.testing.assert_close(terms.total, (x - reconstruction).square().sum(1).mean())


def test_l1_penalizes_the_sum_of_the_values():
    sae, x = random_sae(ReLU(0.3)), torch.randn(20, WIDTH)
    terms = objective(sae, x, k=None, weights=PLAIN)
    torch.testing.assert_close(terms.penalty, 0.3 * sae.encode(x).values.abs().sum(1).mean())


def test_l0_penalizes_each_unit_that_fires():
    sae, x = random_sae(JumpReLU(0.5)), torch.randn(20, WIDTH)
    terms = objective(sae, x, k=None, weights=PLAIN)
    torch.testing.assert_close(terms.penalty, 0.5 * (sae.encode(x).values > 0).float().sum(1).mean())
    terms.penalty.backward()
    assert sae.threshold.grad is not None
    assert bool((sae.threshold.grad != 0).any())


def test_auxk_reaches_encoder_and_decoder_of_dead_units_and_nobody_else():
    sae = random_sae(TopK(2))
    dead = torch.zeros(UNITS, dtype=torch.bool)
    dead[[3, 7]] = True
    x = torch.randn(50, WIDTH)
    revival = objective(sae, x, k=2, weights=PLAIN, dead=dead, aux=AuxK(2, 0.5)).revival
    revival.backward()
    for gradient in (sae.encoder.grad, sae.decoder.grad, sae.encoder_bias.grad.unsqueeze(-1)):
        moved = gradient.abs().sum(-1) > 0
        assert torch.equal(moved, dead)
    assert sae.decoder_bias.grad is None or not bool(sae.decoder_bias.grad.any())


def test_auxk_is_the_error_of_the_dead_units_on_the_residual():
    sae = random_sae(TopK(2))
    dead = torch.arange(UNITS) >= 8
    x = torch.randn(30, WIDTH)
    residual = x - sae.decode(sae.encode(x))
    pre = ((x - sae.decoder_bias) @ sae.encoder.T + sae.encoder_bias)[:, 8:].relu()
    best = pre.max(1)
    explained = best.values.unsqueeze(1) * sae.decoder[8:][best.indices]
    expected = 0.5 * (residual - explained).square().sum(1).mean()
    terms = objective(sae, x, k=2, weights=PLAIN, dead=dead, aux=AuxK(1, 0.5))
    torch.testing.assert_close(terms.revival, expected)


@pytest.mark.parametrize("dead", [None, torch.zeros(UNITS, dtype=torch.bool)])
def test_without_dead_units_revival_costs_nothing(dead):
    sae = random_sae(TopK(2))
    terms = objective(sae, torch.randn(5, WIDTH), k=2, weights=PLAIN, dead=dead, aux=AuxK(1))
    assert float(terms.revival) == 0


def test_objective_changes_nothing():
    sae, x = random_sae(TopK(2)), torch.randn(5, WIDTH)
    before = {name: value.clone() for name, value in sae.state_dict().items()}
    objective(sae, x, k=4, weights=prefix_weights(Uniform(), UNITS))
    assert all(torch.equal(value, before[name]) for name, value in sae.state_dict().items())


def test_k_chooses_how_many_units_fire():
    sae = SAE(SAEConfig(WIDTH, UNITS, TopK(2)))
    with torch.no_grad():
        sae.encoder_bias += 10
    for k in (1, 5, UNITS):
        assert int((objective(sae, torch.randn(4, WIDTH), k=k, weights=PLAIN).code.values > 0).sum()) == 4 * k


def test_jump_thresholds_learn_from_both_sides_of_the_jump():
    """The gradient through the objective is that of a plain dense loss, units just below included."""
    sae, x = random_sae(JumpReLU(0.0, 0.5, 0.3)), torch.randn(200, WIDTH)
    weights = prefix_weights(Uniform(), UNITS)
    objective(sae, x, k=None, weights=weights).total.backward()
    found = sae.threshold.grad.clone()
    sae.threshold.grad = None
    code = jump(sae.pre_activations(x - sae.decoder_bias), sae.threshold, 0.5)
    losses = [
        weights[n - 1] * (x - sae.decoder_bias - code[:, :n] @ sae.decoder[:n]).square().sum(1)
        for n in range(1, UNITS + 1)
    ]
    torch.stack(losses).sum(0).mean().float().backward()
    torch.testing.assert_close(found, sae.threshold.grad, rtol=1e-3, atol=1e-5)
    below = objective(sae, x, k=None, weights=weights).code
    assert int((below.values > 0).sum()) < x.shape[0] * UNITS
