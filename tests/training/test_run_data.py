"""Runs on activations: from disk and straight from a model, killed and resumed, logged where asked."""

import json
import random
import shutil
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from osae import SAE, metrics
from osae.cli import main
from osae.data import harvest as harvesting
from osae.data.shards import Shards, write_shards
from osae.data.text import HubText
from osae.data.worlds import SparseWorld
from osae.experiments.lm.settings import SETTINGS
from osae.training import run
from osae.training.logs import open_logs
from osae.training.member import Member
from tests.data.tiny import documents, saved_model, saved_text
from tests.faults import processes

SIZES = ["--units", "24", "--k", "3", "--batch", "100", "--device", "cpu"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acts") / "acts"
    write_shards(folder, [SparseWorld(16, 24, 3, samples=6000).draw().x + 5], rows_per_shard=1000)
    return folder


def weights(folder, names):
    return {name: SAE.load(folder / name).state_dict() for name in names}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name, tensors in a.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, b[name][key]), (name, key)


def test_several_recipes_and_seeds_on_one_stream_from_disk(shards, tmp_path):
    words = ["train", "osae,topk", "--data", str(shards), *SIZES, "--tokens", "2e4", "--seeds", "0,1"]
    assert main([*words, "--snapshots", "1e4", "--out", str(tmp_path / "run")]) == 0
    names = [f"{name}-seed{seed}" for name in ("osae", "topk") for seed in (0, 1)]
    x = Shards(shards).read(0, 6000)
    for name in names:
        sae = SAE.load(tmp_path / "run" / name)
        explained = metrics.explained_variance(x, sae(x).reconstruction.detach())
        assert explained > 0.5  # raw activations in: scale and mean are folded into what is saved
        for samples in ("0", "10000"):
            assert (tmp_path / "run" / "snapshots" / samples / name / "sae.json").exists()
    about = json.loads((tmp_path / "run" / "osae-seed0" / "sae.json").read_text())["provenance"]
    assert about["source"]["sha256"] == Shards(shards).provenance()["sha256"]


def test_held_atoms_are_the_leading_principal_directions(shards, tmp_path):
    words = ["train", "osae", "--data", str(shards), *SIZES, "--units", "32", "--tokens", "6e3"]
    assert main([*words, "--snapshots", "4000", "--out", str(tmp_path / "run")]) == 0
    places = ("snapshots/0/osae-seed0", "snapshots/4000/osae-seed0", "osae-seed0")
    first, held, last = (SAE.load(tmp_path / "run" / where).decoder.detach() for where in places)
    assert torch.equal(first[:2], held[:2])
    assert not torch.equal(held[:2], last[:2])  # released
    x = Shards(shards).read(0, 6000)
    leading = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[0]
    assert abs(float(held[0] @ leading)) > 0.99  # of a half of the rows
    torch.testing.assert_close(held[0], -held[1])
    assert float(held[0] @ last[0]) > 0.9  # in its place


def test_the_kind_of_start_can_be_chosen(shards, tmp_path):
    words = ["train", "osae", "--data", str(shards), *SIZES, "--tokens", "600"]
    starts = {}
    for start in ("data", "noise"):
        assert main([*words, "--start", start, "--out", str(tmp_path / start)]) == 0
        starts[start] = SAE.load(tmp_path / start / "snapshots" / "0" / "osae-seed0").decoder.detach()
        assert type(run.read(tmp_path / start).recipes[0].start).__name__ == f"From{start.capitalize()}"
    torch.testing.assert_close(starts["data"][0], -starts["data"][1])
    assert abs(float(starts["noise"][0] @ starts["noise"][1])) < 0.9


def test_epochs_count_passes_over_the_data_in_any_setting(shards, tmp_path):
    words = ["train", "topk", "--setting", "pythia-70m", "--data", str(shards), *SIZES, "--epochs", "0.5"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert run.read(tmp_path / "run").recipes[0].samples == 3000


def test_other_activations_at_the_same_path_are_refused(tmp_path, capsys):
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    write_shards(tmp_path / "acts", [x])
    words = ["train", "topk", "--data", str(tmp_path / "acts"), *SIZES, "--tokens", "400"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    for file in (tmp_path / "acts").iterdir():
        file.unlink()
    write_shards(tmp_path / "acts", [x + 1])
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "differs from the activations that this run started with" in capsys.readouterr().err


def test_training_straight_from_a_model_gives_the_same_result_every_time(tmp_path):
    model = saved_model(tmp_path / "model")
    text = saved_text(tmp_path / "text.jsonl", documents(120, seed=3))
    words = [
        "--model",
        str(model),
        "--layer",
        "2",
        "--text",
        str(text),
        "--context",
        "16",
        "--tokens",
        "1200",
    ]
    live = ["train", "topk", "--live", *words, *SIZES, "--out", str(tmp_path / "live")]
    assert main([*live, "--batch-tokens", "50"]) == 0
    assert run.read(tmp_path / "live").source.batch_tokens == 50  # pyright: ignore
    trained = SAE.load(tmp_path / "live" / "topk-seed0")
    assert trained.config.width == 16
    assert not list((tmp_path / "live").glob("contexts*"))  # which only a resumed run would need
    again = [*live[:-1], str(tmp_path / "again")]
    assert main([*again, "--batch-tokens", "50"]) == 0
    assert torch.equal(trained.decoder, SAE.load(tmp_path / "again" / "topk-seed0").decoder)


def test_a_resumed_run_does_not_tokenize_its_text_again(tmp_path, monkeypatch):
    text = saved_text(tmp_path / "text.jsonl", documents(120, seed=3))
    words = ["--model", str(saved_model(tmp_path / "model")), "--layer", "2", "--text", str(text)]
    words = ["train", "topk", "--live", *words, "--context", "16", "--tokens", "1200", *SIZES]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    advance = Member.advance

    def stop(member, x, step):
        if step == 3:
            raise KeyboardInterrupt
        return advance(member, x, step)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "advance", stop)
        assert main([*words, "--out", str(tmp_path / "run"), "--checkpoint-seconds", "0"]) == 130
    assert len(list((tmp_path / "run").glob("contexts-*.safetensors"))) == 1
    monkeypatch.setattr(harvesting, "build_contexts", None)
    assert main(["resume", str(tmp_path / "run"), "--device", "cpu"]) == 0
    ours, theirs = (SAE.load(tmp_path / name / "topk-seed0") for name in ("whole", "run"))
    assert torch.equal(ours.decoder, theirs.decoder)
    assert not list((tmp_path / "run").glob("contexts*"))


def test_every_option_of_the_activations_counts_in_a_setting_too(tmp_path, monkeypatch):
    """As far as the request: the run itself would need the hub."""
    seen = []
    monkeypatch.setattr(run, "create", lambda folder, config: seen.append(config))
    monkeypatch.setattr(run, "go", lambda folder, **options: [])
    monkeypatch.setattr(run, "read", lambda folder: seen[-1])
    monkeypatch.setattr(HubText, "documents", lambda text, passed=None: iter(["a"]))
    words = ["train", "pythia-70m", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(words) == 0
    more = ["--context", "64", "--skip-positions", "2", "--max-norm", "5", "--bos", "yes", "--mix-rows", "99"]
    more += ["--text-seed", "3", "--part", "all", "--text-field", "body", "--batch-tokens", "77"]
    assert main([*words, *more, "--dataset", "dolma", "--tokens", "5e5"]) == 0
    assert [type(config.recipes[0].start).__name__ for config in seen] == ["FromNoise"] * 2  # the paper's
    assert main([*words, "--start", "data"]) == 0
    assert type(seen.pop().recipes[0].start).__name__ == "FromData"
    plain, changed = (config.source for config in seen)
    assert (plain.batch_tokens, changed.batch_tokens) == (4096, 77)
    assert plain.harvest == SETTINGS["pythia-70m"].harvest("pile")
    text = replace(SETTINGS["pythia-70m"].texts["dolma"], part="all", field="body")
    new = {"context": 64, "skip": 2, "max_norm": 5.0, "bos": "yes", "block": 99, "seed": 3}
    assert changed.harvest == replace(plain.harvest, text=text, tokens=500_000, **new)


def test_a_live_run_is_resumed_with_the_commits_of_model_and_dataset_that_it_started_with(
    tmp_path, monkeypatch
):
    from huggingface_hub import HfApi

    def tell(_, name, *, repo_type, **options):
        if repo_type == missing:
            raise ConnectionError
        return SimpleNamespace(sha=f"{repo_type} {name}")

    seen, missing = [], ""
    monkeypatch.setattr(HfApi, "repo_info", tell)
    monkeypatch.setattr(run, "create", lambda folder, config: seen.append(config))
    monkeypatch.setattr(run, "go", lambda folder, **options: [])
    monkeypatch.setattr(run, "read", lambda folder: seen[-1])
    monkeypatch.setattr(HubText, "documents", lambda text, passed=None: iter(["a"]))
    words = ["train", "pythia-70m", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*words, "--dataset", "dolma"]) == 0
    missing = "dataset"
    assert main(words) == 0
    first, second = (config.source.harvest for config in seen)
    assert first.revision == second.revision == f"model {first.model}"
    assert first.text.revision == "dataset allenai/dolma"  # without the name of its configuration
    assert second.text.revision is None


def test_a_data_set_that_cannot_be_read_is_named_before_the_run_starts(tmp_path, monkeypatch, capsys):
    def refuse(*words, **options):
        raise RuntimeError("Dataset scripts are no longer supported, but found dolma.py")

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", refuse)
    out = tmp_path / "run"
    assert main(["train", "pythia-70m", "--dataset", "dolma", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "the dataset allenai/dolma:v1_6-sample cannot be read: Dataset scripts" in error
    assert "--text" in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kills", [6, pytest.param(48, marks=pytest.mark.slow)])
def test_killed_at_any_write_it_ends_bit_for_bit_the_same(kills, shards, tmp_path, warmed):
    words = ["osae,topk", "--data", str(shards), *SIZES, "--tokens", "6e3", "--checkpoint-seconds", "0"]
    names = ["osae-seed0", "topk-seed0"]
    assert main(["train", *words, "--out", str(tmp_path / "calm")]) == 0
    out, draw, killed = tmp_path / "killed", random.Random(kills), 0
    create, resume = ["train", *words, "--out", str(out)], ["resume", str(out), "--device", "cpu"]
    while killed < kills:
        code, said = processes.run(
            resume if (out / "run.json").exists() else create, at=draw.randrange(1, 120)
        )
        if code == 0:  # it was done before it could be killed
            assert_same(weights(tmp_path / "calm", names), weights(out, names))
            shutil.rmtree(out)
        else:
            assert code == -signal.SIGKILL, said
            killed += 1
    assert main(resume if (out / "run.json").exists() else create) == 0
    assert_same(weights(tmp_path / "calm", names), weights(out, names))


def test_tensorboard_gets_every_line(shards, tmp_path):
    pytest.importorskip("tensorboard")
    with open_logs(["tensorboard"], tmp_path) as (log,):
        for samples in (10, 20):
            log({"name": "a", "step": samples // 10, "samples": samples, "total": 2.0})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("a/total")] == [(10, 2.0), (20, 2.0)]


def test_what_fails_while_it_is_logged_is_not_blamed_on_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(ImportError, match="no triton"), open_logs(["tensorboard"], tmp_path):
        raise ImportError("no triton")


def test_a_service_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(ValueError, match="pip install trackio"), open_logs(["trackio"], tmp_path):
        pass


def test_a_resumed_run_continues_its_curves_on_wandb(tmp_path, monkeypatch):
    calls, metrics = [], []
    wandb = SimpleNamespace(
        init=lambda **options: calls.append(options),
        define_metric=lambda *names, **options: metrics.append((names, options)),
        log=lambda line: None,
        finish=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        with open_logs(["wandb"], tmp_path / folder, {"seeds": [0]}):
            pass
    first, again, other = (options.pop("id") for options in calls)
    assert first == again != other
    assert calls[0] == {"project": "osae", "name": "a", "resume": "allow", "config": {"seeds": [0]}}
    assert metrics[:2] == [(("samples",), {}), (("*",), {"step_metric": "samples"})]


@pytest.mark.parametrize(
    "wrong", [["--log", "trackio"], ["--device", "toaster"], ["--batch", "7"], ["--set", "lr.peak=-1"]]
)
def test_a_request_that_was_refused_can_be_corrected_in_the_same_folder(wrong, shards, tmp_path, monkeypatch):
    if wrong[0] == "--batch":  # refused late, when the start is on disk already

        def late(*words, **options):
            raise ValueError("too late")

        monkeypatch.setattr(run, "train", late)
    out = tmp_path / "run"
    words = ["train", "topk", "--data", str(shards), *SIZES, "--tokens", "400", "--out", str(out)]
    assert main([*words, *wrong]) == 2
    assert not out.exists()
    monkeypatch.undo()
    assert main(words) == 0
    assert main(words) == 2  # and what is trained stays
    assert (out / "topk-seed0" / "sae.json").exists()


def test_the_losses_of_all_recipes_are_shown(shards, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("osae.cli.terminal.Progress.__call__", lambda *words: print(words[-1]()))
    words = ["train", "osae,topk", "--data", str(shards), *SIZES, "--tokens", "400", "--seeds", "0,1"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("loss")]
    assert len(shown) == 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()][-4:]
    means = [sum(line["prefix"] for line in lines if name in line["name"]) / 2 for name in ("osae", "topk")]
    numbers = [float(word) for word in shown[-1].replace(",", "").split() if word[0].isdigit()]
    assert numbers == pytest.approx(means, rel=1e-3)
    assert shown[-1].startswith("loss osae ")


def test_every_line_also_goes_to_the_logs(shards, tmp_path):
    words = [
        "train",
        "topk",
        "--data",
        str(shards),
        *SIZES,
        "--tokens",
        "1e3",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    seen = []
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    run.go(tmp_path / "run", logs=[seen.append])
    written = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert written == [{key: line[key] for key in written[0]} for line in seen]
    assert {key for line in seen for key in line} - {*written[0]} == {"memory_gb", "samples_per_second"}
