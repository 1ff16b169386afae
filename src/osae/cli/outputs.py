"""Output files of a command, and the provenance of its results."""

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from osae.cli.inputs import check_present
from osae.cli.shared_options import ComparisonFiles, ResultFiles
from osae.stores import Place, check_empty, open_place


def check_files(paths: Iterable[Path | None]) -> None:
    """Raise `ValueError` if a file cannot be written, before the work starts rather than after it."""
    named = [path for path in paths if path is not None]
    for path in named:
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file.")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: the folder {path.parent} does not exist: create it first.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: check its permissions.")
        if named.count(path) > 1:
            raise ValueError(f"{path} would be written twice: give each file its own name.")


def check_folder(path: Place) -> None:
    """Raise `ValueError` if this folder, which may not exist yet, cannot be written to."""
    if not isinstance(path, Path):
        open_place(path).names()  # an error if the store does not answer
        return
    missing = [each for each in (path, *path.parents) if not each.exists()]
    there = missing[-1].parent if missing else path
    if not there.is_dir():
        inside = "" if there == path else f"{path}: "
        raise ValueError(f"{inside}{there} is a file: give a new or empty folder.")
    try:
        if missing:  # permissions are not enough: /proc, a full disk
            missing[-1].mkdir()
            missing[-1].rmdir()
    except OSError as error:
        raise ValueError(f"{path} cannot be created ({error.strerror}): give another folder.") from None
    if not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be written to: check its permissions.")


def check_new_folder(path: Place) -> None:
    """Raise `ValueError` if this folder cannot be written to, or already contains files."""
    if isinstance(path, Path):
        check_folder(path)
    check_empty(open_place(path))


def date_now() -> str:
    """Return the date and time in UTC."""
    return datetime.now(UTC).isoformat("T", "seconds")


def add_command(result: Any, line: str) -> Any:
    """Return the result with the command line and the date added to its provenance."""
    return replace(result, provenance=replace(result.provenance, command=line, date=date_now()))


def check_study(files: ResultFiles, *inputs: Path | str | None) -> None:
    """Raise `ValueError` if an output file cannot be written, or an input does not exist."""
    check_files(files.list_files())
    check_present(*inputs)


def finish_study(
    result: Any, line: str, *, files: ResultFiles | None = None, folder: Place | None = None
) -> int:
    """Print the tables of a study, write its files and its SAE, and return the exit code."""
    from osae import report

    result = add_command(result, line)
    if folder is not None:
        result.save(folder)
    report.show(result)
    if files is not None:
        write_files(result, files)
    if folder is not None:
        print(folder)
    return 0


def write_files(result: Any, files: ResultFiles) -> None:
    """Write a result to the files given by options such as --json, and print their names."""
    from osae import report, results

    if files.json:
        results.write_json(result, files.json)
    if files.csv:
        result.to_csv(files.csv)
    if files.html:
        report.write_page(result, files.html)
    if isinstance(files, ComparisonFiles) and files.units:
        result.units.to_csv(files.units)
    for path in files.list_files():
        if path:
            print(path)
