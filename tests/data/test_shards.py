"""Activations on disk: what is written is read back, and what is damaged is said to be."""

import json
import os
import re
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from osae.data.shards import Shards, is_shards, write_shards
from osae.files import read_json


def rows(count, width=5, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_rows_are_read_back_whatever_the_blocks_shards_and_batches(
    tmp_path_factory, sizes, per_shard, batch, seed
):
    blocks = [rows(size, seed=seed + place) for place, size in enumerate(sizes)]
    folder = tmp_path_factory.mktemp("shards")
    if sum(sizes) == 0:
        with pytest.raises(ValueError, match="no rows"):
            write_shards(folder, blocks)
        return
    shards = write_shards(folder, blocks, rows_per_shard=per_shard)
    whole = torch.cat(blocks)
    assert (shards.rows, shards.width, len(shards)) == (*whole.shape, len(whole))
    assert torch.equal(torch.cat(list(shards.batches(batch))), whole)
    start = seed % len(whole)
    assert torch.equal(shards.read(start, len(whole)), whole[start:])
    assert all(shard.rows == per_shard for shard in shards.shards[:-1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_type_comes_back_in_single_precision(tmp_path, dtype):
    x = rows(10)
    shards = write_shards(tmp_path / "a", [x], dtype=dtype, rows_per_shard=4)
    read = shards.read(2, 9)
    assert read.dtype == torch.float32
    assert torch.equal(read, x[2:9].to(getattr(torch, dtype)).float())
    assert shards.dtype == dtype


def test_a_manifest_has_what_is_promised_and_what_is_added(tmp_path):
    blocks = ({"activations": rows(3, seed=seed), "tokens": torch.arange(3) + 3 * seed} for seed in range(3))
    shards = write_shards(tmp_path, blocks, rows_per_shard=5, about={"model": "tiny", "layer": 3})
    manifest = read_json(tmp_path / "manifest.json")
    assert {key: manifest[key] for key in ("schema", "kind", "width", "rows", "dtype", "model", "layer")} == {
        "schema": 1,
        "kind": "activations",
        "width": 5,
        "rows": 9,
        "dtype": "float32",
        "model": "tiny",
        "layer": 3,
    }
    assert [entry["rows"] for entry in manifest["shards"]] == [5, 4]
    assert load_file(tmp_path / "00001.safetensors")["tokens"].tolist() == [5, 6, 7, 8]
    assert shards.manifest == manifest
    assert shards.provenance()["rows"] == 9
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json",
        "00000.safetensors",
        "00001.safetensors",
    }
    with pytest.raises(ValueError, match="already contains activations"):
        write_shards(tmp_path, [rows(2)])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_single_file_of_rows_is_read(tmp_path, dtype):
    x = rows(7).numpy().astype(dtype)
    np.save(tmp_path / "x.npy", x)
    save_file({"anything": torch.from_numpy(x)}, tmp_path / "x.safetensors")
    for name in ("x.npy", "x.safetensors"):
        shards = Shards(tmp_path / name)
        assert (shards.rows, shards.width, shards.dtype) == (7, 5, dtype)
        assert torch.equal(shards.read(1, 6), torch.from_numpy(x[1:6]).float())
        assert len(shards.provenance()["sha256"]) == 64
        shards.verify()
    assert not is_shards(tmp_path / "x.npy")
    assert not is_shards(tmp_path / "x.safetensors")
    assert not is_shards(tmp_path / "none.safetensors")
    save_file({"activations": torch.from_numpy(x)}, tmp_path / "y.safetensors")
    assert is_shards(tmp_path / "y.safetensors")


def test_verify_finds_the_file_that_was_changed(tmp_path):
    shards = write_shards(tmp_path, [rows(9)], rows_per_shard=4)
    assert is_shards(tmp_path)
    seen = []
    shards.verify(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    save_file({"activations": rows(4, seed=9)}, tmp_path / "00001.safetensors")
    with pytest.raises(ValueError, match=r"00001\.safetensors is not the file"):
        shards.verify()


def test_nan_is_found_where_it_is(tmp_path):
    x = rows(9)
    x[6, 2] = float("nan")
    shards = write_shards(tmp_path, [x], rows_per_shard=4)
    assert torch.equal(shards.read(0, 6), x[:6])
    with pytest.raises(ValueError, match=r"00001\.safetensors: row 2 contains NaN"):
        list(shards.batches(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2: this release reads 1"),
        ({"kind": "run"}, "not a manifest of activations"),
        ({"width": 0}, "width 0"),
        ({"rows": True}, "rows True"),
        ({"rows": 10}, "says 10 rows, but its shards contain 9"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"shards": []}, "lists no shards"),
        ({"shards": ["a"]}, "lists the shard a"),
        (
            {"shards": [{"file": "../x.safetensors", "rows": 9}]},
            "a file name and a number of rows are required",
        ),
        ({"shards": [{"file": "x.safetensors", "rows": 9}]}, "x.safetensors is missing"),
        ({"width": 6}, "contains .9, 5., but manifest.json says .9, 6."),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path, change, message):
    write_shards(tmp_path, [rows(9)])
    manifest = read_json(tmp_path / "manifest.json")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ValueError, match=message):
        Shards(tmp_path).read(0, 1)


def test_a_flipped_byte_is_noticed_when_its_shard_is_first_read(tmp_path):
    shards = write_shards(tmp_path, [rows(9), rows(9)], rows_per_shard=9)
    damaged = shards.shards[1].file
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1
    damaged.write_bytes(data)
    shards.read(0, 9)
    with pytest.raises(ValueError, match=r"00001\.safetensors is not the file that manifest\.json"):
        shards.read(8, 10)


def test_a_changed_manifest_is_noticed(tmp_path):
    write_shards(tmp_path, [rows(9)], about={"layer": 3})
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"layer": 3', '"layer": 2'))
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read: its content does not match"):
        Shards(tmp_path)


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors"])
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is not a regular file"):
        Shards(tmp_path / name)


def test_what_is_not_activations_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, content in (("cut.safetensors", b"1234567"), ("cut.npy", b"\x93NUMPY"), ("x.txt", b"")):
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "whole.npy", np.arange(6).reshape(2, 3))
    np.save(tmp_path / "flat.npy", np.ones(6))
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    save_file({"a": rows(2), "b": rows(2)}, tmp_path / "two.safetensors")
    save_file({"a": torch.ones(2, 2, dtype=torch.int32)}, tmp_path / "int.safetensors")
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "manifest.json").write_text("{")
    for name, message in {
        "nothing": "no such file",
        "empty": "has no manifest.json",
        "manifest": "manifest.json cannot be read",
        "cut.safetensors": "cannot be read",
        "cut.npy": "cannot be read",
        "x.txt": "give a folder",
        "whole.npy": "floating-point",
        "flat.npy": "give a matrix",
        "object.npy": "floating-point",
        "two.safetensors": "it contains a, b",
        "int.safetensors": "floating-point",
    }.items():
        with pytest.raises(ValueError, match=message):
            Shards(tmp_path / name)


HEADER = "{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}\n"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.format("(-3, 4)"), "declares shape (-3, 4): it is damaged"),
        (HEADER.format("(-3, -4)"), "declares shape (-3, -4): it is damaged"),
        (HEADER.format("(True, 4)"), "declares shape (True, 4): it is damaged"),
        (HEADER.format("(3, 4, 1)"), "has shape (3, 4, 1): give a matrix (rows, width)"),
        (HEADER.format("(9, 4)"), "declares shape (9, 4), which takes 144 bytes, but contains 48: copy"),
        (HEADER.format(f"({2**62}, 4)"), f"declares shape ({2**62}, 4), which takes {2**66} bytes, but"),
        (HEADER.format("(3{ 4)"), "its header is damaged"),  # numpy raises TokenError
        (HEADER.format("(3, 4)").replace("<f4", "<,4"), "its header is damaged"),  # SyntaxError
        (HEADER.format("(3, 4)").replace("'<f4'", "()"), "its header is damaged"),  # IndexError
    ],
)
def test_a_matrix_with_a_damaged_header_is_refused_with_what_is_wrong(header, message, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(48))
    with pytest.raises(ValueError, match=re.escape(f"{path} ") + ".*" + re.escape(message)):
        Shards(path)


def test_wrong_blocks_and_ranges_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for blocks, message in (
        ([torch.ones(3)], "give a matrix"),
        ([torch.ones(3, 2, dtype=torch.int64)], "give a matrix"),
        ([{"tokens": torch.ones(3, 2)}], "nothing"),
        ([{"activations": rows(3), "tokens": torch.ones(2)}], "2 entries for 3 rows"),
        ([rows(3), rows(3, width=4)], "width 4, and one before it 5"),
        ([rows(3), {"activations": rows(3), "tokens": torch.ones(3)}], "a block contains"),
    ):
        with pytest.raises(ValueError, match=message):
            write_shards(tmp_path / "a", blocks)
    assert not (tmp_path / "a" / "manifest.json").exists()
    with pytest.raises(ValueError, match="rows_per_shard=0"):
        write_shards(tmp_path / "a", [rows(3)], rows_per_shard=0)
    with pytest.raises(ValueError, match="dtype='int8'"):
        write_shards(tmp_path / "a", [rows(3)], dtype="int8")  # pyright: ignore[reportArgumentType]
    shards = write_shards(tmp_path / "a", [rows(3)])
    for start, stop in ((-1, 2), (0, 4), (2, 2)):
        with pytest.raises(ValueError, match="give rows from 0 to 3"):
            shards.read(start, stop)
    with pytest.raises(ValueError, match="size=0"):
        next(shards.batches(0))


def test_numpy_arrays_are_written_as_tensors_are(tmp_path):
    x = rows(7)
    tensors = write_shards(tmp_path / "a", [x[:3], {"activations": x[3:]}], rows_per_shard=4)
    arrays = write_shards(tmp_path / "b", [x[:3].numpy(), {"activations": x[3:].numpy()}], rows_per_shard=4)
    assert [shard.sha256 for shard in arrays.shards] == [shard.sha256 for shard in tensors.shards]


def test_files_that_are_no_matrix_are_refused(tmp_path):
    save_file({"activations": torch.tensor(1.0)}, tmp_path / "a.safetensors")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-5, 16), }"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    np.save(tmp_path / "b.npy", np.float32(3))
    for name in ("a.safetensors", "a.npy", "b.npy"):
        with pytest.raises(ValueError, match=name):
            Shards(tmp_path / name)


def test_shards_are_not_read_again_to_be_hashed(tmp_path, monkeypatch):
    """Each is hashed where it is written, under its temporary name."""
    from osae.data import shards as module

    hashed, real = [], module.file_sha256
    monkeypatch.setattr(module, "file_sha256", lambda path: (hashed.append(Path(path).name), real(path))[1])
    written = module.write_shards(tmp_path / "acts", [torch.randn(30, 4)], rows_per_shard=10)
    written.verify()
    assert hashed[:3] == [name for name in hashed[:3] if name.startswith("00")]
    assert len(hashed) == 6  # once when written, once by `verify`
