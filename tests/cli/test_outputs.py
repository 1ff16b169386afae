"""Files of results: refused before the work if they cannot be written."""

import os
from pathlib import Path

import pytest

from osae.cli.outputs import check_files, check_new_folder


def test_files_that_can_be_written_pass(tmp_path):
    (tmp_path / "old").touch()
    check_files((None, tmp_path / "new", tmp_path / "old"))
    check_new_folder(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_new_folder(tmp_path / "empty")
    for left in (".osae.lock", ".run.json.4711.part"):  # by a command that was killed
        (tmp_path / "empty" / left).touch()
    check_new_folder(tmp_path / "empty")
    check_files((Path("/dev/null"),))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["."], "is a folder"),
        (["no/file"], "folder .*no does not exist: create it first"),
        (["file/x"], "folder .*file does not exist: create it first"),
        (["a", "a"], "would be written twice"),
    ],
)
def test_files_that_cannot_be_written_are_refused(names, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        check_files([tmp_path / name for name in names])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="check its permissions"):
        check_files((tmp_path / "x",))


def test_a_folder_that_is_not_new_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="already contains files"):
        check_new_folder(tmp_path)
    for inside in ("file", "file/run"):
        with pytest.raises(ValueError, match="is a file: give a new or empty folder"):
            check_new_folder(tmp_path / inside)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc on this system")
def test_a_folder_that_cannot_be_created_is_refused_and_nothing_is_left_of_one_that_can(tmp_path):
    with pytest.raises(ValueError, match=r"/proc/x cannot be created \(.+\): give another folder"):
        check_new_folder(Path("/proc/x"))
    check_new_folder(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
