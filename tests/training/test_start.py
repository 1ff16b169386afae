"""The start of training: threads do not change it, clusters are found, and a penalty acts on encoders."""

import pytest
import torch

from osae.config import alter
from osae.recipes import Adam, FromData, FromKMeans, Task, recipe, world_recipe
from osae.training.member import Member
from osae.training.simple import fit
from osae.training.start import cluster_directions

CHANGES = {"start": FromData(10_000), "rescale": True, "sae.decoder_bias": True}


@pytest.mark.parametrize(
    ("count", "width"), [(1820, 313), (20_000, 300)]
)  # eigenvectors and sums would differ
def test_threads_do_not_change_a_bit_of_the_data_start(count, width):
    made = alter(world_recipe("osae", Task(width, units=400, k=4, samples=4000, batch=100)), CHANGES)
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(Member(made, 0, rows).finish().state_dict())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, found[0][name]) for state in found for name, tensor in state.items())


def test_k_means_finds_the_directions_of_separate_clusters():
    source = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(5, 12, generator=source), dim=-1)
    labels = torch.arange(2000) % 5
    lengths = 0.5 + torch.rand(2000, 1, generator=source)
    rows = lengths * (centres[labels] + 0.02 * torch.randn(2000, 12, generator=source))
    found = cluster_directions(rows, 5, rounds=5)
    assert found.shape == (5, 12)
    torch.testing.assert_close(found, centres, atol=0.01, rtol=0)
    assert cluster_directions(rows[:3], 5, rounds=1).shape == (3, 12)


def test_the_start_from_clusters_has_unit_atoms_and_depends_on_the_seed():
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(1)) + 5
    made = alter(
        world_recipe("topk", Task(width=8, units=20, k=2, samples=400, batch=100)), {"start": FromKMeans(200)}
    )
    first, again, other = (Member(made, seed, rows).finish().decoder.detach() for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(20))
    # around the mean: without it, all atoms would point the same way
    assert float((first @ first.T).mean()) < 0.3
    with pytest.raises(ValueError, match="samples=0, rounds=10: both must be at least 1"):
        FromKMeans(0)


def test_a_weight_penalty_shrinks_encoders_and_leaves_atoms_at_norm_one():
    rows = torch.randn(2000, 8, generator=torch.Generator().manual_seed(2))
    task, norms = Task(width=8, units=10, k=2, samples=10_000, batch=200), []
    for penalty in (0.0, 3.0):
        made = alter(recipe("topk-penalised", task), {"adam.weight_penalty": penalty})
        sae = fit(made, rows, progress=False)
        torch.testing.assert_close(sae.decoder.norm(dim=1), torch.ones(10))
        norms.append(float(sae.encoder.detach().norm()))
    assert norms[1] < 0.8 * norms[0]
    with pytest.raises(ValueError, match="weight_penalty=-1"):
        Adam(weight_penalty=-1.0)
