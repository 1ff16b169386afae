"""Waiting for rows is a share of the time of training."""

import time

import pytest
import torch

from benchmarks.speed import reading
from osae.data.shards import write_shards
from osae.data.source import MixedRows


@pytest.fixture
def shards(tmp_path):
    rows = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    return write_shards(tmp_path / "acts", [rows], rows_per_shard=500)


def measure(shards, limit=1000):
    return reading.measure_waiting(shards, units=16, k=2, batch=100, blocks=3, limit=limit)


def test_a_slow_disk_is_waited_for(shards, monkeypatch):
    measure(shards)  # compiles the kernels
    fast, read = measure(shards), MixedRows._read
    assert fast["rows"] == 3000

    def slowly(self, index, seed):
        time.sleep(1)
        return read(self, index, seed)

    monkeypatch.setattr(MixedRows, "_read", slowly)
    slow = measure(shards)
    assert slow["share_waiting"] > max(0.5, fast["share_waiting"])
    assert slow["rows_a_second_reading_alone"] < 1100


def test_a_single_block_is_refused(shards):
    with pytest.raises(ValueError, match="2000 rows are one block"):
        measure(shards, limit=2000)
