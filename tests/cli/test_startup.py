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


def test_comparing_two_saes_does_not_import_libraries_that_it_does_not_use(tmp_path):
    """Each of them takes a noticeable part of the time from the shell to the table."""
    code = f"""
import sys
import torch
from osae.cli import main
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
for name in "ab":
    SAE(SAEConfig(4, 8, TopK(2))).save("{tmp_path}/" + name)
assert main(["compare", "{tmp_path}/a", "{tmp_path}/b"]) == 0
unused = {{"scipy.optimize", "scipy.special", "scipy.stats", "scipy.sparse", "matplotlib", "pandas"}}
print(unused & set(sys.modules), file=sys.stderr)
assert not unused & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
