"""Write the files generated from the types of results, in a checkout: `python -m osae.results`.

These are the JSON Schemas in src/osae/schemas, and the tables in docs/ between the lines
`<!-- fields: KIND -->` and `<!-- end -->`.
"""

import json
import re
from pathlib import Path

from osae.files import atomic_write
from osae.results import KINDS, schema
from osae.results.describe import field_tables

ROOT = Path(__file__).parents[3]
SCHEMAS = Path(__file__).parents[1] / "schemas"
COMMANDS = {
    "comparison": "compare",
    "evaluation": "evaluate",
    "ordering": "order",
    "pruning": "prune",
    "stitching": "stitch",
}
_PLACE = re.compile(r"(<!-- fields: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def generate_files(root: Path = ROOT) -> dict[Path, str]:
    """Return the text of every file generated from the types, by path."""
    files = {SCHEMAS / f"{COMMANDS.get(kind, kind)}.schema.json": _schema_text(kind) for kind in KINDS}
    for page in sorted((root / "docs").glob("**/*.md")):
        text = page.read_text(encoding="utf-8")
        if _PLACE.search(text):
            files[page] = _PLACE.sub(_fill, text)
    return files


def _schema_text(kind: str) -> str:
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def _fill(place: re.Match[str]) -> str:
    head, kind = place.groups()
    return f"{head}\n{field_tables(KINDS[kind])}\n\n"


def main() -> None:
    """Write the files whose text has changed, and print their names."""
    for path, text in generate_files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            with atomic_write(path) as part:
                part.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
