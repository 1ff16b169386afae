"""What a command does before its work: libraries that are loaded early, and only those."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_libraries_of_torch_are_loaded_before_torch_is_imported():
    code = """
import sys
from pathlib import Path
from osae.cli import startup
startup.load_libraries()
assert "numba" in sys.modules and "torch" not in sys.modules
assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
import torch
print(float(torch.ones(3) @ torch.ones(3)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
