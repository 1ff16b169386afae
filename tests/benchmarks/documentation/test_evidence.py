"""Kept results: claims, tables and intervals follow from the numbers beside them."""

import itertools
import json
import subprocess

import pytest

from benchmarks import ROOT
from benchmarks.documentation.evidence import (
    FOLDERS,
    judge_again,
    list_intervals,
    list_missing,
    renew_intervals,
)
from osae import results
from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNDECIDED, UNTESTED, judge_result
from osae.experiments.options import ENOUGH_SEEDS
from osae.files import CHECKSUM
from osae.metrics.statistics import make_interval

KEYS = {
    "runs": lambda seeds: itertools.combinations(seeds, 1),
    "pairs": lambda seeds: itertools.combinations(seeds, 2),
    "crossed": lambda seeds: itertools.permutations(seeds, 2),
}
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


@every_folder
def test_kept_claims_and_tables_follow_from_the_kept_numbers(folder):
    made, again = judge_again(folder), "python -m benchmarks.documentation.evidence writes them again"
    assert (folder / "table.md").read_text(encoding="utf-8") == made["table.md"], again
    kept, judged = json.loads((folder / "results.json").read_text(encoding="utf-8")), made["results.json"]
    _assert_same(kept | {CHECKSUM: None}, json.loads(judged) | {CHECKSUM: None}, again)


def _assert_same(kept, judged, where):
    """Numbers may differ in their last digits, which depend on the processor."""
    assert type(kept) is type(judged), where
    if isinstance(kept, dict):
        assert list(kept) == list(judged), where
        for key, value in kept.items():
            _assert_same(value, judged[key], f"{where}: {key}")
    elif isinstance(kept, list):
        assert len(kept) == len(judged), where
        for i, value in enumerate(kept):
            _assert_same(value, judged[i], f"{where}: {i}")
    elif isinstance(kept, float):
        assert kept == pytest.approx(judged, rel=1e-6, abs=1e-9), where
    else:
        assert kept == judged, where


@every_folder
def test_no_kept_claim_is_left_out(folder):
    result = results.read(folder / "results.json")
    judged = judge_result(result) if len(result.seeds) >= ENOUGH_SEEDS else ()  # one pair decides nothing
    assert [claim.claim for claim in result.claims] == [claim.claim for claim in judged]


@every_folder
def test_kept_means_and_intervals_follow_from_the_values_of_every_seed(folder):
    result = results.read(folder / "results.json")
    seeds = [str(seed) for seed in result.seeds]
    for where, interval in list_intervals(result):
        assert interval.values is not None, where
        assert list(interval.values) == ["-".join(named) for named in KEYS[interval.over](seeds)], where
        again = make_interval(interval.over, interval.values)
        spread = () if result.experiment == "lm" else ("std",)  # curves have intervals only
        for name in ("mean", *spread, "low", "high"):
            kept, found = getattr(interval, name), getattr(again, name)
            assert (kept is None) == (found is None), (where, name)  # a single pair has no interval
            assert kept is None or kept == pytest.approx(found, rel=1e-9, abs=1e-12), (where, name)


@every_folder
def test_kept_results_hold_recipes_commit_cost_and_the_values_of_every_seed(folder):
    assert not list_missing(results.read(folder / "results.json"))


@every_folder
def test_kept_results_name_commits_of_this_repository(folder):
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("needs the repository's whole history")
    for commit in {data["commit"], *(data.get("training_commits") or ())}:
        assert subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"]).returncode == 0, commit


def test_intervals_of_curves_are_computed_again_from_their_values():
    data = json.loads((FOLDERS[0].parent / "lm-small" / "results.json").read_text())
    curve = data["crossings"][0]["other_seed"]["stability"]
    changed = json.loads(json.dumps(curve)) | {"low": [0.0] * len(curve["low"])}
    assert renew_intervals({"crossings": [changed]})["crossings"][0]["low"] == pytest.approx(curve["low"])
    changed["values"]["0-1"] = [1.0] * len(curve["mean"])
    again = renew_intervals(changed)
    assert again["mean"] > curve["mean"]
    assert again["high"] > curve["high"]


def test_verdicts_are_the_words_that_the_pages_explain():
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    table = page.split("| verdict | when |\n|---|---|\n")[1].split("\n\n")[0]
    explained = {line.split("|")[1].strip() for line in table.splitlines()}
    assert explained == {HOLDS, PARTLY, FAILS, UNDECIDED, UNTESTED}
    evidence = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert all(f"**{word}**" in evidence for word in explained)
    given = {claim.verdict for folder in FOLDERS for claim in results.read(folder / "results.json").claims}
    assert given == explained


def test_a_changed_number_changes_the_verdict(tmp_path):
    data = json.loads((FOLDERS[0].parent / "pca" / "results.json").read_text())
    for row in data["rows"]:
        values = {str(seed): 0.5 + seed / 1000 for seed in range(5)}
        row["least_cosine"] = {"mean": 0.502, "over": "runs", "values": values}
    (tmp_path / "results.json").write_text(json.dumps(data))
    (claim,) = json.loads(judge_again(tmp_path)["results.json"])["claims"]
    assert claim["verdict"] == "holds in part"  # neither finds the principal directions
    assert [one["outcome"] for one in claim["tested"]] == ["false", "true"]
