"""Write the claims and tables of kept results again, from their numbers:

    python -m benchmarks.documentation.evidence

For when the words of a claim or the layout of a table change. Numbers stay as they are: in results.json only
the claims are replaced. Figures, which are not kept, are left out of table.md.
"""

import json
import re
import sys
from pathlib import Path

from benchmarks import ROOT
from osae import results
from osae.experiments.claims import judge_result
from osae.files import CHECKSUM, atomic_write, seal
from osae.report import render_markdown
from osae.results.codec import to_json
from osae.results.experiment import ExperimentResult

FOLDERS = sorted(path.parent for path in (ROOT / "evidence").glob("*/results.json"))
FIGURE = re.compile(r"\n!\[[^\n]*\]\([^\n]*\)\n(\n\*[^\n]*\*\n)?")


def judge_again(folder: Path) -> dict[str, str]:
    """Return the text of results.json and table.md with the claims as they are judged now."""
    text = (folder / "results.json").read_text(encoding="utf-8")
    data, result = json.loads(text), results.parse(json.loads(text))
    assert isinstance(result, ExperimentResult)
    if data.get("claims"):
        data["claims"] = to_json(judge_result(result))
    if data.pop(CHECKSUM, None):
        data = seal(data)
    judged = results.parse(data)
    assert isinstance(judged, ExperimentResult)
    indent = 2 if text.startswith("{\n") else None
    return {
        "results.json": json.dumps(data, indent=indent, ensure_ascii=False) + "\n",
        "table.md": FIGURE.sub("", render_markdown(judged)).rstrip("\n") + "\n",
    }


def main() -> int:
    """Write the files of every folder."""
    for folder in FOLDERS:
        for name, text in judge_again(folder).items():
            with atomic_write(folder / name) as path:
                path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
