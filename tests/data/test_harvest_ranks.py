"""A harvest by several processes leaves the folder that one would, also after one of them is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.tiny import documents, saved_model, saved_text
from tests.stored import files_at
from tests.training.ranks import find_workers

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ALONE = [sys.executable]


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """The options of a harvest of some hundred blocks."""
    made = tmp_path_factory.mktemp("model")
    text = saved_text(made / "text.jsonl", documents(400))
    given = [
        "-m",
        "osae",
        "harvest",
        "--model",
        str(saved_model(made / "llama")),
        "--layer",
        "1",
        "--device",
        "cpu",
    ]
    return [*given, "--text", str(text), "--tokens", "10000", "--context", "8", "--mix-rows", "40"]


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory) -> dict[str, bytes]:
    """The files of one process."""
    out = tmp_path_factory.mktemp("alone") / "acts"
    run([*ALONE, *words], out)
    return files_at(out)


def run(line: list[str], out: Path) -> None:
    """Run a command to its end."""
    done = subprocess.run([*line, "--out", str(out)], capture_output=True, text=True, env=calm(), timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)  # one of them says so
    assert done.stdout.count(str(out)) == 1


def calm() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_leave_the_folder_of_one_also_after_one_is_killed(words, alone, tmp_path):
    assert sum(name.startswith("00") for name in alone) > 100
    out = tmp_path / "acts"
    with open(tmp_path / "said", "w+") as said:
        parent = subprocess.Popen(
            [*TORCHRUN, *words, "--out", str(out)], stderr=said, stdout=said, env=calm()
        )
        deadline = time.monotonic() + 200
        while len(list(out.glob("0*.safetensors"))) < 8:
            assert parent.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(find_workers(parent.pid)[1], signal.SIGKILL)
        assert parent.wait(100) != 0
    assert not (out / "manifest.json").exists()
    run([*TORCHRUN, *words], out)
    assert files_at(out) == alone
