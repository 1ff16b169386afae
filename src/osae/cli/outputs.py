"""What a command leaves behind: the files that a result is written to, and where its numbers come from."""

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from osae.cli.inputs import check_present
from osae.cli.shared_options import ResultFiles
from osae.files import is_part
from osae.locks import LOCK


def check_files(paths: Iterable[Path | None]) -> None:
    """Raise `ValueError` if a file cannot be written, before the work is done rather than after it."""
    named = [path for path in paths if path is not None]
    for path in named:
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file.")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: folder {path.parent} does not exist: create it first.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: check its permissions.")
        if named.count(path) > 1:
            raise ValueError(f"{path} would be written twice: give each file its own name.")


def check_folder(path: Path) -> None:
    """Raise `ValueError` if nothing can be written to this folder, which may be new."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    there = missing[-1].parent if missing else path
    if not there.is_dir():
        inside = "" if there == path else f"{path}: "
        raise ValueError(f"{inside}{there} is a file: give a new or empty folder.")
    try:
        if missing:  # permissions do not tell everything: /proc, a full disk
            missing[-1].mkdir()
            missing[-1].rmdir()
    except OSError as error:
        raise ValueError(f"{path} cannot be created ({error.strerror}): give another folder.") from None
    if not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be written to: check its permissions.")


def check_new_folder(path: Path) -> None:
    """Raise `ValueError` if nothing can be written to this folder, or if it contains files already.

    The lock and the unfinished files that a killed command left do not count: the next writer removes them.
    """
    check_folder(path)
    if path.is_dir() and any(not is_part(file) and file.name != LOCK for file in path.iterdir()):
        raise ValueError(f"{path} already contains files: give a new or empty folder.")


def date_now() -> str:
    """Return the date and time in UTC."""
    return datetime.now(UTC).isoformat("T", "seconds")


def add_command(result: Any, line: str) -> Any:
    """Return a result of a study with the command line and the date in its provenance."""
    return replace(result, provenance=replace(result.provenance, command=line, date=date_now()))


def check_study(files: ResultFiles, *inputs: Path | str | None, more: Iterable[Path | None] = ()) -> None:
    """Raise `ValueError` if a file of the result cannot be written, or an input does not exist."""
    check_files((files.json, files.csv, files.html, *more))
    check_present(*inputs)


def finish_study(result: Any, files: ResultFiles, line: str) -> int:
    """Print the tables of a study, write its files and return the exit code."""
    from osae import report

    result = add_command(result, line)
    report.show(result)
    write_files(result, files)
    return 0


def write_files(result: Any, files: ResultFiles) -> None:
    """Write a result to the files that --json, --csv and --html name, and print their names."""
    from osae import report, results

    if files.json:
        results.write_json(result, files.json)
    if files.csv:
        result.to_csv(files.csv)
    if files.html:
        report.write_page(result, files.html)
    for path in (files.json, files.csv, files.html):
        if path:
            print(path)
