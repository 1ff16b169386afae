"""Processes that train together end with the weights of one process: by rows, by units, and by both."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from osae.model import SAE
from osae.ranks import ALONE, NO_OTHERS, Mesh, Ranks, open_mesh
from osae.training import sharded
from osae.training.parallel import check_mesh
from tests.training.ranks import (
    HALVES,
    PRECISIONS,
    begin,
    end,
    find_workers,
    launch,
    make_cases,
    train_case,
)

CASES = make_cases()


@pytest.fixture(scope="module")
def alone():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {name: train_case(name) for name in CASES}
    torch.set_num_threads(before)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("processes", "meshes"), [(2, (1, 2)), pytest.param(4, (2, 4), marks=pytest.mark.slow)]
)
def test_every_recipe_ends_as_in_one_process(processes, meshes, alone, tmp_path):
    """And so it does if a checkpoint is passed on from one process to several, or back."""
    for name in HALVES:
        begin(CASES[name], tmp_path / "given" / name)
    launch(processes, "tests.training.ranks", str(tmp_path), ",".join(map(str, meshes)))
    for dictionary_ranks in meshes:
        check_same(alone, tmp_path / str(dictionary_ranks), in_parts=dictionary_ranks > 1)


def check_same(alone: dict[str, SAE], out: Path, *, in_parts: bool) -> None:
    """Raise `AssertionError` unless all SAEs in the folder are those of one process, up to rounding."""
    divided = [name for name in HALVES if sharded.list_whole(out / "begun" / name)]
    assert divided == (list(HALVES) if in_parts else [])
    found = {name: SAE.load(out / name) for name in CASES}
    found |= {f"ended {name}": SAE.load(out / "ended" / name) for name in HALVES}
    found |= {f"begun {name}": end(CASES[name], out / "begun" / name) for name in HALVES}
    for name, sae in found.items():
        expected = alone[name.split()[-1]]
        assert sae.config == expected.config
        for key, tensor in expected.state_dict().items():
            difference = float((sae.state_dict()[key] - tensor).abs().max())
            # rounding; a last bit of bf16 is larger
            assert difference < (4e-3 if name in PRECISIONS else 3e-5), (
                f"{out.name}, {name}: {key} differs by {difference}"
            )


def test_the_case_of_lower_precision_is_one(alone):
    assert not torch.equal(alone["bf16"].encoder, alone["topk"].encoder)


def test_alone_every_collective_returns_what_it_is_given():
    x = torch.randn(3, 2)
    for ranks in (NO_OTHERS, ALONE.rows, ALONE.units, ALONE.everyone):
        for collective in (ranks.sum_, ranks.mean_, ranks.max_, ranks.min_, ranks.join, ranks.spread_):
            assert collective(x) is x
        assert ranks.gather(x)[0] is x
        assert ranks.cut(7) == slice(0, 7)


def test_a_batch_or_dictionary_that_cannot_be_shared_is_refused():
    recipe = CASES["topk"]
    rows, units = Mesh(rows=Ranks(0, 5)), Mesh(units=Ranks(0, 19))
    with pytest.raises(ValueError, match=r"batch=48 cannot be divided equally among 5 ranks: .* such as 50"):
        check_mesh(recipe, rows)
    with pytest.raises(ValueError, match="--dictionary-ranks 19 exceeds the 18 units"):
        check_mesh(recipe, units)
    with pytest.raises(ValueError, match="--dictionary-ranks 2 needs at least as many processes: torchrun"):
        open_mesh(2)


TRAIN = [
    "-m",
    "osae",
    "train",
    "osae",
    "--batch",
    "50",
    "--epochs",
    "10",
    "--world-width",
    "12",
    "--world-units",
    "16",
]
TRAIN += ["--world-active", "2", "--world-samples", "2000", "--checkpoint-seconds", "0.05"]


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_is_replaced_and_the_run_ends_by_itself(tmp_path):
    """torchrun starts all of them again; the second time they resume from the checkpoint."""
    out, torchrun = tmp_path / "run", [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*torchrun, "--nproc-per-node", "2", "--max-restarts", "1", *TRAIN, "--dictionary-ranks", "2"]
    with open(tmp_path / "said", "w+") as said:
        parent = subprocess.Popen([*words, "--out", str(out)], stderr=said, stdout=said)
        deadline = time.monotonic() + 200
        while len(sharded.list_whole(out)) < 2:
            assert parent.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(find_workers(parent.pid)[1], signal.SIGKILL)
        assert parent.wait(200) == 0, (tmp_path / "said").read_text()
    assert SAE.load(out / "osae-seed0").config.units == 16
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert steps == list(range(2, 401, 2))
    text = (tmp_path / "said").read_text()
    assert text.count("osae train: 1/400") == 1  # it did not begin again
