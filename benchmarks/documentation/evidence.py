"""Rewrite the claims and tables of stored results from their numbers:

    python -m benchmarks.documentation.evidence

Run this after changing the wording of a claim or the layout of a table. Numbers do not change: only the
claims in results.json are replaced. Figures, which are not stored, are left out of table.md.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import ROOT
from osae import results
from osae.experiments.claims import judge_result
from osae.experiments.methods import UNTRAINED
from osae.files import CHECKSUM, atomic_write, seal
from osae.report import render_markdown
from osae.results.base import Interval
from osae.results.codec import to_json
from osae.results.experiment import ExperimentResult

FOLDERS = sorted(path.parent for path in (ROOT / "evidence").glob("*/results.json"))
FIGURE = re.compile(r"\n!\[[^\n]*\]\([^\n]*\)\n(\n\*[^\n]*\*\n)?")


def judge_again(folder: Path) -> dict[str, str]:
    """Return the text of results.json and table.md with the claims judged again."""
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


def list_intervals(result: ExperimentResult) -> Iterator[tuple[str, Interval]]:
    """Yield every mean of a result with its interval and its location."""
    for section in result.all_sections():
        for row in section.rows:
            for key, value in row.measures.items():
                if isinstance(value, Interval):
                    yield f"{section.title}: {row.method}: {key}", value


def list_missing(result: ExperimentResult) -> set[str]:
    """Return what a result lacks for recomputing its intervals and retraining its SAEs."""
    lacking = [
        [row.recipe is None for row in section.rows if row.method != UNTRAINED]
        for section in result.all_sections()
    ]
    mixed = any(any(rows) and not all(rows) for rows in lacking)  # rows without any recipe are no methods
    known = [interval.values is not None for _, interval in list_intervals(result)]
    trained = result.training_seconds != 0
    missing = {
        "values of seeds": not known or not all(known),
        "recipes": trained and (mixed or all(map(all, lacking))),
        "commit": result.commit is None,
        "cost": result.training_seconds is None,
    }
    return {name for name, is_missing in missing.items() if is_missing}


def main() -> int:
    """Write the files of every folder."""
    for folder in FOLDERS:
        for name, text in judge_again(folder).items():
            with atomic_write(folder / name) as path:
                path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
