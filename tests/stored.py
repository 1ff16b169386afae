"""What tests of object stores share."""

import tempfile
from pathlib import Path

from osae.stores import Store

TRAIN = ["train", "osae", "--batch", "50", "--epochs", "1", "--world-width", "12", "--world-units", "16"]
TRAIN += ["--world-active", "2", "--world-samples", "2000", "--device", "cpu"]
CHANGING = ("speed.jsonl",)  # times


def files_at(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder, but for times."""
    found = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in sorted(found.items()) if name not in CHANGING}


def stored_files(url: str) -> dict[str, bytes]:
    """The same, of a folder on a store."""
    store = Store(url)
    with tempfile.TemporaryDirectory() as folder:
        for name in store.list():
            store.get(name, Path(folder) / name)
        return files_at(Path(folder))
