"""Files are whole or absent, and as readable as any other."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from osae.files import atomic_write, is_part


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as beside:
        beside.write_text(str(1 / 0))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_every_file_has_the_mode_that_an_open_file_gets(tmp_path):
    """safetensors makes its files readable for their owner alone."""
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "a.safetensors") as beside:
        save_file({"x": torch.zeros(2)}, beside)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    script = (
        "import os, sys\nfrom osae.files import written\n"
        "with atomic_write(sys.argv[1]) as part:\n part.write_text('half'); part.with_name('.tmp').touch()\n"
        " os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "a.txt"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert is_part(left)
    with atomic_write(path) as beside:
        beside.write_text("whole")
    assert os.listdir(tmp_path) == ["a.txt"]
