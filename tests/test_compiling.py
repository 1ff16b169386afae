"""Compiled code has a place also where neither the package nor the home directory can be written to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import osae
from osae import compiling

SCRIPT = (
    "import osae.metrics.matching_loops\n"
    "from numba import config; print(osae.__file__); print(config.CACHE_DIR)"
)
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def test_a_read_only_package_and_home_are_no_obstacle(tmp_path):
    """Without the directory for temporary files, numba says: no locator available."""
    package, temporary = tmp_path / "package", tmp_path / "tmp"
    shutil.copytree(
        Path(osae.__file__).parent, package / "osae", ignore=shutil.ignore_patterns("__pycache__")
    )
    temporary.mkdir()
    inside = ["unshare", "-rm", "sh", "-c", READ_ONLY, str(package)]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    own = {"PYTHONPATH": str(package), "HOME": str(package / "home"), "TMPDIR": str(temporary)}
    ran = subprocess.run([*inside, sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=own)
    assert ran.returncode == 0, ran.stderr
    file, cache = ran.stdout.splitlines()
    assert file.startswith(str(package))
    assert Path(cache).parent == temporary
    assert Path(cache).stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = tmp_path / f"osae-numba-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    assert compiling._make_private() != taken
    taken.chmod(0o700)
    assert compiling._make_private() == taken
    taken.rmdir()
    taken.symlink_to(tmp_path)
    assert compiling._make_private() != taken


def test_nothing_changes_where_compiled_code_has_its_place(monkeypatch):
    monkeypatch.delenv(compiling.VARIABLE, raising=False)
    compiling.choose_cache()
    assert compiling.VARIABLE not in os.environ
