"""Sources: the same rows for the same block number, in whatever order they are asked for."""

import itertools
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch

from osae.config import from_json, to_json
from osae.data import harvest as harvesting
from osae.data.harvest import Harvest, harvest
from osae.data.shards import Shards, write_shards
from osae.data.source import Live, LiveRows, MemoryRows, MixedRows, OnDisk, ShardRows, Source, open_source
from osae.data.text import TextFiles
from osae.data.worlds import SparseWorld
from osae.training.loop import Batches
from tests.data.tiny import documents, saved_model, saved_text


@pytest.fixture
def shards(tmp_path):
    rows = torch.randn(103, 4, generator=torch.Generator().manual_seed(0))
    return write_shards(tmp_path / "acts", [rows], rows_per_shard=30)


@pytest.mark.parametrize("limit", [None, 1, 7, 20, 25, 103, 1000])
def test_blocks_from_disk_are_equal_and_hold_all_rows_but_the_remainder(shards, limit):
    source = ShardRows(shards, limit)
    whole, made = shards.read(0, 103), [source.block(index) for index in range(source.count)]
    assert {len(block) for block in made} == {source.rows}
    assert source.rows <= (limit or 103)
    assert 103 - source.rows * source.count < source.count
    assert torch.equal(torch.cat(made), whole[: source.rows * source.count])
    assert torch.equal(source.block(source.count + source.count // 2), made[source.count // 2])
    assert isinstance(source, Source)


def test_blocks_from_disk_are_the_same_in_any_order(shards):
    straight = ShardRows(shards, 25)
    expected = [straight.block(index).clone() for index in range(straight.count)]
    other = ShardRows(shards, 25)
    for index in (3, 0, 0, 7, 8, 2, 9, 1, 6, 5, 5, 4, 103):
        assert torch.equal(other.block(index), expected[index % other.count])


def test_the_next_block_is_read_while_one_is_in_use(shards, monkeypatch):
    read, threads, done = Shards.read, [], threading.Event()

    def told(self, start, stop):
        threads.append((threading.current_thread().name.startswith("osae-reader"), start // 20))
        if len(threads) == 2:
            done.set()
        return read(self, start, stop)

    monkeypatch.setattr(Shards, "read", told)
    source = ShardRows(shards, 25)
    source.block(0)
    assert done.wait(10)
    source.block(1)
    assert threads[:2] == [(False, 0), (True, 1)]
    assert (False, 1) not in threads


def test_a_damaged_block_is_refused_when_its_turn_comes(shards):
    source = ShardRows(shards, 25)
    file = shards.shards[1].file
    file.write_bytes(file.read_bytes()[:-40])
    source.block(0)
    with pytest.raises(ValueError, match=r"is not the file that manifest\.json was written for"):
        source.block(1)


def test_a_process_ends_while_a_block_is_being_read(shards):
    script = (
        "import sys, time; from osae.data import source, shards; read = shards.Shards.read\n"
        "shards.Shards.read = lambda *a: (time.sleep(0.3), read(*a))[1]\n"
        "print(len(source.ShardRows(shards.Shards(sys.argv[1]), 25).block(0)))"
    )
    words = [sys.executable, "-c", script, str(shards.path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "20\n", "")


# --- rows mixed over all the data ---------------------------------------------------------------------


@pytest.fixture
def numbered(tmp_path):
    """Rows that know their own number."""
    rows = torch.arange(103.0)[:, None].expand(103, 4).contiguous()
    return write_shards(tmp_path / "numbered", [rows], rows_per_shard=30)


def taken(shards, seed, batch, limit, steps, source=None):
    batches = Batches(source or MixedRows(shards, limit), seed, batch)
    return [batches.at(step)[:, 0].long().tolist() for step in steps]


@pytest.mark.parametrize("limit", [None, 7, 25])
@pytest.mark.parametrize("batch", [1, 10, 103, 250])
def test_every_epoch_uses_every_row_once_whatever_the_batch(numbered, limit, batch):
    """Also a batch that is larger than a block, or than all the data."""
    batches = taken(numbered, 5, batch, limit, range(-(-3 * 103 // batch)))
    stream = list(itertools.chain.from_iterable(batches))
    epochs = [stream[start : start + 103] for start in (0, 103, 206)]
    assert all(sorted(epoch) == list(range(103)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3  # each in an order of its own


@pytest.mark.parametrize("runs", [1, 3, 2048])
def test_blocks_are_drawn_from_all_the_data_for_every_seed_and_epoch(numbered, runs, monkeypatch):
    monkeypatch.setattr("osae.data.source.RUNS", runs)
    source = MixedRows(numbered, 25)
    contents = {}
    for seed in (0, 1):
        for index in range(2 * source.count):
            block = source.block(index, seed)[:, 0].long().tolist()
            contents[seed, index] = set(block)
            if runs > 1:
                assert max(block) - min(block) > len(block)  # not neighbours alone
        for epoch in (0, source.count):
            blocks = [contents[seed, epoch + number] for number in range(source.count)]
            assert set.union(*blocks) == set(range(103))
            assert sum(map(len, blocks)) == 103
    assert contents[0, 0] != contents[1, 0] != contents[1, source.count]


class Huge(Shards):
    """More activations than a test can write."""

    rows = 10**8

    def __init__(self, width):
        self.width = width


def test_a_block_holds_as_many_runs_whatever_the_width():
    for width in (8, 512, 4096):
        source = MixedRows(Huge(width))
        assert 2048 <= source.length / source.run < 4100
        assert source.length * width <= 2**26


def test_any_batch_can_be_taken_first_as_after_a_resume(numbered):
    straight = taken(numbered, 3, 10, 25, range(15))
    for step in (7, 11):
        assert taken(numbered, 3, 10, 25, range(step, 15)) == straight[step:]
    source = MixedRows(numbered, 25)
    both = [Batches(source, seed, 10) for seed in (3, 4)]
    mixed = [batches.at(step)[:, 0].long().tolist() for step in range(15) for batches in both]
    assert mixed[::2] == straight  # another seed on the same source changes nothing
    source.forget()
    assert taken(numbered, 3, 10, 25, [13], source) == straight[13:14]


def test_rows_that_fit_into_one_block_are_read_once(numbered, monkeypatch):
    calls, read = [], Shards.read
    monkeypatch.setattr(Shards, "read", lambda self, *at: (calls.append(at), read(self, *at))[1])
    source = MixedRows(numbered)
    assert taken(numbered, 0, 103, None, range(3), source) != taken(numbered, 1, 103, None, range(3), source)
    source.forget()
    source.block(7)
    assert calls.count((0, 103)) == 1  # readers of other tests may still be at work
    assert isinstance(source, Source)


def test_the_next_mixed_block_is_read_while_one_is_in_use(numbered, monkeypatch):
    threads, done, read = [], threading.Event(), MixedRows._read

    def told(self, index, seed):
        threads.append((threading.current_thread().name.startswith("osae-reader"), index))
        rows = read(self, index, seed)
        if len(threads) == 2:
            done.set()
        return rows

    monkeypatch.setattr(MixedRows, "_read", told)
    source = MixedRows(numbered, 25)
    source.block(0)
    assert done.wait(10)
    source.block(1)
    assert threads[:2] == [(False, 0), (True, 1)]
    assert (False, 1) not in threads


def test_runs_of_release_0_1_0_keep_their_order_of_rows(shards):
    old = from_json({"kind": "OnDisk", "path": str(shards.path), "sha256": ""})
    assert isinstance(open_source(old), ShardRows)
    assert from_json(to_json(old)) == old
    new = OnDisk(str(shards.path))
    assert isinstance(open_source(from_json(to_json(new))), MixedRows)
    with pytest.raises(ValueError, match="mixing=3: this release supports 1 and 2"):
        OnDisk("acts", mixing=3)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    text = TextFiles((str(saved_text(folder / "a.jsonl", documents(60))),))
    model = str(saved_model(folder / "model"))
    return Harvest(model, text, 10_000, layer=2, context=8, block=200)


@pytest.mark.parametrize(("block", "max_norm"), [(200, 10.0), (520, 10.0), (999, 10.0), (200, 1.5)])
def test_live_blocks_are_those_that_a_harvest_writes_and_use_every_row(spec, block, max_norm, tmp_path):
    spec = replace(spec, tokens=1000, block=block, max_norm=max_norm)
    stored, _ = harvest(spec, tmp_path / "acts", dtype="float32", device="cpu")
    live = LiveRows(Live(spec), "cpu")
    assert live.count == len(stored.shards) == -(-1000 // block)
    assert stored.rows + stored.manifest["outliers"] == 1000
    assert (stored.manifest["outliers"] > 0) == (max_norm < 10)
    first = 0
    for index, shard in enumerate(stored.shards):
        rows = stored.read(first, first + shard.rows)
        made = live.block(index)
        assert len(made) == live.rows < min(block, 1000 / live.count) + spec.context
        assert torch.equal(made[: shard.rows], rows)
        assert torch.equal(made[shard.rows :], rows[: live.rows - shard.rows])  # filled up
        first += shard.rows
    assert torch.equal(live.block(live.count), LiveRows(Live(spec), "cpu").block(0))
    assert isinstance(live, Source)


def test_little_text_makes_one_live_block(spec):
    live = LiveRows(Live(replace(spec, tokens=1)), "cpu")
    assert (live.count, live.rows, tuple(live.block(5).shape)) == (1, 1, (1, 16))


def test_so_many_tokens_go_through_the_model_at_once_as_were_asked_for(spec, monkeypatch):
    live, sizes = LiveRows(Live(spec, batch_tokens=24), "cpu"), []
    real = live.lm.activations
    monkeypatch.setattr(live.lm, "activations", lambda ids: (sizes.append(ids.numel()), real(ids))[1])
    live.block(0)
    assert 16 < max(sizes) <= 24


def test_contexts_that_are_kept_are_not_cut_again_unless_they_are_damaged(spec, tmp_path, monkeypatch):
    spec, real, cut = Live(replace(spec, tokens=300)), harvesting.build_contexts, []
    monkeypatch.setattr(harvesting, "build_contexts", lambda *given: (cut.append(1), real(*given))[1])
    blocks = [LiveRows(spec, "cpu", folder=tmp_path).block(1) for _ in range(2)]
    assert torch.equal(*blocks)
    assert len(cut) == 1
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert torch.equal(blocks[0], LiveRows(spec, "cpu", folder=tmp_path).block(1))
    assert len(cut) == 2
    assert list(tmp_path.iterdir()) == [kept]
    harvesting.forget_contexts(tmp_path)
    assert not kept.exists()


def test_what_a_specification_names_is_opened(shards, spec):
    digest = shards.provenance()["sha256"]
    kept = OnDisk(str(shards.path), digest)
    assert isinstance(open_source(kept), MixedRows)
    assert isinstance(open_source(OnDisk(str(shards.path))), MixedRows)
    assert isinstance(open_source(Live(spec), "cpu"), LiveRows)
    assert isinstance(open_source(SparseWorld(width=4, units=4, active=1, samples=50)), MemoryRows)
    assert [from_json(to_json(each)) for each in (kept, Live(spec))] == [kept, Live(spec)]
    with pytest.raises(ValueError, match="differs from the activations that this run started with"):
        open_source(replace(kept, sha256="0" * 64))
