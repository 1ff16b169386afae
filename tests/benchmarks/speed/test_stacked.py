"""Stacked SAEs take the same step as SAEs on their own, so their times can be compared."""

import torch

from benchmarks.speed.stacked import Stacked, make_members, measure_stacking


def test_stacked_step_is_the_step_of_each_sae():
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    members = make_members(3, x, units=16, k=3)
    stacked = Stacked(members)
    for _ in range(5):
        stacked.step(x)
        for member in members:
            member.advance(x, 0)
    for place, member in enumerate(members):
        torch.testing.assert_close(stacked.decoder[place], member.sae.decoder, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(stacked.bias[place], member.sae.encoder_bias, rtol=1e-3, atol=1e-4)


def test_times_are_per_sae():
    found = measure_stacking(2, 2, width=8, units=8, k=2)
    assert min(found["one_by_one_ms"], found["stacked_ms"], found["stacked_speedup"]) > 0
