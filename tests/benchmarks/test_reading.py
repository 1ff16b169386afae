"""Waiting for rows is a share of the time of training, over as many blocks as asked for."""

import torch

from benchmarks.reading import measured
from osae.data.shards import write_shards


def test_waiting_is_a_share_of_the_time(tmp_path):
    rows = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    shards = write_shards(tmp_path / "acts", [rows], rows_per_shard=500)
    found = measured(shards, units=16, k=2, batch=100, blocks=3, limit=1000)
    assert found["rows"] == 3000
    assert 0 <= found["share_waiting"] < 1
    assert min(found["rows_a_second"], found["rows_a_second_reading_alone"]) > 0
