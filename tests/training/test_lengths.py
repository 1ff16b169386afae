"""How long a run is: extended, finished or not, and stopped on a plateau; both however it was interrupted."""

import json
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from osae.cli import main
from osae.config import alter
from osae.model import SAE
from osae.recipes import Task, recipe, world_recipe
from osae.training import run as runs
from osae.training.plateau import Plateau, has_levelled_off
from osae.training.schedules import find_settled_step, make_schedules
from tests.faults.processes import MEMORY, run

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "1000"]
TRAIN = ["train", "osae,batchtopk", "--batch", "50", *WORLD, "--epochs", "2", "--checkpoint-seconds", "0"]
NAMES = ("osae-seed0", "batchtopk-seed0")

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = {name: load_file(folder / name / "sae.safetensors") for name in NAMES}
    return {f"{name}/{key}": tensor for name, tensors in found.items() for key, tensor in tensors.items()}


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.fixture(scope="module")
def fast():
    """A folder in memory: a checkpoint is written after every step."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(fast):
    return Path(tempfile.mkdtemp(dir=fast))


@pytest.fixture(scope="module")
def planned(warmed, fast) -> Path:
    folder = fast / "planned"
    assert run([*TRAIN, "--out", folder])[0] == 0
    return folder


@pytest.fixture(scope="module")
def extended(warmed, fast) -> Path:
    folder = fast / "extended"
    assert run([*TRAIN, "--out", folder])[0] == 0
    assert run(["resume", folder, "--tokens", "5e3"])[0] == 0
    return folder


def test_an_extension_changes_the_saes_and_keeps_what_was_planned(planned, extended):
    assert same(extended / "snapshots" / "2000", planned)
    assert not same(extended, planned)
    assert [one.extensions for one in runs.read(extended).recipes] == [(3000,), (3000,)]
    lines = [json.loads(line) for line in (extended / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["name"] == NAMES[0]] == list(range(1, 101))
    # the rate falls to nothing where training was to end, and again where it ends now
    rates = [line["lr"] for line in lines if line["name"] == NAMES[0]]
    assert rates[39] < 0.1 * rates[0]
    assert rates[40] == rates[0]
    assert rates[99] < 0.1 * rates[0]


@pytest.mark.parametrize("kills", [(30,), (30, 100, 60)], ids=["before", "before and after"])
def test_it_does_not_matter_when_a_run_is_extended_or_how_often_it_is_interrupted(kills, extended, tmp_path):
    folder = tmp_path / "run"
    assert run([*TRAIN, "--out", folder], at=kills[0])[0] == -signal.SIGKILL
    for at in kills[1:]:
        assert run(["resume", folder, "--tokens", "5000"], at=at)[0] == -signal.SIGKILL
    assert run(["resume", folder, "--tokens", "5000"])[0] == 0
    assert same(folder, extended)
    assert same(folder / "snapshots" / "2000", extended / "snapshots" / "2000")
    assert (folder / "log.jsonl").read_text() == (extended / "log.jsonl").read_text()


def test_a_run_killed_while_it_is_being_extended_is_extended_again(extended, tmp_path):
    folder = tmp_path / "run"
    assert run([*TRAIN, "--out", folder])[0] == 0
    for at in (1, 2, 3):  # SAEs are moved and run.json is written
        assert run(["resume", folder, "--tokens", "5000"], at=at)[0] == -signal.SIGKILL
    assert run(["resume", folder, "--tokens", "5000"])[0] == 0
    assert same(folder, extended)


def test_a_run_is_not_made_shorter(planned, capsys):
    for tokens in ("1000", "2010"):
        assert main(["resume", str(planned), "--tokens", tokens]) == 2
        assert "is planned for 2000 samples: extend it to at least 2050" in capsys.readouterr().err


def test_schedules_of_an_extension():
    made = alter(
        recipe("osae", Task(width=8, units=32, k=3, samples=1000, batch=10)),
        {"extensions": (500,), "k_warmup.share": 0.3},
    )
    plan = make_schedules(made)
    assert (made.segments, made.steps) == ((100, 50), 150)
    assert [plan.k(step) for step in (0, 99, 100, 149)] == [15, 3, 3, 3]
    assert [plan.frozen(step) for step in (0, 84, 85, 100)] == [2, 2, 0, 0]
    assert [plan.placed(step) for step in (0, 99, 100, 149)] == [2, 2, 2, 2]
    assert plan.resorts == plan.last_resorts == (100, 150)
    peak = made.lr.peak
    assert plan.rate(99) < 0.1 * peak
    assert plan.rate(110) == peak
    assert plan.rate(149) < 0.1 * peak
    assert [find_settled_step(made, done) for done in (50, 100, 140)] == [30, 101, 101]
    with pytest.raises(ValueError, match="samples=5, batch=10: train on at least one batch"):
        alter(made, {"extensions": (5,)})


def test_a_plateau_is_where_the_mean_loss_no_longer_falls():
    rule = Plateau(0.1, lines=2)
    assert not has_levelled_off(rule, [9.0, 9.0, 9.0])  # too few
    assert not has_levelled_off(rule, [10.0, 8.0, 8.0, 8.0])
    assert has_levelled_off(rule, [50.0, 10.0, 8.0, 9.0, 8.0])
    assert has_levelled_off(rule, [5.0, 5.0, 50.0, 60.0])  # rising
    assert not has_levelled_off(rule, [9.0, None, 9.0, 9.0])
    with pytest.raises(ValueError, match=r"improvement=1\.5: give a share"):
        Plateau(1.5)


STOPPING = [*TRAIN, "--epochs", "10", "--log-every", "2", "--stop-on-plateau", "0.2", "--patience", "3"]


def test_a_run_stops_on_a_plateau_with_its_units_sorted_and_the_same_if_interrupted(warmed, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    code, said = run([*STOPPING, "--out", whole])
    assert code == 0
    stopped = json.loads((whole / NAMES[0] / "sae.json").read_text())["provenance"]["stopped"]
    # k is warmed up in the first 35 % of 200 steps, and six lines of the log come after that
    assert 70 + 6 * 2 <= stopped["step"] < 200
    assert stopped["why"] == "plateau"
    assert f"stopped on a plateau after {stopped['step']} steps of 200" in said
    for at in (100, 250):
        words = ["resume", cut] if (cut / "run.json").exists() else [*STOPPING, "--out", cut]
        assert run(words, at=at)[0] == -signal.SIGKILL
    assert run(["resume", cut])[0] == 0
    assert same(whole, cut)
    assert (whole / "log.jsonl").read_text() == (cut / "log.jsonl").read_text()
    # resumed once more, it stays where it is
    before = weights(whole)
    assert run(["resume", whole])[0] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(whole).items())
    code, said = run(["resume", whole, "--tokens", "100000"])
    assert (code, "was stopped on a plateau: start a new run from its SAE" in said) == (2, True)


def test_units_are_sorted_by_gain_when_a_run_stops_early(tmp_path):
    from osae import passes
    from osae.data.source import MemoryRows
    from osae.data.worlds import SparseWorld
    from osae.training.loop import stop_early, train
    from osae.training.member import Member

    rows = SparseWorld(12, 16, 2, samples=1000).draw().x
    made = alter(
        world_recipe("topk", Task(12, 16, 2, samples=2000, batch=50)),
        {"resort": world_recipe("osae", Task(12, 16, 2, samples=2000, batch=50)).resort, "resort.times": 1},
    )
    member = Member(made, 0, rows)

    class Enough(Exception):
        pass

    def stop(done, _):
        if done == 20:
            raise Enough

    with pytest.raises(Enough):
        train([member], MemoryRows(rows), after=[stop])
    k = member.k_at(19)
    assert not torch.equal(passes.order_units(member.sae, [rows], k=k), torch.arange(16))
    stop_early([member], MemoryRows(rows), 20)
    assert torch.equal(passes.order_units(member.sae, [rows], k=k), torch.arange(16))
    assert isinstance(member.finish(), SAE)
