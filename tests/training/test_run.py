"""Runs in folders: killed, interrupted and resumed, they end like an uninterrupted run."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from osae.model import SAE
from tests.faults.processes import run

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "2000"]
TRAIN = ["train", "osae,matryoshka-random,batchtopk", "--seeds", "0,1", "--batch", "50", *WORLD]
TRAIN += ["--epochs", "3", "--checkpoint-seconds", "0.02", "--snapshots", "4000", "--device", "cpu"]
NAMES = [f"{recipe}-seed{seed}" for recipe in ("osae", "matryoshka-random", "batchtopk") for seed in (0, 1)]

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def finished(*words: object) -> str:
    code, said = run(words)
    assert code == 0, said
    return said


def weights(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(run / name / "sae.safetensors") for name in NAMES}


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(t, second[name][key]) for name in NAMES for key, t in first[name].items())


@pytest.fixture(scope="module")
def undisturbed(warmed, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finished(*TRAIN, "--out", folder)
    return folder


def test_killed_and_resumed_run_ends_bit_for_bit_the_same(undisturbed, tmp_path):
    folder = tmp_path / "run"
    for at in (
        1,
        2,
        3,
        30,
        70,
        85,
        100,
    ):  # calls that flush, rename or remove a file; the first are of run.json
        words = ["resume", folder] if (folder / "run.json").exists() else [*TRAIN, "--out", folder]
        assert run(words, at=at)[0] == -signal.SIGKILL
    finished("resume", folder)
    assert same(undisturbed, folder)
    assert (folder / "log.jsonl").read_text() == (undisturbed / "log.jsonl").read_text()


def test_a_run_on_several_devices_equals_that_on_one_bit_for_bit(undisturbed, tmp_path):
    finished(*TRAIN, "--device", "cpu,cpu", "--out", tmp_path / "run")
    assert same(undisturbed, tmp_path / "run")
    said = run([*TRAIN, "--device", "cpu,toaster", "--out", tmp_path / "other"])
    assert said[0] == 2
    assert "several separated by commas" in said[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(number, code, undisturbed, tmp_path):
    folder = tmp_path / "run"
    words = [*TRAIN, "--checkpoint-seconds", "1000", "--out", folder]
    ended, said = run(words, at=80, number=number)  # while the snapshot is written
    assert ended == code
    assert "interrupted after 80 of 120 steps" in said
    assert f"osae resume {folder}" in said
    assert (folder / "checkpoint.safetensors").exists()
    finished("resume", folder)
    assert same(undisturbed, folder)


def test_a_finished_run_can_be_resumed_and_stays_the_same(undisturbed):
    before = weights(undisturbed)
    finished("resume", undisturbed)
    after = weights(undisturbed)
    assert all(torch.equal(t, after[name][key]) for name in NAMES for key, t in before[name].items())


def test_what_a_run_leaves_behind(undisturbed):
    lines = [json.loads(line) for line in (undisturbed / "log.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == set(NAMES)
    assert lines[-1]["step"] == 120
    by_name = [line["total"] for line in lines if line["name"] == "osae-seed0"]
    assert by_name[-1] < by_name[0]
    for samples in ("0", "4000"):
        assert SAE.load(undisturbed / "snapshots" / samples / "osae-seed1").config.units == 16
    about = json.loads((undisturbed / "osae-seed1" / "sae.json").read_text())["provenance"]
    assert about["seed"] == 1
    assert about["recipe"]["name"] == "osae"


def test_a_second_run_in_the_same_folder_is_refused(undisturbed):
    code, said = run([*TRAIN, "--out", undisturbed])
    assert code == 2
    assert "already contains a run: run `osae resume" in said
    assert len(said.strip().splitlines()) == 1


def test_resume_of_nothing_is_refused(tmp_path):
    code, said = run(["resume", tmp_path])
    assert code == 2
    assert "has no run.json, so there is no run to resume" in said
