"""Runs in folders: killed, interrupted and resumed, they end like an uninterrupted run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from osae.model import SAE

COMMAND = [sys.executable, "-m", "osae"]
WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "2000"]
TRAIN = [
    "train",
    "osae,matryoshka-random,batchtopk",
    "--seeds",
    "0,1",
    "--batch",
    "50",
    "--epochs",
    "24",
    *WORLD,
]
TRAIN += ["--checkpoint-seconds", "0.05", "--snapshots", "4000"]
NAMES = [f"{recipe}-seed{seed}" for recipe in ("osae", "matryoshka-random", "batchtopk") for seed in (0, 1)]


def started(*words: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def finished(*words: str) -> str:
    process = started(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def weights(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(run / name / "sae.safetensors") for name in NAMES}


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(t, second[name][key]) for name in NAMES for key, t in first[name].items())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    finished(*TRAIN, "--out", str(run))
    return run


def wait_for_checkpoint(process: subprocess.Popen, run: Path, newer_than: int = 0) -> None:
    deadline, saved = time.monotonic() + 60, run / "checkpoint.safetensors"
    while not (saved.exists() and saved.stat().st_mtime_ns > newer_than):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_and_resumed_run_ends_bit_for_bit_the_same(undisturbed, tmp_path):
    run = tmp_path / "run"
    process = started(*TRAIN, "--out", str(run))
    wait_for_checkpoint(process, run)
    for pause in (0.05, 0.2, 0.1):
        time.sleep(pause)
        assert process.poll() is None, "the run ended before it could be killed"
        process.kill()
        process.communicate()
        before = (run / "checkpoint.safetensors").stat().st_mtime_ns
        process = started("resume", str(run))
        wait_for_checkpoint(process, run, newer_than=before)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert same(undisturbed, run)
    assert (run / "log.jsonl").read_text() == (undisturbed / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_a_signal_saves_and_says_how_to_resume(number, code, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = started(*TRAIN, "--checkpoint-seconds", "1000", "--out", str(run))
    deadline = time.monotonic() + 60
    while not (run / "log.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"osae resume {run}" in err
    finished("resume", str(run))
    assert same(undisturbed, run)


def test_a_finished_run_can_be_resumed_and_stays_the_same(undisturbed):
    before = weights(undisturbed)
    finished("resume", str(undisturbed))
    after = weights(undisturbed)
    assert all(torch.equal(t, after[name][key]) for name in NAMES for key, t in before[name].items())


def test_what_a_run_leaves_behind(undisturbed):
    lines = [json.loads(line) for line in (undisturbed / "log.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == set(NAMES)
    assert lines[-1]["step"] == 960
    by_name = [line["total"] for line in lines if line["name"] == "osae-seed0"]
    assert by_name[-1] < by_name[0]
    for samples in ("0", "4000"):
        assert SAE.load(undisturbed / "snapshots" / samples / "osae-seed1").config.units == 16
    about = json.loads((undisturbed / "osae-seed1" / "sae.json").read_text())["provenance"]
    assert about["seed"] == 1
    assert about["recipe"]["name"] == "osae"


def test_a_second_run_in_the_same_folder_is_refused(undisturbed):
    process = started(*TRAIN, "--out", str(undisturbed))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "already contains a run: run `osae resume" in err
    assert len(err.strip().splitlines()) == 1


def test_resume_of_nothing_is_refused(tmp_path):
    process = started("resume", str(tmp_path))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "has no run.json, so there is no run to resume" in err
