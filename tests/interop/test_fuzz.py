"""Damaged and hostile files: each loads, or ends in one clear line; none runs code or takes undue memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from osae.cli import main
from osae.files import read_json
from osae.interop import load
from osae.interop.weights import read_entries
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
from tests.interop.fuzz import (
    FOLDERS,
    GOLDEN,
    Call,
    archive,
    bombs,
    damaged_folder,
    damaged_own,
    hostile_files,
    safetensors,
)

CASES = 66  # per folder
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def outcome(path) -> str:
    """How loading ended: 'loaded' if the SAE can be used, else the message, which must be one clear line."""
    try:
        loaded = load(path)
    except ValueError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(path))
        assert len(message) > len(str(path)) + 10
        return message
    assert loaded.decoder.ndim == 2
    assert loaded.decoder.isfinite().all()
    if loaded.sae is not None:
        with torch.no_grad():
            recon, code = loaded.sae(torch.zeros(2, loaded.width))
        assert recon.shape == (2, loaded.width)
        assert int(code.units.max()) < loaded.units
    return "loaded"


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_files_load_or_say_why_in_one_line(name, tmp_path):
    ends = [outcome_of_damage(name, str(case), tmp_path) for case in range(CASES)]
    assert sum(end != "loaded" for end in ends) > CASES // 4  # the damage is real


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_many_more_damaged_files(name, tmp_path):
    for case in range(20 * CASES):
        outcome_of_damage(name, f"more {case}", tmp_path)


def outcome_of_damage(name: str, seed: str, folder: Path) -> str:
    damaged_folder(name, seed, folder)
    return outcome(folder)


def test_damage_to_our_own_files(tmp_path):
    SAE(SAEConfig(8, 32, TopK(4))).save(tmp_path / "whole")
    for case in range(200):
        damaged_own(tmp_path / "whole", str(case), tmp_path / "damaged")
        outcome(tmp_path / "damaged")


def test_config_that_asks_for_a_huge_sae_allocates_nothing(tmp_path):
    SAE(SAEConfig(8, 32, TopK(4))).save(tmp_path)
    about = read_json(tmp_path / "sae.json")
    about["config"] |= {"width": 10**9, "units": 10**9}
    (tmp_path / "sae.json").write_text(json.dumps(about))
    assert "sae.json requires (1000000000, 1000000000)" in outcome(tmp_path)


def nested(depth):
    """A list in a list in a list ..., as the pickle of a torch archive; pickling it here would recurse."""
    return archive(b"\x80\x02}X\x01\x00\x00\x00k" + b"]" * depth + b"a" * (depth - 1) + b"s.")


def test_deeply_nested_entries_are_refused(tmp_path):
    for depth in (60, 5_000, 100_000):
        (tmp_path / "ae.pt").write_bytes(nested(depth))
        assert "ae.pt cannot be read: it is nested more than 50 levels deep" in outcome(tmp_path)


def test_keys_of_mixed_types_are_read_as_text(tmp_path):
    torch.save({"encoder.weight": torch.ones(3, 2), 7: torch.ones(2), (1, 2): 3}, tmp_path / "ae.pt")
    assert set(read_entries(tmp_path / "ae.pt")) == {"encoder.weight", "7", "(1, 2)"}
    assert main(["inspect", str(tmp_path)]) == 0


def test_a_file_of_very_many_tensors_is_refused_at_once(tmp_path):
    count = 30_000
    about = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(count)}
    (tmp_path / "x.safetensors").write_bytes(safetensors(about, bytes(count)))
    assert "it contains 30000 entries, more than the limit of 20000" in outcome(tmp_path)


def test_hostile_pickles_are_refused_and_run_nothing(tmp_path):
    canary = tmp_path / "ran"
    count = 0
    for name, data in hostile_files(str(canary)):
        (tmp_path / name).write_bytes(data)
        assert outcome(tmp_path / name) != "loaded"
        assert not canary.exists()
        count += 1
    assert count > 800


def test_the_reason_names_what_the_pickle_needs(tmp_path):
    path = tmp_path / "ae.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    assert "torch.nn.modules.linear.Linear, but code in files is never run" in outcome(path)


def test_arrays_of_objects_are_refused(tmp_path):
    canary = tmp_path / "ran"
    array = np.array([[Call(eval, f"open({str(canary)!r}, 'w')")]], dtype=object)
    np.save(tmp_path / "d.npy", array, allow_pickle=True)
    np.savez(tmp_path / "d.npz", d=array)
    for name in ("d.npy", "d.npz"):
        assert "Python objects" in outcome(tmp_path / name)
    assert not canary.exists()


def load_bombs(folder: str) -> None:
    """Loads every file below the folder and prints how many there were and the rise of the memory's peak."""
    for warm in ("sparsify", "dictionary_learning-AutoEncoderTopK", "gemma_scope"):
        load(GOLDEN / warm)
    made = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    before = peaks()
    for path in made:
        assert outcome(path) != "loaded", path
    print(len(made), *(after - start for after, start in zip(peaks(), before, strict=True)))


def peaks() -> tuple[int, int]:
    """The highest resident and virtual memory of this process so far, in kB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]), int(fields["VmPeak"].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory peaks from /proc")
def test_bombs_are_refused_without_memory(tmp_path):
    for number, (name, data) in enumerate(bombs()):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_bytes(data)
    code = "import sys; from tests.interop.test_fuzz import load_bombs; load_bombs(sys.argv[1])"
    child = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(child, cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    count, resident, virtual = map(int, done.stdout.split())
    assert count > 70
    assert resident < 10_000  # kB; each bomb would take 20 MB or more
    assert virtual < 10_000


def test_special_files_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "ae.pt")
    assert "not a regular file" in outcome(tmp_path / "ae.pt")
    (tmp_path / "d.npy").symlink_to("/dev/zero")
    assert "not a regular file" in outcome(tmp_path / "d.npy")
