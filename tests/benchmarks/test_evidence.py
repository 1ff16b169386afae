"""The command behind `make evidence`: what it keeps, and how long it says that it takes."""

import json

import pytest

from benchmarks import evidence
from osae.experiments import EXPERIMENTS


def test_time_left_is_that_of_the_kept_results_for_as_many_seeds_as_are_asked_for(tmp_path):
    for name, found in {
        "pca": {"training_seconds": 600.0, "seeds": [0, 1, 2, 3, 4]},
        "budgets": {"training_seconds": 1200.0, "seeds": [0, 1, 2, 3, 4]},  # ten are asked for
        "zipf": {"seeds": [0, 1, 2]},  # of a release that did not say
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(found))
    assert evidence.describe_left(["pca"], tmp_path, 1) == "about 10 minutes left"
    assert evidence.describe_left(["pca", "budgets"], tmp_path, 2) == "about 25 minutes left"
    left = evidence.describe_left(["pca", "zipf", "toy"], tmp_path, 1)
    assert left == "about 10 minutes left, not counting zipf, toy"


def test_results_and_numbers_behind_figures_are_kept_and_nothing_else(tmp_path):
    source, folder = tmp_path / "run", tmp_path / "kept"
    (source / "figures").mkdir(parents=True)
    for name in ("results.json", "results.csv", "report.html", "figures/a.csv", "figures/a.png"):
        (source / name).write_text(name)
    folder.mkdir()
    (folder / "old.txt").write_text("")
    evidence.keep(source, folder)
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert kept == ["figures/a.csv", "results.csv", "results.json"]


def test_every_experiment_that_is_run_exists():
    assert set(evidence.EXPERIMENTS) <= set(EXPERIMENTS)


def test_an_unknown_experiment_is_refused():
    with pytest.raises(SystemExit, match="no experiment lm: choose from lemma"):
        evidence.main(["lm"])
