"""What the README shows is what runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

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


def test_readme_tables_are_the_kept_evidence():
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    tables = [(ROOT / "evidence" / name / "table.md").read_text() for name in ("toy", "lm")]
    kept = [line for table in tables for line in table.splitlines()]
    assert len(rows) > 16
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


def test_page_of_evidence_says_what_the_results_say():
    page = (ROOT / "docs" / "evidence.md").read_text()
    claims = json.loads((ROOT / "evidence" / "lm" / "results.json").read_text())["claims"]
    assert len(claims) >= 10
    for claim in claims:
        assert f"| {claim['claim']} | {claim['found']} | {claim['verdict']} |" in page


def test_error_by_feature_predicts_stability_better_than_error():
    rows = json.loads((ROOT / "evidence" / "toy" / "results.json").read_text())["rows"]
    trained = [row for row in rows if "sorted" not in row["method"]]
    assert len(trained) == 8

    def correlation(measure):
        errors, stable = ([row[key]["mean"] for row in trained] for key in (measure, "stability_truth"))
        return -stats.spearmanr(errors, stable).statistic

    found = f"FIFR {correlation('fifr'):.2f}, error {correlation('mse'):.2f}"
    assert found in (ROOT / "docs" / "evidence.md").read_text()


def test_kept_evidence_of_language_models_holds_what_it_must():
    """From each start `osae` is ahead at every prefix from 64 on, at nearly TopK's error."""
    results = json.loads((ROOT / "evidence" / "lm" / "results.json").read_text())
    assert len(results["seeds"]) >= 3
    assert results["world"]["tokens"] >= 2e6
    assert set(results["curves"]) == {"wikipedia, data", "linux, data", "wikipedia, noise"}
    for place, curves in results["curves"].items():
        for rival in ("topk-sorted", "matryoshka-fixed", "matryoshka-random", "osae-paper"):
            for measure in ("stability", "orderedness"):
                ours, theirs = curves["osae"][measure], curves[rival][measure]
                for length, mine, other in zip(ours["prefix"], ours["mean"], theirs["mean"], strict=True):
                    assert length < 64 or mine > other, (place, rival, measure, length)
    explained = {
        (section["title"], row["method"]): row["explained_variance"]["mean"]
        for section in results["sections"]
        for row in section["rows"]
        if "explained_variance" in row
    }
    for title, method in explained:
        if method == "osae":
            assert explained[title, "topk"] - explained[title, "osae"] <= 0.01


def test_table_of_speed_is_the_kept_evidence():
    from benchmarks.table import markdown

    kept = json.loads((ROOT / "evidence" / "speed" / "bench.json").read_text())
    assert markdown(kept) in (ROOT / "docs" / "speed.md").read_text()
