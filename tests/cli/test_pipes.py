"""A pipe in place of any file that a command reads: one line that names it, and no command waits for it."""

import os
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from tests.faults import processes
from tests.faults.kills import TRAIN, prepare_harvest, write_rows
from tests.faults.outcomes import judge_refusal
from tests.faults.processes import run
from tests.studies.saes import noise, save_sae

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
SOON = 100  # seconds: a command that takes longer hangs
TO_OUT = ["--device", "cpu", "--out", "out"]
HARVEST = ["harvest", "--model", "lm", "--layer", "1", "--text", "t.jsonl", "--tokens", "9", *TO_OUT]
CASES = [  # a file, and a command that reads it
    ("x.npy", ["order", "sae", "--data", "x.npy", "--out", "out"]),
    ("x.npy", ["train", "topk", "--data", "x.npy", "--units", "16", "--k", "2", *TO_OUT]),
    ("x.safetensors", ["evaluate", "sae", "--data", "x.safetensors"]),
    ("d.pt", ["inspect", "d.pt"]),
    ("sae/sae.json", ["order", "sae", "--data", "x.npy", "--out", "out"]),
    ("sae/sae.safetensors", ["compare", "sae", "sae"]),
    ("run/run.json", ["show", "run"]),
    ("run/run.json", ["resume", "run"]),
    ("run/log.jsonl", ["resume", "run"]),
    ("run/checkpoint.safetensors", ["resume", "run"]),
    ("run/log.jsonl", ["show", "run"]),
    ("run/log.jsonl", ["watch", "run", "--once"]),
    ("c.json", ["show", "c.json"]),
    ("c.json", ["report", "c.json", "--out", "page.html"]),
    ("acts/manifest.json", ["evaluate", "wide", "--data", "acts"]),
    ("acts/00000.safetensors", ["evaluate", "wide", "--data", "acts"]),
    ("acts/contexts.safetensors", ["inspect", "acts"]),
    ("contexts/sae/contexts.json", ["show", "contexts/sae"]),
    ("contexts/sae/contexts.safetensors", ["report", "contexts/sae", "--out", "page.html"]),
    ("acts/harvest.json", [*HARVEST[:-1], "acts"]),
    ("t.jsonl", HARVEST),
    ("lm/model.safetensors", HARVEST),
    ("lm/config.json", HARVEST),
    ("m.gguf", ["harvest", "--model", "m.gguf", *HARVEST[3:]]),
    ("sweep.yaml", ["sweep", "sweep.yaml", *TO_OUT]),
    ("sweep.yaml", ["train", "--config", "sweep.yaml"]),
]
NOT_NEEDED = [["inspect", "acts"], ["resume", "run"]]  # or there is another one


@pytest.fixture(scope="module")
def files(warmed, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    save_sae(folder / "sae", noise(16, 12, 0))
    save_sae(folder / "wide", noise(16, 16, 0))
    write_rows(folder / "x.npy", 60, 12)
    made = [
        [*TRAIN, "1", "--out", folder / "run"],
        ["compare", folder / "sae", folder / "sae", "--json", folder / "c.json"],
        prepare_harvest(folder, tokens=60)(folder / "acts"),
        ["contexts", folder / "wide", "--data", folder / "acts", "--out", folder / "contexts"],
    ]
    for words in made:
        code, said = run(words)
        assert code == 0, said
    (folder / "contexts" / "wide").rename(folder / "contexts" / "sae")
    return folder


@pytest.mark.parametrize(
    ("name", "words"), CASES, ids=lambda case: case if isinstance(case, str) else case[0]
)
def test_no_command_waits_for_a_pipe(name, words, files, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LONGEST", SOON)
    shutil.copytree(files, tmp_path / "here")
    pipe = tmp_path / "here" / name
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with chdir(tmp_path / "here"):
        code, said = run(words)
    if words not in NOT_NEEDED:
        assert judge_refusal(code, said, name.split("/")[0]) == ""
    assert code in (0, 2), said


def test_a_configuration_may_come_through_a_pipe_that_the_shell_opened(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"unts: 3\n")
    os.close(writer)
    code, said = run(["train", "--config", f"/dev/fd/{reader}"])
    assert judge_refusal(code, said, "unts") == ""
