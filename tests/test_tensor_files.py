"""Tensors that are read without mapping a file are those of the file, and stay so when it is cut."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from osae import array_files
from osae.array_files import list_arrays, read_arrays, read_first, read_metadata
from osae.interop import load
from osae.model import SAE
from osae.sparsify import TopK
from osae.tensor_files import read_tensors
from tests.studies.saes import noise, save_sae

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
TYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def test_tensors_of_every_type_and_shape_are_those_of_the_library(tmp_path):
    made = {f"{dtype}": (5 * noise(6, 4, 0)).to(dtype) for dtype in TYPES}
    made |= {"single": torch.tensor(3.0), "none": torch.empty(0, 4), "four": noise(24, 1, 0).view(1, 2, 3, 4)}
    save_file(made, tmp_path / "x.safetensors", {"about": "metadata"})
    expected, found = load_file(tmp_path / "x.safetensors"), read_tensors(tmp_path / "x.safetensors")
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))
    assert list(read_tensors(tmp_path / "x.safetensors", ["four"])) == ["four"]
    with pytest.raises(KeyError, match="five"):
        read_tensors(tmp_path / "x.safetensors", ["five"])


def test_arrays_are_those_of_the_library_too(tmp_path):
    kinds = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    made = {kind: (np.arange(12) % 7).reshape(3, 4).astype(kind) for kind in kinds} | {
        "none": np.empty((0, 4))
    }
    path = tmp_path / "x.safetensors"
    save_arrays(made, path, {"about": "metadata"})
    found = read_arrays(path)
    assert found.keys() == made.keys() == set(list_arrays(path))
    for name, array in made.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    assert read_metadata(path) == {"about": "metadata"}
    assert read_first(path, "i4", 5).tolist() == [0, 1, 2, 3, 4]
    assert read_first(path, "i4", 50).tolist() == made["i4"].ravel().tolist()


def test_a_type_that_cannot_be_read_is_named(tmp_path):
    save_file({"x": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"x\.safetensors contains BF16, which cannot be read"):
        read_arrays(tmp_path / "x.safetensors")


@pytest.mark.parametrize("read", [read_tensors, read_arrays, read_metadata, list_arrays])
def test_a_damaged_file_is_refused(read, tmp_path):
    save_file({"x": torch.ones(100)}, tmp_path / "x.safetensors")
    os.truncate(tmp_path / "x.safetensors", 200)
    with pytest.raises(SafetensorError):
        read(tmp_path / "x.safetensors")


@pytest.mark.parametrize("read", [read_tensors, read_arrays])
def test_a_file_that_is_cut_after_its_header_was_read_is_named(read, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(100_000)}, path)
    whole = array_files.read_header

    def cut_afterwards(file):
        header = whole(file)
        os.truncate(path, 5000)
        return header

    monkeypatch.setattr(array_files, "read_header", cut_afterwards)
    with pytest.raises(ValueError, match=r"x\.safetensors was truncated while it was read: restore it"):
        read(path)


def test_no_module_reads_numbers_from_a_mapped_file():
    """What is read through a map ends the process with SIGBUS if the file is truncated."""
    mapped = re.compile(r"get_tensor\(|\bload_file\(|safetensors\.\w+ import .*\bload|mmap_mode|from_file\(")
    root = Path(array_files.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if mapped.search(path.read_text())}
    assert found == set()


@pytest.mark.parametrize("reader", ["osae.SAE.load", "osae.load"])
def test_weights_that_are_cut_after_an_sae_was_opened_end_no_process(reader, tmp_path):
    """A mapped file would: the system sends SIGBUS."""
    folder = save_sae(tmp_path / "sae", noise(3000, 64, 0), TopK(4))
    script = (
        f"import os, osae, sys, torch\nsae = {reader}(sys.argv[1])\n"
        "os.truncate(sys.argv[1] + '/sae.safetensors', 5000)\n"
        "print(sae.decode(sae.encode(torch.ones(2, 64))).shape)"
    )
    words = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[2, 64]" in done.stdout


def test_saes_are_those_that_were_saved(tmp_path):
    folder = save_sae(tmp_path / "sae", noise(30, 8, 0), TopK(4))
    kept = load_file(folder / "sae.safetensors")
    for sae in (SAE.load(folder), load(folder).sae):
        assert sae is not None
        for name, tensor in sae.state_dict().items():
            assert torch.equal(tensor, kept[name])
