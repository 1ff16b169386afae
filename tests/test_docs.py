"""What the README shows is what runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(example):
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    if example.name == "quickstart.py":
        numbers = {}
        for line in done.stdout.splitlines():
            words = line.split()
            if words and words[-2:-1] in (["orderedness"], ["stability"]):
                numbers[" ".join(words[:-1])] = float(words[-1])
        assert numbers["two seeds: stability"] > 0.9
        assert numbers["ordered / truth: orderedness"] > 0.9
        assert abs(numbers["plain / truth: orderedness"]) < 0.6


def test_readme_shows_the_quick_start_as_it_is():
    assert (ROOT / "examples" / "quickstart.py").read_text().strip() in (ROOT / "README.md").read_text()


def test_readme_names_every_module():
    text = (ROOT / "README.md").read_text()
    for path in (ROOT / "src" / "osae").iterdir():
        if path.name.startswith("_") or path.suffix not in ("", ".py"):
            continue
        assert (f"{path.name}/" if path.is_dir() else path.name) in text, path.name


def test_readme_table_is_the_kept_evidence():
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    kept = (ROOT / "evidence" / "toy" / "table.md").read_text().splitlines()
    assert len(rows) > 8
    assert all(row in kept for row in rows)


def test_kept_evidence_holds_what_it_must():
    """The bounds that table 1 was made to meet, on the results that the README shows."""
    results = json.loads((ROOT / "evidence" / "toy" / "results.json").read_text())
    rows = {row["method"]: row for row in results["rows"]}
    ours = {
        key: value["mean"]
        for key, value in rows["osae"].items()
        if isinstance(value, dict) and "mean" in value
    }
    assert len(results["seeds"]) == 10
    assert ours["stability_truth"] >= 0.99
    assert ours["orderedness_truth"] >= 0.985
    assert ours["stability_pairs"] >= 0.985
    assert ours["mse"] <= 2.5e-4
    paper = rows["osae-paper"]
    for key in ("stability_pairs", "stability_truth", "orderedness_truth"):
        assert paper[key]["mean"] >= paper["paper"][key]["mean"]
    assert paper["mse"]["mean"] <= paper["paper"]["mse"]["mean"]


def test_table_of_speed_is_the_kept_evidence():
    from benchmarks.table import markdown

    kept = json.loads((ROOT / "evidence" / "speed" / "bench.json").read_text())
    assert markdown(kept) in (ROOT / "docs" / "speed.md").read_text()
