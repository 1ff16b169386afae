"""Execute the notebooks:

    python -m benchmarks.documentation.notebooks          # execute them and keep their outputs
    python -m benchmarks.documentation.notebooks --check  # execute them and keep nothing

Outputs stay small enough to read on GitHub: output to stderr is omitted.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from benchmarks import ROOT

FOLDER = ROOT / "notebooks"
SECONDS = 600  # time limit of a cell


def list_notebooks() -> list[Path]:
    """Return the notebooks of the repository."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute_notebook(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a new run, in the environment of this process."""
    notebook = nbformat.read(path, as_version=4)
    # the kernel has the import path of this process, and prints nothing about the machine
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            for out in cell.outputs:
                out.get("metadata", {}).clear()
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the notebooks given, or all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.documentation.notebooks", description="Execute the notebooks."
    )
    parser.add_argument("notebooks", type=Path, nargs="*", metavar="NOTEBOOK.ipynb")
    parser.add_argument("--check", action="store_true", help="keep nothing")
    asked = parser.parse_args(arguments)
    for path in asked.notebooks or list_notebooks():
        start = time.perf_counter()
        done = execute_notebook(path)
        if not asked.check:
            nbformat.write(done, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
