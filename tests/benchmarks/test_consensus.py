"""The consensus of several SAEs has what they share, whatever their order and that of their units."""

import pytest
import torch
from torch.nn.functional import normalize

from benchmarks.language.consensus import find_consensus
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK

SAME = 0.6


def _make_sae(atoms, bias=0.0):
    sae = SAE(SAEConfig(atoms.shape[1], len(atoms), TopK(2)), atoms=atoms).requires_grad_(False)
    sae.encoder_bias.fill_(bias)
    return sae


def _draw_atoms(units, width=24, seed=0):
    return normalize(torch.randn(units, width, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _shuffle(sae, seed):
    return sae.reorder(torch.randperm(sae.config.units, generator=torch.Generator().manual_seed(seed)))


def _assert_same_units(a, b):
    nearest = (a.decoder @ b.decoder.T).max(1)
    torch.testing.assert_close(nearest.values, torch.ones(a.config.units))
    assert sorted(nearest.indices.tolist()) == list(range(b.config.units))
    for name in ("encoder", "encoder_bias", "threshold"):
        torch.testing.assert_close(a.state_dict()[name], b.state_dict()[name][nearest.indices])


@pytest.mark.parametrize("copies", [1, 4])
def test_the_consensus_of_copies_of_an_sae_is_that_sae(copies):
    sae = _make_sae(_draw_atoms(12), bias=0.25)
    found = find_consensus([_shuffle(sae, n) for n in range(copies)], SAME)
    _assert_same_units(found.sae, sae)
    torch.testing.assert_close(found.scores, torch.ones(12))


def test_atoms_that_count_as_one_unit_still_fill_the_dictionary():
    atoms = _draw_atoms(6)
    near = normalize(atoms + 0.1 * _draw_atoms(6, seed=1), dim=-1)
    sae = _make_sae(torch.cat([atoms, near]))
    assert bool(((atoms * near).sum(1) > SAME).all())
    found = find_consensus([sae, sae, sae], SAME).sae
    assert found.config.units == 12
    assert bool(found.decoder.isfinite().all())
    torch.testing.assert_close(found.decoder.norm(dim=1), torch.ones(12))


def test_neither_the_order_of_runs_nor_that_of_units_changes_the_set_of_units():
    shared = _draw_atoms(8)
    saes = [
        _make_sae(
            normalize(
                torch.cat([shared + 0.08 * _draw_atoms(8, seed=n), _draw_atoms(4, seed=50 + n)]), dim=-1
            )
        )
        for n in range(1, 5)
    ]
    found = find_consensus(saes, SAME)
    again = find_consensus([_shuffle(sae, n) for n, sae in enumerate(reversed(saes))], SAME)
    torch.testing.assert_close(found.scores[:8], again.scores[:8])
    first, other = found.sae.decoder[:8], again.sae.decoder[:8]
    torch.testing.assert_close((first @ other.T).amax(1), torch.ones(8))


def test_units_that_most_runs_find_come_first_and_are_nearer_to_the_truth_than_any_run():
    shared, runs = _draw_atoms(8), 6
    noisy = [normalize(shared + 0.5 * _draw_atoms(8, seed=20 + n), dim=-1) for n in range(runs)]
    saes = [_make_sae(torch.cat([_draw_atoms(4, seed=n + 1), each])) for n, each in enumerate(noisy)]
    found = find_consensus(saes, SAME)
    nearest = (shared @ found.sae.decoder[:8].T).amax(1)
    assert float(nearest.mean()) > max(float((shared * each).sum(1).mean()) for each in noisy)
    assert bool((found.scores[:8] > found.scores[8:].max()).all())
    assert bool((found.scores <= 1 + 1e-6).all())
