"""Rows that are read without mapping a file are those of the file; a change is an error that names it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from osae.data.row_files import ChangedError, open_npy, open_safetensors
from osae.data.shards import Shards, write_shards

ROWS = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_of_every_type_are_those_of_the_file(dtype, tmp_path):
    rows = ROWS.to(getattr(torch, dtype))
    save_file({"other": torch.ones(3), "activations": rows}, tmp_path / "x.safetensors")
    found = open_safetensors(tmp_path / "x.safetensors", "activations")
    assert torch.equal(found.read(5, 31), rows[5:31].float())
    assert torch.equal(Shards(write_single(tmp_path, rows)).read(0, 50), rows.float())


def write_single(folder, rows):
    save_file({"activations": rows}, folder / "single.safetensors")
    return folder / "single.safetensors"


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", np.longdouble])
def test_arrays_of_every_type_and_order_are_read(dtype, tmp_path):
    rows = ROWS.numpy().astype(dtype)
    np.save(tmp_path / "x.npy", rows)
    expected = torch.from_numpy(rows.astype(np.float32))
    assert torch.equal(open_npy(tmp_path / "x.npy").read(0, 50), expected)
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    columns = Shards(tmp_path / "columns.npy")
    for start, stop in ((0, 50), (3, 9), (49, 50)):
        assert torch.equal(columns.read(start, stop), expected[start:stop])


def cut(path):
    os.truncate(path, 300)


def replace(path):
    path.with_suffix(".new").write_bytes(path.read_bytes())
    os.replace(path.with_suffix(".new"), path)


def overwrite(path):
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    os.utime(path, (0, 0))


@pytest.mark.parametrize("change", [cut, replace, overwrite, os.unlink], ids=lambda change: change.__name__)
def test_a_file_that_changes_while_it_is_read_is_named(change, tmp_path):
    np.save(tmp_path / "x.npy", ROWS.numpy())
    rows = Shards(tmp_path / "x.npy")
    rows.read(0, 10)
    change(tmp_path / "x.npy")
    with pytest.raises((ChangedError, FileNotFoundError), match=r"x\.npy"):
        rows.read(10, 20)


def test_a_shard_that_is_copied_again_is_read_on_and_another_one_is_refused(tmp_path):
    shards = write_shards(tmp_path / "acts", [ROWS.float()], rows_per_shard=20)
    shards.read(0, 50)
    file = shards.shards[1].file
    replace(file)
    assert torch.equal(shards.read(20, 40), ROWS[20:40].float())
    overwrite(file)
    with pytest.raises(ValueError, match=r"00001\.safetensors is not the file that manifest"):
        shards.read(20, 40)


READ_ON = """
import sys
from osae.data.shards import Shards

for name in sys.argv[1:]:
    rows = Shards(name)
    try:
        while True:
            rows.read(0, 300_000)
            print("read", flush=True)
    except ValueError as error:
        print(error, flush=True)
"""


def test_files_that_are_cut_while_they_are_read_end_no_process(tmp_path):
    """Mapped files would: the system sends SIGBUS."""
    rows, names = torch.randn(300_000, 64), ("x.npy", "columns.npy", "x.safetensors")
    np.save(tmp_path / "x.npy", rows.numpy())
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows.numpy()))
    save_file({"activations": rows}, tmp_path / "x.safetensors")
    words = [sys.executable, "-c", READ_ON, *(str(tmp_path / name) for name in names)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for name in names:
            assert reader.stdout.readline() == "read\n"
            os.truncate(tmp_path / name, 5000)
            said = next(line for line in reader.stdout if line != "read\n")
            assert f"{name} has " in said
            assert "restore it, and run the command again" in said
    assert reader.returncode == 0
