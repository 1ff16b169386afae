"""The benchmark of training steps measures what it says, at sizes that take no time."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import ROOT
from benchmarks.speed import growth, ours, run
from benchmarks.speed.pipe import Shape, Worker
from benchmarks.speed.worker import TINY, Bench, make_batch

SHAPE = Shape(B=16, d=24, K=64, k=6)
OURS = [name for name in ours.ENTRIES if name not in ours.FLOORS]


@pytest.mark.parametrize("name", OURS)
def test_every_entry_of_ours_trains_a_full_code(name):
    x = make_batch(SHAPE)
    entry = ours.ENTRIES[name](SHAPE, x)
    before = float(entry.forward().detach())
    for _ in range(5):
        entry.step()
    assert float(entry.forward().detach()) < before
    code = entry.member.sae.encode(x)
    assert int(code.values.count_nonzero()) == SHAPE.B * SHAPE.k  # padding would make our step look faster


def test_plain_objective_is_the_same_with_and_without_the_walk():
    x = make_batch(SHAPE)
    walked, decoded = (ours.ENTRIES[name](SHAPE, x) for name in ("osae-topk", "osae-topk-decoded"))
    torch.testing.assert_close(walked.forward(), decoded.forward())
    walked.step(), decoded.step()
    torch.testing.assert_close(walked.member.sae.decoder, decoded.member.sae.decoder)


def test_floors_are_the_product_of_the_encoder():
    x = make_batch(SHAPE)
    floors = [ours.ENTRIES[name](SHAPE, x) for name in ours.FLOORS]
    for floor in floors:
        torch.testing.assert_close(floor.forward(), x @ floors[0].encoder.T)


def test_entries_name_what_stays_in_memory():
    entry = ours.ENTRIES["osae-exact"](SHAPE, make_batch(SHAPE))
    entry.step()
    numbers = sum(t.numel() for t in entry.state())
    trained = sum(p.numel() for p in entry.parameters())
    assert trained == 2 * SHAPE.K * SHAPE.d + SHAPE.K + SHAPE.d
    assert numbers >= 3 * trained  # weights and two moments


def test_bench_times_each_part_and_finds_the_memory():
    bench = Bench(ours.ENTRIES["osae-exact"], SHAPE)
    assert all(bench.answer(part)["ms"] > 0 for part in run.PARTS)
    assert bench.answer("memory")["gradients_mb"] == pytest.approx(4e-6 * (2 * 64 * 24 + 64 + 24))


def test_a_worker_that_fails_says_why():
    with (
        Worker(sys.executable, "benchmarks.speed.ours", "nobody", TINY, 1) as worker,
        pytest.raises(RuntimeError, match="nobody"),
    ):
        worker.ask("version")


NO_OSAE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "osae":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def test_the_peers_worker_needs_no_osae():
    """The peers' environment has torch and the peers; a worker that imported osae would be left out."""
    code = (
        NO_OSAE
        + """
import torch
from benchmarks.speed import peers, worker

class Entry:
    def __init__(self, shape, x):
        self.weight, self.x = torch.zeros(shape.d, requires_grad=True), x
    def forward(self):
        return (self.x @ self.weight - 1).square().mean()
    def step(self):
        self.forward().backward()
    def parameters(self):
        return [self.weight]
    def state(self):
        return [self.weight]

assert "osae" not in sys.modules
peers.serve(dict(peers.ENTRIES, stand_in=Entry), {"stand_in": "1.0"})
"""
    )
    command = [sys.executable, "-c", code, "stand_in", json.dumps(SHAPE), "1", "cpu"]
    done = subprocess.run(
        command, input="version\nstep\nmemory\n", capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    version, step, memory = map(json.loads, done.stdout.splitlines())
    assert version == "1.0"
    assert step["ms"] > 0
    assert memory["gradients_mb"] == pytest.approx(4e-6 * SHAPE.d)


def test_the_peers_trainers_need_no_osae():
    code = NO_OSAE + "from benchmarks.speed import peers_training\nassert 'osae' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_summary_and_verdicts_follow_from_the_times():
    parts = {"forward": [1.0, 3.0, 2.0], "forward_backward": [4.0, 4.0, 4.0], "step": [6.0, 5.0, 9.0]}
    entry = run.summarize("osae-exact", parts, floor=2.0)
    assert (entry["forward_ms"], entry["step_ms"], entry["times_floor"]) == (2.0, 6.0, 3.0)
    assert entry["range_ms"] == [5.0, 9.0]
    others = {"osae-topk": 6.0, "osae-topk-decoded": 5.0, "saelens-matryoshka": 60.0, "sparsify-topk": 24.0}
    entries = [entry, *({"name": name, "step_ms": ms} for name, ms in others.items())]
    floors = {"floor_ms": 2.0, "floor_of_steps_ms": 1.0}
    (line,) = run.state_verdicts([{"shape": SHAPE._asdict(), **floors, "entries": entries}])
    assert "3.00 x the floor (6.00 x ours), 1.20 x our fastest TopK" in line
    assert "10.0 times as fast as saelens-matryoshka, 4.0 times as fast as sparsify-topk" in line


def test_exponent_of_a_power_law():
    sizes = [2**n for n in range(8)]
    assert growth.fit_exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)


@pytest.mark.slow
def test_benchmark_runs_without_peers(tmp_path):
    shape = ",".join(map(str, SHAPE))
    asked = ["--shape", shape, "--no-peers", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)]
    assert run.main(asked) == 0
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result["schema"] == 1
    (found,) = result["cases"]
    assert found["shape"] == SHAPE._asdict()
    assert [entry["name"] for entry in found["entries"]] == list(run.OURS)
    assert all({"step_ms", "times_floor", "peak_mb"} <= entry.keys() for entry in found["entries"])
    assert (tmp_path / "bench.png").stat().st_size > 0


@pytest.mark.slow
def test_growth_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "SWEEPS", {"K": (SHAPE, [16, 32, 64])})
    assert growth.main(["--rounds", "1", "--threads", "1", "--out", str(tmp_path)]) == 0
    (sweep,) = json.loads((tmp_path / "growth.json").read_text())["sweeps"]
    assert [point["size"] for point in sweep["points"]] == [16, 32, 64]
    assert (tmp_path / "growth.png").stat().st_size > 0
