"""Rewrite the intervals, claims and tables of stored results from the values of every seed and pair:

    python -m benchmarks.documentation.evidence

Run this after changing how intervals are computed, the wording of a claim or the layout of a table. Figures,
which are not stored, are left out of table.md.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from osae import results
from osae.experiments.claims import UNTESTED, judge_result
from osae.experiments.methods import UNTRAINED
from osae.files import CHECKSUM, atomic_write, seal
from osae.measures import MEASURES
from osae.metrics.statistics import make_interval
from osae.report import render_markdown
from osae.results.base import Interval
from osae.results.codec import to_json
from osae.results.experiment import ExperimentResult
from osae.results.lm import Curves, LMResult

FOLDERS = sorted(path.parent for path in (ROOT / "evidence").glob("*/results.json"))
STUDIES = (
    *("toy", "budgets", "sizes", "schedules", "zipf", "pca", "energy", "lemma"),
    *("lm-small", "lm", "lm-mixtures", "lm-start", "lm-stitching"),
)
TRUST = {"trust": "seed 1", "trust-trees": "seed 2"}  # folders, and the seed of their worlds
TRUST_COLUMNS = ("true_units", "auc", "auc_support", "auc_nearest", "auc_matched", "calibration_error")
ENDS = ("mean", "low", "high")
FIGURE = re.compile(r"\n!\[[^\n]*\]\([^\n]*\)\n(\n\*[^\n]*\*\n)?")


def renew_intervals(found: Any) -> Any:
    """Return stored results with every mean and interval computed again from its values.

    Numbers that differ in their last digits only, which depend on the processor, stay as they are.
    """
    if isinstance(found, list):
        return [renew_intervals(one) for one in found]
    if not isinstance(found, dict):
        return found
    if not found.get("values") or "over" not in found:
        return {key: renew_intervals(value) for key, value in found.items()}
    if "prefix" not in found:
        again = make_interval(found["over"], found["values"])
        return found | {key: _renew(found[key], getattr(again, key)) for key in ENDS if key in found}
    at = [
        make_interval(found["over"], {key: values[i] for key, values in found["values"].items()})
        for i in range(len(found["prefix"]))
    ]
    ends = {key: [getattr(one, key) for one in at] for key in ENDS if key in found}
    return found | {key: list(map(_renew, found[key], ends[key])) for key in ends}


def _renew(kept: Any, made: Any) -> Any:
    alike = (
        isinstance(kept, float) and made is not None and math.isclose(kept, made, rel_tol=1e-9, abs_tol=1e-12)
    )
    return kept if alike else made


def judge_again(folder: Path) -> dict[str, str]:
    """Return the text of results.json and table.md with intervals computed and claims judged again."""
    text = (folder / "results.json").read_text(encoding="utf-8")
    data = renew_intervals(json.loads(text))
    result = results.parse(json.loads(json.dumps(data)))
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
    for where, curves in list_curves(result) if isinstance(result, LMResult) else ():
        for key, curve in curves.items():
            for i, length in enumerate(curve.prefix):
                yield f"{where}: {key} at {length}", curve.at(i)


def list_curves(result: LMResult) -> Iterator[tuple[str, Curves]]:
    """Yield all agreement by prefix length: of seeds, across texts, with the start, and during training."""
    for found in (*result.curves, *result.own_starts):
        yield f"{found.method}, {found.place}", found.curves
    for crossing in result.crossings:
        for found in (crossing, *crossing.moments):
            yield f"{crossing.method}, another seed", found.other_seed
            yield f"{crossing.method}, the same seed", found.same_seed
    for progression in result.progressions:
        for moment in progression.moments:
            yield f"{progression.method}, {progression.place}, {moment.tokens} tokens", moment.seeds
            yield f"{progression.method}, {progression.place}, start", moment.start


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


def tabulate_verdicts() -> str:
    """Return the paper's claims with the verdict of each study, as a table.

    A study that could not test a claim is left out if another one could.
    """
    found: dict[str, dict[str, str]] = {}
    for name in STUDIES:
        for claim in results.read(ROOT / "evidence" / name / "results.json").claims:
            if "(our own claim" not in claim.claim and "(ours, proven)" not in claim.claim:
                found.setdefault(claim.claim, {})[name] = claim.verdict
    lines = ["| Claim of the paper | Verdict |", "| :-- | :-- |"]
    for text, verdicts in found.items():
        tested = {name: verdict for name, verdict in verdicts.items() if verdict != UNTESTED} or verdicts
        said = ", ".join(f"**{verdict}** (`{name}`)" for name, verdict in tested.items())
        lines.append(f"| {text} | {said} |")
    return "\n".join(lines)


def tabulate_trust() -> str:
    """Return how well scores of units tell true ones from false ones, on all worlds, as a table."""
    titles = (MEASURES[key].title.lower().replace("auc", "AUC") for key in TRUST_COLUMNS)
    lines = [f"| world | recipe | {' | '.join(titles)} |", "| :-- | :-- |" + " --: |" * len(TRUST_COLUMNS)]
    for name, seed in TRUST.items():
        for section in results.read(ROOT / "evidence" / name / "results.json").sections:
            for row in section.rows:
                numbers = " | ".join(f"{row.mean(key):.3f}" for key in TRUST_COLUMNS)
                lines.append(f"| {section.title}, {seed} | `{row.method}` | {numbers} |")
    return "\n".join(lines)


def main() -> int:
    """Write the files of every folder."""
    for folder in FOLDERS:
        for name, text in judge_again(folder).items():
            with atomic_write(folder / name) as path:
                path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
