"""Modes: found again from other rows, and units that start as modes explain what they are fitted to."""

import pytest
import torch
from torch.nn.functional import normalize

from osae import metrics
from osae.config import alter
from osae.data.worlds import SparseWorld
from osae.model import SAE, SAEConfig
from osae.recipes import FromModes, FromNoise, Task, recipe
from osae.sparsify import TopK
from osae.training.member import Member
from osae.training.modes import climb, find_modes, fit_atoms_, merge, whitening

SHARES = (0.2, 0.1, 0.05)


def _world_rows(part, samples=4000, width=16, units=12):
    """Return sparse positive codes times fixed atoms, and the atoms; parts have no row in common."""
    atoms = normalize(torch.randn(units, width, generator=torch.Generator().manual_seed(0)), dim=-1)
    source = torch.Generator().manual_seed(part + 1)
    codes = torch.rand(samples, units, generator=source) + 0.5
    codes *= torch.rand(samples, units, generator=source) < 0.1
    noise = 0.01 * torch.randn(samples, width, generator=source)
    return codes @ atoms + noise, atoms


def _white(rows):
    centred = rows - rows.mean(0)
    return centred @ whitening(centred, floor=0.01)


def test_whitened_rows_have_the_same_variance_in_every_direction():
    rows, _ = _world_rows(0, width=8, units=8)
    variances = torch.linalg.eigvalsh(_white(rows).T.cov())
    torch.testing.assert_close(variances, torch.ones(8), atol=0.2, rtol=0)


@pytest.mark.parametrize("part", [0, 1])
def test_every_atom_of_a_world_is_found_as_a_mode(part):
    rows, atoms = _world_rows(part)
    white = _white(rows)
    found = find_modes(white, SHARES, 64, torch.Generator().manual_seed(part)).directions
    wanted = normalize(atoms @ whitening(rows - rows.mean(0), floor=0.01), dim=-1)
    assert float((wanted @ found.T).amax(1).min()) > 0.9


def test_a_mode_stays_where_it_is():
    white = _white(_world_rows(0)[0])
    start = normalize(white[:32], dim=-1)
    there = climb(start, white, 0.1, 40)
    again = climb(there, white, 0.1, 1)
    assert float((there * again).sum(-1).min()) > 0.999
    assert float((there * start).sum(-1).max()) < 0.999


def test_merging_leaves_directions_that_differ():
    directions = normalize(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    merged = merge(torch.cat([directions, directions]))
    assert len(merged) <= 40
    assert len(merge(merge(merged))) == len(merge(merged))
    torch.testing.assert_close(merged.norm(dim=-1), torch.ones(len(merged)))


def test_fitted_atoms_explain_the_rows_at_least_as_well_as_any_others():
    rows, _ = _world_rows(0)
    sae = SAE(SAEConfig(16, 20, TopK(3)), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        sae.decoder_bias.copy_(rows.mean(0))
    code = sae.encode(rows).dense(20)
    before = _error(rows, code @ sae.decoder + sae.decoder_bias)
    encoder = sae.encoder.detach().clone()
    fit_atoms_(sae, rows)
    # the codes that the atoms were fitted to, in the new scale of each unit
    scale = sae.encoder.norm(dim=-1) / encoder.norm(dim=-1)
    after = _error(rows, (code * scale) @ sae.decoder + sae.decoder_bias)
    moved = sae.decoder + 0.02 * torch.randn(20, 16, generator=torch.Generator().manual_seed(4))
    assert after < before
    assert after < _error(rows, (code * scale) @ moved + sae.decoder_bias)
    torch.testing.assert_close(sae.decoder.norm(dim=-1), torch.ones(20))


def _error(rows, reconstruction):
    return float((rows - reconstruction.detach()).square().sum(-1).mean())


def test_a_unit_that_never_fires_keeps_its_atom():
    rows, _ = _world_rows(0)
    sae = SAE(SAEConfig(16, 20, TopK(3)), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        sae.encoder_bias[7] = -1e6
    atom = sae.decoder[7].detach().clone()
    fit_atoms_(sae, rows)
    assert torch.equal(sae.decoder[7], atom)


@pytest.mark.parametrize("units", [8, 40])
def test_starts_from_modes_agree_more_than_starts_from_noise(units):
    task = Task(width=16, units=units, k=2, samples=400, batch=100)
    agreement = {}
    for start in (FromModes(4000, SHARES), FromNoise()):
        made = alter(recipe("topk", task), {"start": start})
        a, b = (Member(made, part, _world_rows(part)[0]).finish().decoder.detach() for part in (0, 1))
        assert a.shape == (units, 16)
        agreement[type(start)] = metrics.stability(a, b)
    assert agreement[FromModes] > agreement[FromNoise] + 0.1


def test_the_start_from_modes_is_a_function_of_rows_and_seed():
    rows = SparseWorld(8, 12, 2, samples=600).draw("train").x
    task = Task(width=8, units=12, k=2, samples=400, batch=100)
    made = alter(recipe("topk", task), {"start": FromModes(300, SHARES)})
    first, again, other = (Member(made, seed, rows).finish().state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["decoder"], other["decoder"])


@pytest.mark.parametrize("wrong", [{"samples": 1}, {"shares": ()}, {"shares": (0.5, 1.0)}])
def test_a_start_from_modes_names_what_is_wrong(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        FromModes(**wrong)
