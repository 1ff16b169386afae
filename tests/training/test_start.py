"""The start of training does not depend on the number of threads."""

import torch

from osae.config import alter
from osae.recipes import FromData, Task, world_recipe
from osae.training.member import Member

CHANGES = {"start": FromData(10_000), "rescale": True, "sae.decoder_bias": True}
RECIPE = alter(world_recipe("osae", Task(width=300, units=400, k=4, samples=4000, batch=100)), CHANGES)


def test_threads_do_not_change_a_bit_of_the_data_start():
    rows = torch.randn(20_000, 300, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 3, 300)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(Member(RECIPE, 0, rows).finish().state_dict())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, found[0][name]) for state in found for name, tensor in state.items())
