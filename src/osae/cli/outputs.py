"""What a command leaves behind: the files that a result is written to, and where its numbers come from."""

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from osae.cli.shared_options import ResultFiles


def check_files(paths: Iterable[Path | None]) -> None:
    """Raise `ValueError` if a file cannot be written, before the work is done rather than after it."""
    named = [path for path in paths if path is not None]
    for path in named:
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file.")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}, make it first.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: check its permissions.")
        if named.count(path) > 1:
            raise ValueError(f"{path} would be written twice: give each file its own name.")


def check_new_folder(path: Path) -> None:
    """Raise `ValueError` if the path is a file, or a folder with files in it."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: give a new or empty folder.")
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} already contains files: give a new or empty folder.")


def date_now() -> str:
    """Return the date and time in UTC."""
    return datetime.now(UTC).isoformat("T", "seconds")


def add_command(result: Any, line: str) -> Any:
    """Return a result of a study with the command line and the date in its provenance."""
    return replace(result, provenance=replace(result.provenance, command=line, date=date_now()))


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
