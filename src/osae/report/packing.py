"""Data for the page's script: compressed JSON as text, inside the page or in files next to it."""

import base64
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from osae.files import atomic_write

Pieces = Iterable[tuple[str, Any]]  # by name


def pack(data: Any) -> str:
    """Return the data as compressed JSON in base64, which contains no special characters of HTML."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


def write_pieces(pieces: Pieces, folder: Path) -> None:
    """Write each piece as a script that passes on its data: pages on disk can load scripts, but not fetch."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pieces:
        with atomic_write(folder / f"{name}.js") as part:
            part.write_text(f'osae.deliver("{name}","{pack(data)}");\n', encoding="ascii")
