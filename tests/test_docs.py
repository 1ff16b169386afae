"""What the README shows is what runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pages
from osae.experiments import lm_claims, world_claims
from osae.experiments.variations import OUR_TOPK

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def kept(name):
    return json.loads((ROOT / "evidence" / name / "results.json").read_text())


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


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda path: path.name)
def test_tables_in_pages_are_the_kept_evidence(page):
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text) == text, "python -m benchmarks.pages puts the kept tables in their places"


def test_places_are_found_and_a_wrong_table_would_be_seen():
    text = (ROOT / "docs" / "evidence.md").read_text()
    assert len(pages.PLACE.findall(text)) >= 10
    assert pages.filled(text.replace("holds |", "fails |")) == text
    with pytest.raises(ValueError, match="no table 'Absent'"):
        pages.filled("<!-- from evidence/toy: Absent -->\n<!-- end -->")
    with pytest.raises(ValueError, match="no `<!-- end -->` of its own"):
        pages.filled("<!-- from evidence/toy: Claims -->\n" * 2 + "<!-- end -->")


def test_kept_evidence_holds_what_it_must():
    """The bounds that table 1 was made to meet, on the results that the README shows."""
    results = kept("toy")
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


def test_kept_verdicts_follow_from_the_kept_numbers():
    """All that `osae reproduce` says of the paper's claims, from the numbers beside them."""
    lm = kept("lm")
    assert lm_claims.claims(lm, lm["world"]["units"], 5) == lm["claims"]
    names = ("toy", "pca", "sizes", "schedules", "zipf")
    toy, pca, sizes, schedules, zipf = (kept(name) for name in names)
    assert world_claims.table_1(toy["rows"]) == toy["claims"]
    assert world_claims.principal_directions(pca["rows"]) == pca["claims"]
    assert world_claims.order_by_energy(kept("energy")["rows"], -1.0) == kept("energy")["claims"]
    assert world_claims.other_sizes(sizes["sections"]) == sizes["claims"]
    assert world_claims.zipfian(zipf["sections"], OUR_TOPK) == zipf["claims"]
    assert world_claims.schedules(schedules["rows"]) == schedules["claims"]


def test_kept_evidence_of_language_models_holds_what_it_must():
    """From each start `osae` is ahead at every prefix from 64 on, at nearly TopK's error."""
    results = kept("lm")
    assert len(results["seeds"]) >= 3
    assert results["world"]["tokens"] >= 2e6
    assert set(results["curves"]) == {f"{t}, {s}" for t in ("wikipedia", "linux") for s in ("data", "noise")}
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


def test_kept_pace_of_harvest_is_the_one_that_the_page_tells():
    share = json.loads((ROOT / "evidence" / "lm" / "harvesting.json").read_text())["share"]
    assert share >= 0.9
    assert (
        f"harvest ran at {share:.0%}".replace("%", " %") in (ROOT / "docs" / "language-models.md").read_text()
    )


def test_table_of_speed_is_the_kept_evidence():
    from benchmarks.table import markdown

    kept = json.loads((ROOT / "evidence" / "speed" / "bench.json").read_text())
    assert markdown(kept) in (ROOT / "docs" / "speed.md").read_text()
