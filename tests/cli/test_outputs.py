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
    check_files((Path("/dev/null"),))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["."], "is a folder"),
        (["no/file"], "there is no folder .*no, make it first"),
        (["file/x"], "there is no folder .*file, make it first"),
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
    with pytest.raises(ValueError, match="is a file"):
        check_new_folder(tmp_path / "file")
