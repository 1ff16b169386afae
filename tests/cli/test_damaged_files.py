"""Damaged and hostile files as a user meets them: code 2 and one line, or the command does what it says."""

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from osae import cli
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
from tests.interop.fuzz import FOLDERS, GOLDEN, bombs, damaged_folder, damaged_own, hostile_files
from tests.peaks import is_within_bound, resident

CASES = 48  # per folder
COMMANDS = ("inspect", "compare", "convert", "order")


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Load everything that the commands need, so that it does not count as the memory of a file."""
    for command in COMMANDS:
        folder = tmp_path_factory.mktemp(command)
        quietly(words(command, GOLDEN / "sparsify", GOLDEN / "sparsify", folder))


@pytest.fixture(autouse=True)
def unchecked_shapes(monkeypatch):
    """Switches run-time shape checks off, so that a test sees the error a user would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def refused(command: str, path: Path, folder: Path, whole: Path = GOLDEN / "sparsify") -> bool:
    """Whether the command ended with code 2 and one line; if not, it did what it says."""
    before = resident("VmRSS", anew=True)
    code, error = quietly(words(command, path, whole, folder))
    assert is_within_bound(path, before), (command, path)
    out = folder / "out"
    if code == 0:
        assert out.is_dir() == (command in ("convert", "order"))
        shutil.rmtree(out, ignore_errors=True)
        return False
    assert code == 2
    assert error.startswith("osae: ")
    assert error.endswith("\n")
    assert len(error.splitlines()) == 1, error
    assert not out.exists()
    return True


def words(command: str, path: Path, whole: Path, folder: Path) -> list[str]:
    """The command with the path; a comparison is with `whole`, an order by activations of its width."""
    match command:
        case "compare":
            return [command, str(path), str(whole), "--chance-draws", "0", "--prefixes", "4"]
        case "convert":
            return [command, str(path), str(folder / "out"), "--to", "osae"]
        case "order":
            if not (x := folder / "x.npy").exists():
                np.save(x, np.random.default_rng(0).standard_normal((32, load(whole).width)))
            return [command, str(path), "--data", str(x), "--out", str(folder / "out")]
        case _:
            return [command, str(path)]


def quietly(words: list[str]) -> tuple[int, str]:
    """The exit code and what went to stderr."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as error:
        return cli.main(words), error.getvalue()


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_files_of_every_library(name, tmp_path):
    ends = [refused_damage(name, case, tmp_path) for case in range(CASES)]
    assert sum(ends) > CASES // 3


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_many_more_damaged_files_of_every_library(name, tmp_path):
    for case in range(CASES, 20 * CASES):
        refused_damage(name, case, tmp_path)


def refused_damage(name: str, case: int, folder: Path) -> bool:
    damaged_folder(name, f"command {case}", folder / "damaged")
    return refused(COMMANDS[case % 4], folder / "damaged", folder, GOLDEN / name)


def test_damaged_files_of_our_own(tmp_path):
    SAE(SAEConfig(8, 32, TopK(4))).save(whole := tmp_path / "whole")
    ends = []
    for case in range(3 * CASES):
        damaged_own(whole, f"command {case}", into := tmp_path / "damaged")
        ends.append(refused(COMMANDS[case % 4], into, tmp_path, whole))
    assert sum(ends) > len(ends) // 3


def test_hostile_pickles_run_nothing(tmp_path):
    canary = tmp_path / "ran"
    for case, (name, data) in enumerate(hostile_files(str(canary))):
        (tmp_path / name).write_bytes(data)
        assert refused(COMMANDS[case % 4], tmp_path / name, tmp_path)
        assert not canary.exists()


def test_bombs_take_no_memory(tmp_path):
    for case, (name, data) in enumerate(bombs()):
        (tmp_path / name).write_bytes(data)
        assert refused(COMMANDS[case % 4], tmp_path / name, tmp_path), (case, name)
