"""Tensors that are read without mapping a file are those of the file, and stay so when it is cut."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

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


def test_a_damaged_file_is_refused(tmp_path):
    save_file({"x": torch.ones(100)}, tmp_path / "x.safetensors")
    os.truncate(tmp_path / "x.safetensors", 200)
    with pytest.raises(SafetensorError):
        read_tensors(tmp_path / "x.safetensors")


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
