"""Folders on an object store hold what folders here would, and never less than they say.

The store of most tests is fsspec's own in memory; `tests/test_s3.py` does the same against an S3 server.
"""

import fsspec
import pytest
import torch

import osae
from osae.cli import main
from osae.data.shards import Shards, write_shards
from osae.data.source import MixedRows
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
from osae.stores import Mirror, Store, find_copy, is_remote, open_place
from osae.training import run
from tests.stored import TRAIN, files_at, stored_files

HERE = "memory://bucket"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("OSAE_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


@pytest.fixture
def rows():
    return torch.randn(300, 6, generator=torch.Generator().manual_seed(0))


def test_only_a_url_is_remote(tmp_path):
    assert is_remote("s3://bucket/run")
    assert not any(map(is_remote, ("runs/mine", tmp_path, "hf:user/repo")))
    assert open_place(tmp_path).folder == tmp_path


@pytest.mark.parametrize("room", ["1", "0"])
def test_rows_are_the_same_with_copies_and_read_in_place(room, rows, monkeypatch, tmp_path):
    monkeypatch.setenv("OSAE_CACHE_GB", room)
    write_shards(f"{HERE}/acts", [rows], rows_per_shard=70, dtype="float16")
    local = write_shards(tmp_path / "acts", [rows], rows_per_shard=70, dtype="float16")
    shards = Shards(f"{HERE}/acts")
    assert stored_files(f"{HERE}/acts") == files_at(tmp_path / "acts")
    assert torch.equal(shards.read(30, 290), local.read(30, 290))
    mixed, expected = MixedRows(shards, limit=100), MixedRows(local, limit=100)
    for index in range(4):
        assert torch.equal(mixed.block(index, 1), expected.block(index, 1))
    copies = find_copy(f"{HERE}/acts", "data").glob("*.safetensors")
    assert len(list(copies)) == (5 if room == "1" else 0)


def test_damage_on_the_store_is_found_and_named(rows, store):
    write_shards(f"{HERE}/acts", [rows], rows_per_shard=100)
    data = bytearray(store.cat_file("/bucket/acts/00001.safetensors"))
    data[-1] ^= 1
    store.pipe_file("/bucket/acts/00001.safetensors", bytes(data))
    shards = Shards(f"{HERE}/acts")
    shards.read(0, 100)
    with pytest.raises(ValueError, match=r"^memory://bucket/acts/00001.safetensors is not the file that"):
        shards.read(90, 110)
    store.rm_file("/bucket/acts/00002.safetensors")
    with pytest.raises(ValueError, match=r"^memory://bucket/acts/00002.safetensors is missing"):
        Shards(f"{HERE}/acts")


def test_copies_of_other_data_at_the_same_url_are_not_used(rows, store):
    write_shards(f"{HERE}/acts", [rows])
    assert torch.equal(Shards(f"{HERE}/acts").read(0, 300), rows)
    store.rm("/bucket/acts", recursive=True)
    write_shards(f"{HERE}/acts", [rows + 1])
    assert torch.equal(Shards(f"{HERE}/acts").read(0, 300), rows + 1)


def test_a_folder_without_its_manifest_is_none(rows, store):
    write_shards(f"{HERE}/acts", [rows])
    store.rm_file("/bucket/acts/manifest.json")
    with pytest.raises(ValueError, match=r"^memory://bucket/acts has no manifest.json"):
        Shards(f"{HERE}/acts")


def test_an_sae_is_saved_and_loaded(tmp_path):
    sae = SAE(SAEConfig(6, 8, TopK(2)), generator=torch.Generator().manual_seed(0))
    sae.save(f"{HERE}/one", provenance={"seed": 0})
    sae.save(tmp_path / "one", provenance={"seed": 0})
    assert stored_files(f"{HERE}/one") == files_at(tmp_path / "one")
    for loaded in (SAE.load(f"{HERE}/one"), osae.load(f"{HERE}/one").require_sae()):
        assert torch.equal(loaded.decoder, sae.decoder)
    assert osae.load(f"{HERE}/one").path == f"{HERE}/one"
    with pytest.raises(ValueError, match="already contains files"):
        sae.save(f"{HERE}/one")
    with pytest.raises((ValueError, OSError), match="memory://bucket/none"):
        osae.load(f"{HERE}/none")


def test_what_makes_others_valid_is_sent_last_and_what_is_moved_is_copied(tmp_path, monkeypatch):
    work, sent = Mirror(f"{HERE}/run"), []
    work.pull()
    monkeypatch.setattr(Store, "put", lambda self, local, name: sent.append(name))
    monkeypatch.setattr(Store, "copy", lambda self, name, other: sent.append((name, other)))
    for name in ("a/sae.json", "a/sae.safetensors", "checkpoint.safetensors", "log.jsonl"):
        (work.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (work.folder / name).write_text(name)
    work.push()
    assert sent == ["a/sae.safetensors", "log.jsonl", "a/sae.json", "checkpoint.safetensors"]
    sent.clear()
    (work.folder / "checkpoint.safetensors").rename(work.folder / "checkpoint-before.safetensors")
    (work.folder / "checkpoint.safetensors").write_text("another")
    work.push()
    assert sent == [("checkpoint.safetensors", "checkpoint-before.safetensors"), "checkpoint.safetensors"]


def test_a_run_on_a_store_has_the_files_of_one_here(tmp_path, capsys):
    assert main([*TRAIN, "--out", str(tmp_path / "run")]) == 0
    assert main([*TRAIN, "--out", f"{HERE}/run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{HERE}/run/osae-seed0"
    assert stored_files(f"{HERE}/run") == files_at(tmp_path / "run")
    assert not find_copy(f"{HERE}/run", "work").exists()
    assert main([*TRAIN, "--out", f"{HERE}/run"]) == 2
    assert "already contains a run" in capsys.readouterr().err


def test_an_interrupted_run_is_resumed_from_the_store_and_extended_there(tmp_path, capsys, monkeypatch):
    assert main([*TRAIN, "--out", str(tmp_path / "run")]) == 0
    go, seen = run.go, []

    def stop(done, steps, terms):
        seen.append(done)
        if done == 25:
            raise RuntimeError("out of luck")

    monkeypatch.setattr(run, "go", lambda folder, **given: go(folder, **given | {"progress": stop}))
    with pytest.raises(RuntimeError):
        main([*TRAIN, "--checkpoint-seconds", "0", "--out", f"{HERE}/run"])
    seen.clear()
    watch = {"progress": lambda done, steps, terms: seen.append(done)}
    monkeypatch.setattr(run, "go", lambda folder, **given: go(folder, **given | watch))
    monkeypatch.setenv("OSAE_CACHE", str(tmp_path / "another machine"))
    assert main(["resume", f"{HERE}/run"]) == 0
    assert seen[0] == 26
    for name in ("osae-seed0/sae.safetensors", "log.jsonl"):
        assert stored_files(f"{HERE}/run")[name] == files_at(tmp_path / "run")[name]
    for folder in (str(tmp_path / "run"), f"{HERE}/run"):
        assert main(["resume", folder, "--tokens", "3000"]) == 0
    extended = stored_files(f"{HERE}/run")
    assert extended["osae-seed0/sae.safetensors"] == files_at(tmp_path / "run")["osae-seed0/sae.safetensors"]
    assert "snapshots/2000/osae-seed0/sae.json" in extended
    capsys.readouterr()


def test_a_store_that_cannot_be_reached_is_one_line(capsys):
    assert main(["train", "osae", "--out", "nowhere://bucket/run"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("osae: nowhere://bucket/run: ")
