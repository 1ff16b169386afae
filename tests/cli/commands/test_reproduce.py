"""`osae reproduce` as a user meets it."""

import json
import time

import pytest

from osae.cli import main
from osae.cli.commands.reproduce import find_commands
from osae.experiments import EXPERIMENTS
from osae.options import list_options

SMALL = ["--world-width", "10", "--world-units", "8", "--world-active", "2", "--world-samples", "1000"]


def test_the_experiments_are_listed(capsys):
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in EXPERIMENTS)
    assert all(experiment.help[1:] in out for experiment in EXPERIMENTS.values())
    assert list(find_commands()) == list(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_takes_its_own_options_and_no_others(name, capsys):
    own = {declared.flag for declared in list_options(EXPERIMENTS[name].options)}
    every = {d.flag for each in EXPERIMENTS.values() for d in list_options(each.options)}
    assert {"--out", "--quick"} <= own
    for flag in sorted(every - own):
        assert main(["reproduce", name, "--out", "x", flag, "1"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"osae reproduce {name}: no option {flag}: ")
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pca", "--world-zipf", "1"], "no option --world-zipf"),
        (["pca", "--exponents", "1"], "no option --exponents"),
        (["zipf", "--exponents", "1,steep"], "--exponents steep: give a number."),
        (["zipf", "--exponents", "1,inf"], "--exponents inf: give a finite number."),
        (["ablate", "--methods", "topk"], "no option --methods"),
        (["toy", "--methods", "nonsense"], "--methods nonsense: give one of vanilla"),
        (["toy", "--seeds", "inf"], "--seeds inf: give a whole number"),
        (["toy", "--seeds", "0"], "--seeds 0: give a whole number of at least 1."),
        (["toy", "--k", "2"], "no option --k"),
        (["lm", "--k", "0"], "--k 0: give a whole number of at least 1."),
        (["tory"], "no experiment 'tory': did you mean toy?"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words, "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_reproduce_writes_results_table_and_page_and_continues_from_what_is_there(tmp_path, capsys):
    out = tmp_path / "toy"
    words = [
        "reproduce",
        "toy",
        "--quick",
        "--jobs",
        "1",
        "--methods",
        "topk,osae",
        "--seeds",
        "2",
        "--out",
        str(out),
        *SMALL,
    ]
    assert main(words) == 0
    assert "report.html" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == 1
    assert results["experiment"] == "toy"
    assert results["command"].startswith("osae reproduce toy --quick")
    assert results["seconds"] > 0
    assert {"torch", "cpu"} <= results["versions"].keys()
    assert results.get("training_commits", [None]) == [results.get("commit")]
    methods = [row["method"] for row in results["rows"]]
    assert methods == ["topk", "topk-sorted", "topk-sorted-by-gain", "osae"]
    for key in ("stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse"):
        assert set(results["rows"][0][key]) == {"mean", "std", "low", "high", "over", "values"}
    assert "<figure data-plot=" in (out / "report.html").read_text()
    assert "osae" in (out / "table.md").read_text()
    trained = out / "saes" / "osae-seed1" / "sae.safetensors"
    before = trained.stat().st_mtime_ns
    start = time.perf_counter()
    assert main(words) == 0
    assert trained.stat().st_mtime_ns == before
    assert json.loads((out / "results.json").read_text())["rows"] == results["rows"]
    assert time.perf_counter() - start < 60
