"""`osae sweep`: every combination is a run; finished ones are skipped, failed ones listed and tried again."""

import csv
import json
import os
import signal

import pytest

from osae import results
from osae.cli import main
from osae.cli.commands import sweep as command
from osae.cli.commands.train import COMMAND as TRAIN
from osae.cli.config_file import read_sweep
from osae.results.sweep import Sweep
from osae.training import run as runs

FILE = """
command: train
world_width: 12
world_units: 16
world_samples: 400
batch: 50
epochs: 2
set: [adam.eps=1e-6]
vary:
  recipes: [topk, batchtopk]
  set: [lr.peak=0.01, lr.peak=0.02]
"""
NAMES = [f"recipes={recipe}_set=lr.peak={rate}" for recipe in ("topk", "batchtopk") for rate in (0.01, 0.02)]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "sweep.yaml").write_text(FILE)
    return tmp_path / "sweep.yaml"


def sweep(file, *words):
    code = main(["sweep", str(file), "--out", str(file.parent / "out"), "--jobs", "1", *words])
    found = results.read(file.parent / "out" / "results.json")
    assert isinstance(found, Sweep)
    return code, found


def test_a_file_stands_for_every_combination(file):
    found = read_sweep(str(file), TRAIN)
    assert [one.settings for one in found[:2]] == [
        {"recipes": "topk", "set": f"lr.peak={rate}"} for rate in (0.01, 0.02)
    ]
    assert found[3].values["recipes"] == ("batchtopk",)
    assert found[3].values["set"] == ("adam.eps=1e-6", "lr.peak=0.02")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("vary: {seed: [1]}", "line 1: no option seed"),
        ("vary: {seeds: 3}", "line 1: vary: seeds: give a list of values"),
        ("vary: 3", "line 1: vary: give lists of values by option"),
        ("out: there", "line 1: no option out"),
        ("recipes: topk\nvary: {batch: [0]}", "--batch 0: give a whole number of at least 1"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(wrong, said, file, capsys):
    file.write_text(wrong)
    assert main(["sweep", str(file), "--out", str(file.parent / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (file.parent / "out" / "runs").exists()


def test_runs_are_trained_once_and_listed(file, capsys, monkeypatch):
    code, found = sweep(file)
    assert code == 0
    assert [run.name for run in found.runs] == NAMES
    assert all(run.state == "finished" and run.attempts == 0 for run in found.runs)
    assert all(0 < (sae.measures["explained_variance"] or 0) <= 1 for run in found.runs for sae in run.saes)
    said = capsys.readouterr()
    assert f"4/4 {NAMES[-1]}" in said.err  # of the others, lines come now and then
    out = file.parent / "out"
    assert [row["set"] for row in csv.DictReader((out / "results.csv").read_text().splitlines())][:2] == [
        "lr.peak=0.01",
        "lr.peak=0.02",
    ]
    assert "Sweep of 4 runs" in (out / "report.html").read_text()
    log = (out / "runs" / NAMES[0] / "log.jsonl").read_text().splitlines()
    last = json.loads(log[-1])
    assert found.runs[0].saes[0].measures["explained_variance"] == last["explained_variance"]
    monkeypatch.setattr(runs, "go", None)  # would fail if it were called
    assert sweep(file)[1].runs == found.runs
    file.write_text(FILE.replace("epochs: 2", "epochs: 3"))
    assert main(["sweep", str(file), "--out", str(out)]) == 2
    assert "contains a run with other settings: give a new --out" in capsys.readouterr().err


def test_failed_runs_are_listed_with_their_error_and_tried_again_on_request(file, monkeypatch):
    real, calls = runs.go, []

    def fail(folder, **rest):
        calls.append(folder.name)
        if folder.name == NAMES[1] and calls.count(NAMES[1]) < 4:
            raise ValueError("a loss is NaN")
        return real(folder, **rest)

    monkeypatch.setattr(runs, "go", fail)
    monkeypatch.setattr("osae.experiments.places.run_locally", lambda f, tasks, **rest: map(f, tasks))
    code, found = sweep(file)
    assert (code, [run.state for run in found.runs]) == (1, ["finished", "failed", "finished", "finished"])
    assert (found.runs[1].attempts, found.runs[1].error) == (1, "a loss is NaN")
    assert found.remarks() == [f"{NAMES[1]} failed (1 times): a loss is NaN"]
    assert found.summary() == ["4 runs: 3 finished, 1 failed."]
    calls.clear()
    assert sweep(file)[0] == 1
    assert calls == []  # not without --retry
    calls.extend([NAMES[1]])  # as if it had failed once
    code, found = sweep(file, "--retry", "2")
    assert (code, calls.count(NAMES[1])) == (0, 4)
    assert all(run.state == "finished" for run in found.runs)


def die(task):
    """Kill the worker of one task; workers find this function by its name."""
    if task.name == NAMES[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    from osae.experiments.sweep import train_run

    return train_run(task)


def test_a_worker_that_is_killed_fails_its_run_alone(file, monkeypatch):
    monkeypatch.setattr("osae.experiments.sweep.train_run", die)
    code, found = sweep(file)
    assert code == 1
    assert [run.state for run in found.runs] == ["finished", "finished", "failed", "finished"]
    assert "killed by SIGKILL" in (found.runs[2].error or "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "auto"], "--address auto is the address of a Ray cluster: add --on ray"),
        (["--slurm", "partition=gpu"], "--slurm partition=gpu is an option for sbatch: add --on slurm"),
        (["--on", "slurm", "--slurm", "gpu"], "--slurm gpu: give NAME=VALUE"),
    ],
)
def test_options_of_another_place_are_refused(words, said, file, capsys):
    assert main(["sweep", str(file), "--out", str(file.parent / "out"), *words]) == 2
    assert said in capsys.readouterr().err


def test_the_help_text_shows_a_file_that_works(tmp_path):
    shown = [line[4:] for line in command.NOTES.splitlines() if line.startswith("    ")]
    (tmp_path / "sweep.yaml").write_text("\n".join(shown))
    assert len(read_sweep(str(tmp_path / "sweep.yaml"), TRAIN)) == 12
