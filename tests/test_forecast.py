"""Forecasts: what cannot fit is refused before anything is made, and what is forecast is what is taken."""

import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.reliability import disk, memory
from benchmarks.reliability.commands import make_rows
from osae import SAE, forecast
from osae.cli import forecasting, main
from osae.data.harvest import Harvest
from osae.data.lm import LanguageModel
from osae.data.source import Live, LiveRows
from osae.data.text import TextFiles
from osae.data.worlds import SparseWorld
from osae.experiments.jobs import Job, forecast_jobs
from osae.forecast import Forecast
from osae.model import SAEConfig
from osae.recipes import Task, recipe, world_recipe
from osae.sparsify import TopK
from osae.training import sizes
from osae.training.sizes import measure_training
from tests.data.tiny import documents, saved_model, saved_text
from tests.faults.damage import WORLD

WORDS = {  # commands that forecast, with the files of `folder`
    "train": [
        "train",
        "topk",
        "--data",
        "x.npy",
        "--units",
        "16",
        "--k",
        "2",
        "--batch",
        "20",
        "--out",
        "out",
    ],
    "compare": ["compare", "a", "b"],
    "evaluate": ["evaluate", "a", "--data", "x.npy"],
    "order": ["order", "a", "--data", "x.npy", "--out", "out"],
    "stitch": ["stitch", "a", "b", "--data", "x.npy"],
    "prune": ["prune", "a", "--others", "a", "--data", "x.npy", "--out", "out"],
    "trust": ["trust", "a", "--data", "x.npy", "--runs", "2", "--device", "cpu", "--out", "out"],
    "contexts": ["contexts", "c", "--data", "acts", "--model", "none", "--out", "out"],
    "reproduce": ["reproduce", "toy", "--quick", "--methods", "topk", "--seeds", "1", "--out", "out"],
    "harvest": ["harvest", "--model", "model", "--layer", "1", "--text", "text.jsonl", "--tokens", "200"],
}
WORDS |= {
    "convert": ["convert", "a", "--to", "saelens", "out"],
    "push": ["push", "a", "hf:user/repo", "--dry-run", "out"],
    "report": ["report", "scores.json", "--out", "out"],
    "sweep": ["sweep", "sweep.yaml", "--device", "cpu", "--jobs", "1", "--out", "out"],
    "resume": ["resume", "run", "--device", "cpu"],
}
SWEEP = "data: x.npy\nunits: 16\nk: 2\nbatch: 20\nepochs: 2\nvary:\n  recipes: [topk, vanilla]\n"
WORDS["harvest"] += ["--context", "16", "--device", "cpu", "--out", "out"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, width) in enumerate({"a": 8, "b": 8, "c": 16}.items()):
        SAE(SAEConfig(width, 16, TopK(2)), generator=torch.Generator().manual_seed(seed)).save(folder / name)
    make_rows(folder, 100, 8).rename(folder / "x.npy")
    (folder / "sweep.yaml").write_text(SWEEP.replace("x.npy", str(folder / "x.npy")))
    assert main(["compare", str(folder / "a"), str(folder / "b"), "--json", str(folder / "scores.json")]) == 0
    run = [str(folder / "x.npy") if word == "x.npy" else word for word in WORDS["train"][:-1]]
    assert main([*run, str(folder / "run"), "--tokens", "400", "--device", "cpu"]) == 0
    saved_model(folder / "model")
    saved_text(folder / "text.jsonl", documents(60, seed=3))
    shutil.copy(folder / "scores.json", folder / "more.json")
    files = {name: str(folder / name) for name in ("model", "text.jsonl")} | {"out": str(folder / "acts")}
    assert main([files.get(word, word) for word in WORDS["harvest"]]) == 0
    return folder


@pytest.mark.parametrize("command", WORDS)
def test_what_does_not_fit_into_memory_is_refused_and_nothing_is_left(
    command, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(forecast, "free_memory", lambda: 2**20)
    assert main([str(tmp_path / "out") if word == "out" else word for word in WORDS[command]]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("osae: this needs about ")
    assert re.search(
        r" of memory, but only 1.05 MB is free: (free another .* for it to fit|.* would fit); or ", error
    )
    if command != "harvest":  # which keeps the contexts that it has cut, and resumes with them
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "would"),
    [
        ([*WORDS["train"][:-2], "--seeds", "0,1", "--device", "cpu", "--out", "out"], "one SAE at a time"),
        (["compare", "a", "b", "a"], "the first 2 SAEs"),
        (["evaluate", "a", "b", "--data", "x.npy"], "the first SAE alone"),
        (WORDS["order"], "--by energy"),
        ([word.replace("1", "2") for word in WORDS["sweep"]], "--jobs 1"),
        ([*WORDS["reproduce"][:-2], "--seeds", "2", "--jobs", "2", "--out", "out"], "--jobs 1"),
        (["contexts", "c", "c", "--data", "acts", "--model", "none", "--out", "out"], "the first SAE alone"),
        (WORDS["harvest"], "--mix-rows 128"),
        (["compare", "a", "b", "--data", "x.npy"], "50 rows of activations"),
        (["compare", "a", "b"], "--chance-draws 0"),
        ([*WORDS["contexts"], "--top", "6"], "9 contexts of each unit"),
        (WORDS["trust"], "50 rows of activations"),
        (["report", "scores.json", "scores.json", "more.json", "--out", "out"], "the first 2 results"),
        *((WORDS[command], "") for command in ("stitch", "convert", "push", "report", "resume")),
    ],
    ids=lambda case: case[0] if isinstance(case, list) else "",
)
def test_what_would_fit_is_said(words, would, folder, tmp_path, monkeypatch, capsys):
    needed, find_lack = [], forecast._find_lack
    monkeypatch.setattr(
        forecast, "_find_lack", lambda one, place: needed.append(one.memory) or find_lack(one, place)
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(forecast, "free_memory", lambda: max(needed) - 1)
    assert main([str(tmp_path / "out") if word == "out" else word for word in words]) == 2
    would = f"{would} would fit" if would else "free another 1 MB for it to fit"
    assert f" is free: {would}; or " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("others", "would"), [("a,b,b", "the first 2 other SAEs"), ("b", "--scores FILE")], ids=["three", "one"]
)
def test_pruning_large_saes_would_fit_with_fewer_others(others, would, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        forecasting, "_measure", lambda saes: [forecast.DictionarySize(16_384, 512, 32) for _ in saes]
    )
    words = ["prune", "a", "--others", others, *WORDS["prune"][4:-1], str(tmp_path / "out")]
    test_what_would_fit_is_said(words, would, folder, tmp_path, monkeypatch, capsys)


def test_with_as_much_more_memory_or_disk_as_an_error_says_it_would_fit(monkeypatch, tmp_path):
    """Amounts are rounded, but never below what is missing."""
    needs = Forecast(1_234_567_890, 987_654_321)
    free = {"memory": 56_789, "disk": 98_765_432}
    monkeypatch.setattr(forecast, "free_memory", lambda: free["memory"])
    monkeypatch.setattr(forecast, "free_disk", lambda folder: free["disk"])
    sizes = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    for what in free:
        with pytest.raises(
            ValueError, match=r"free another ([\d.]+) ([kMG]B) for it to fit; or wait\."
        ) as error:
            forecast.check(needs, "wait.", tmp_path, [])
        amount, unit = re.findall(r"another ([\d.]+) (.B)", str(error.value))[0]
        free[what] += int(float(amount) * sizes[unit])
    forecast.check(needs, "wait.", tmp_path, [])


@pytest.mark.parametrize("command", ["train", "order", "harvest", "convert", "push", "report", "sweep"])
def test_what_does_not_fit_on_the_disk_is_refused_with_what_would(
    command, folder, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(forecast, "free_disk", lambda folder: 1000)
    assert main([*WORDS[command][:-1], str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    place = tmp_path if command == "report" else tmp_path / "out"  # a page is a file
    assert f"on the disk of {place}, but only 1 kB is free: " in error


@pytest.mark.parametrize("command", [name for name in WORDS if name != "reproduce"])
def test_the_needs_are_said_in_one_line_before_the_work(command, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def run(out: str) -> str:
        words = [str(tmp_path / out) if word == "out" else word for word in WORDS[command]]
        assert main(words) == 0
        return capsys.readouterr().err

    if command == "compare":
        assert "needs about" not in run("first")  # too little to speak of
    monkeypatch.setattr(forecasting, "NOTICED", 0)
    said = [line for line in run("second").splitlines() if "needs about" in line]
    assert len(said) == 1
    assert said[0].startswith(f"osae {command}: needs about ")
    assert re.search(r" of memory, (.+ of disk, )?\d+ s$", said[0])


def test_more_of_anything_needs_more():
    def forecast_of(**changes) -> Forecast:
        task = Task(**{"width": 64, "units": 512, "k": 4, "samples": 1000, "batch": 100} | changes)
        return measure_training([world_recipe("topk", task)], [0], WORLD).forecast()

    least = forecast_of()
    for changes in ({"units": 4096}, {"width": 512}, {"batch": 100_000, "samples": 100_000}):
        assert forecast_of(**changes).memory > least.memory


def test_a_live_run_needs_room_for_the_contexts_that_it_keeps(tmp_path):
    text = TextFiles((str(saved_text(tmp_path / "text.jsonl", documents(40, longest=400, seed=3))),))
    harvest = Harvest(str(saved_model(tmp_path / "model")), text, 4000, layer=1, context=32, skip=2)
    live = LiveRows(Live(harvest), "cpu", folder=tmp_path)
    (kept,) = tmp_path.glob("contexts-*")
    made = recipe("topk", Task(width=16, units=32, k=2, samples=4000, batch=100))
    sizes = measure_training([made], [0], live.spec)
    with_contexts, without = sizes.forecast(), replace(sizes, contexts=0).forecast()
    for counted in (with_contexts.disk - without.disk, with_contexts.memory - without.memory):
        assert counted == pytest.approx(kept.stat().st_size, rel=0.1)


def test_entries_of_the_shard_that_fills_empty_contexts_take_longest():
    sae = forecast.DictionarySize(6000, 576, 64)
    encoded = sae.count_encoding(65_536)
    alone, first_of_two = (
        forecast.forecast_contexts([sae], 65_536, shard=shard, kept=24, window=25).work - encoded
        for shard in (65_536, 32_768)
    )
    assert 1.3 * first_of_two < alone < 2 * first_of_two
    assert alone > 2 * encoded  # measured: 9 s for the entries, 3 s for the encoder


@pytest.mark.parametrize("chance", [True, False])
def test_pairs_that_are_compared_at_the_same_time_need_memory_each(chance):
    saes = [forecast.DictionarySize(16_384, 512, 32)] * 3
    one, two, three, many = (
        forecast.forecast_comparison(saes, chance=chance, threads=threads).memory for threads in (1, 2, 3, 64)
    )
    assert two - one == three - two > saes[0].matrix
    assert many == three


def test_what_passes_of_a_language_model_need_is_said_once_it_is_open(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(forecasting, "NOTICED", 0)
    words = ["evaluate", "c", "--data", "acts", "--device", "cpu"]
    assert main(words) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "needs about" in line]
    assert [line.partition(":")[0] for line in said] == [
        "osae evaluate",
        "osae evaluate, with the language model",
    ]


@pytest.mark.parametrize("given", [[], ["--model", "model"]])
def test_a_language_model_whose_passes_do_not_fit_is_not_run(given, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    needed = forecast.forecast_evaluation([forecast.DictionarySize(16, 16, 2)], 200).memory
    monkeypatch.setattr(forecast, "free_memory", lambda: needed)
    monkeypatch.setattr(LanguageModel, "forecast_bytes", lambda *sizes, losses: 10**9 if losses else 0)
    code = main(["evaluate", "c", "--data", "acts", "--device", "cpu", *given])
    out, error = capsys.readouterr()
    assert code == (2 if given else 0)
    assert "this needs about 1.05 GB of memory, but only" in (error if given else " ".join(out.split()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_disk_space_includes_the_checkpoint_that_is_being_written():
    with tempfile.TemporaryDirectory() as scratch:
        row = disk.measure(next(disk.list_cases(Path(scratch))))
    assert float(row.removesuffix(" |").split(" | ")[-1]) == pytest.approx(1, abs=0.1)


def test_a_penalty_on_pairs_of_atoms_needs_memory_and_time(monkeypatch):
    monkeypatch.setattr(sizes, "time_product", lambda rows, *_: rows * 1e-6)
    task = Task(width=64, units=4096, k=8, samples=51_200, batch=512)
    world = SparseWorld(width=64, units=64, active=2, samples=2000)
    plain, separated = (
        measure_training([recipe(name, task)], [0], world) for name in ("topk", "topk-separated")
    )
    more = separated.forecast().memory - plain.forecast().memory
    assert 0.5 * 4 * 4096**2 < more < 2 * 4 * 4096**2
    seconds = [sizes.forecast_seconds(size, 100) for size in (plain, separated)]
    assert seconds[1] - seconds[0] == pytest.approx(100 * 4096 * 1e-6)


def test_workers_need_memory_each():
    recipe = world_recipe("topk", Task(width=6, units=8, k=2, samples=100, batch=50))
    jobs = [Job(recipe, seed, WORLD) for seed in range(4)]
    one, two = (forecast_jobs(jobs, workers) for workers in (1, 2))
    assert two.memory > 2 * one.memory
    assert one.disk == two.disk > 0
    assert forecast_jobs([], 2) == Forecast(0)


def test_runs_of_a_sweep_are_trained_in_a_process_of_their_own_even_one_by_one():
    """Unlike those of an experiment: a run that fails must not end the sweep."""
    each = [Forecast(10**6, 10**6, 1.0)] * 2
    assert forecast.forecast_together(each, 1).memory == 10**6 + forecast.WORKER
    assert forecast.forecast_experiment(each, 1, recipes=1).memory == 10**6


def test_a_page_and_figures_of_an_experiment_need_disk_space():
    each = [Forecast(10**6, 10**6, 1.0)] * 2
    one, two = (forecast.forecast_experiment(each, 1, recipes=count) for count in (1, 2))
    assert two.disk > one.disk > forecast.forecast_together(each, 1).disk + 5 * 10**6


@pytest.mark.parametrize(
    ("seconds", "pause", "matrices"), [(20, 60, 8), (20, 0, 18), (40, 60, 14), (None, 60, 18), (200, 60, 18)]
)
def test_disk_space_counts_the_checkpoints_that_a_run_has_time_for(seconds, pause, matrices):
    """Six matrices for a checkpoint, and two for the finished SAE beside at most two of them."""
    recipe = world_recipe("topk", Task(width=6, units=8, k=2, samples=100, batch=50))
    size = measure_training([recipe], [0], WORLD)
    needed = size.forecast(seconds, checkpoint_seconds=pause).disk
    assert needed == 4 * 6 * 8 * (matrices + 2)  # and the SAE before the first step


def test_free_memory_and_disk_are_those_of_the_system(tmp_path):
    free = forecast.free_memory()
    assert free is None or 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert forecast.free_disk(tmp_path / "new" / "folder") > 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Forecast(5 * 10**8), "needs about 500 MB of memory"),
        (Forecast(10**12, 2_500_000, 30), "needs about 1 TB of memory, 2.5 MB of disk, 30 s"),
        (Forecast(1, 0, 7200), "needs about 0.001 kB of memory, 2 h"),
        (Forecast(10**6, 0, 864_000), "needs about 1 MB of memory, 10 days"),
    ],
)
def test_amounts_are_written_as_people_say_them(given, text):
    assert str(given) == text


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system does not report peak memory"
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_peaks_are_within_30_percent_of_the_forecast(quick):
    with tempfile.TemporaryDirectory() as scratch:
        cases = memory.prepare_cases(Path(scratch), quick=quick)
        outcomes = [memory.measure_peak(case) for case in (cases[1:4] if quick else cases)]
    assert [one for one in outcomes if not 1 / memory.MOST <= one.ratio <= memory.MOST] == []
