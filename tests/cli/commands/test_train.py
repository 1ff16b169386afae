"""`osae train` as a user meets it: what its options stand for, and what is refused before it starts."""

import errno
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest

from osae import SAE, model
from osae.cli import main
from osae.cli.changes import FIELDS
from osae.cli.commands.train import COMMAND, TrainOptions, plan
from osae.cli.language import HOW
from osae.cli.parsing import parse
from osae.data.harvest import BATCH_TOKENS, Harvest
from osae.data.shards import write_shards
from osae.data.source import Live, OnDisk
from osae.data.text import TextFiles
from osae.data.worlds import ForestWorld, SparseWorld
from osae.defaults import LARGE_BATCH
from osae.experiments.lm.settings import SETTINGS, Setting
from osae.experiments.methods import STARTS
from osae.model import SAEConfig
from osae.options import list_options, parse_option
from osae.recipes import RECIPES, WORLD_RECIPES, Recipe, Task
from osae.recipes import STARTS as RECIPE_STARTS
from osae.sparsify import TopK
from osae.training import checkpoint
from osae.training import run as runs

DECLARED = {declared.name: declared for declared in list_options(TrainOptions)}
SIZES = ["--units", "24", "--k", "3", "--batch", "100"]


def planned(*words):
    options = parse(COMMAND, [*words, "--out", "run"]).options
    assert isinstance(options, TrainOptions)
    return plan(options)


@pytest.fixture
def data(tmp_path):
    write_shards(tmp_path / "acts", [SparseWorld(16, 24, 3, samples=600).draw().x])
    return str(tmp_path / "acts")


def test_the_names_shown_are_those_there_are():
    assert set(DECLARED["recipes"].choices) == {*RECIPES, *WORLD_RECIPES, *SETTINGS}


def test_the_defaults_shown_are_those_there_are():
    world = SparseWorld()
    for name in ("width", "units", "active", "zipf", "samples", "seed"):
        assert float(DECLARED[f"world_{name}"].default_text) == getattr(world, name)
    harvest = {field.name: field.default for field in fields(Harvest)}
    for option, field in HOW.items():
        shown = parse_option(DECLARED[option], DECLARED[option].default_text)
        assert shown == harvest[field]
    assert DECLARED["text_field"].default_text == TextFiles(("x",)).field
    assert DECLARED["batch_tokens"].default_text == str(BATCH_TOKENS)


def test_what_is_kept_apart_from_torch_is_the_same_there():
    """The command line names fields, choices and defaults without loading what has them."""
    assert list(FIELDS) == [field.name for field in fields(Recipe)]
    hints = get_type_hints(Recipe)
    for name, kinds in FIELDS.items():
        assert kinds is None or set(get_args(hints[name]) or (hints[name],)) >= set(
            get_args(kinds) or (kinds,)
        )
    assert tuple(RECIPE_STARTS) == STARTS

    task = {field.name: field.default for field in fields(Task)}
    setting = {field.name: field.default for field in fields(Setting)}
    assert setting["groups"] == task["groups"]
    assert setting["context"] == Harvest("m", TextFiles(("x",)), 1).context
    assert setting["batch"] == LARGE_BATCH


def test_sizes_of_the_sae_are_those_of_the_world_unless_given():
    source, (recipe,) = planned("topk", "--world-width", "64", "--world-units", "128", "--world-active", "4")
    assert source == SparseWorld(64, 128, 4)
    assert (recipe.sae.width, recipe.sae.units, recipe.sae.sparsifier.k) == (64, 128, 4)  # pyright: ignore
    assert (recipe.samples, recipe.batch) == (30 * 100_000, 500)
    source, (recipe,) = planned("topk", "--units", "1e3", "--k", "7", "--epochs", "0.5", "--batch", "50")
    assert source == SparseWorld()
    assert (recipe.sae.width, recipe.sae.units, recipe.sae.sparsifier.k) == (80, 1000, 7)  # pyright: ignore
    assert (recipe.samples, recipe.batch) == (50_000, 50)


def test_fields_of_a_recipe_can_be_changed():
    change = ["--set", "lr.peak=0.5", "--set", 'prefix={"kind":"Uniform"}']
    _, (recipe,) = planned("topk", *change, "--start", "data")
    assert recipe.lr.peak == 0.5
    assert type(recipe.prefix).__name__ == "Uniform"
    assert type(recipe.start).__name__ == "FromData"


def test_activations_are_seen_once_unless_told_otherwise(data):
    source, recipes = planned("osae,topk", "--data", data, *SIZES)
    assert isinstance(source, OnDisk)
    assert [(recipe.name, recipe.samples) for recipe in recipes] == [("osae", 600), ("topk", 600)]
    assert planned("topk", "--data", data, *SIZES, "--epochs", "2.5")[1][0].samples == 1500
    assert planned("topk", "--data", data, *SIZES, "--tokens", "1e4")[1][0].samples == 10_000


def test_options_override_the_setting(data):
    words = ["topk", "--setting", "pythia-70m", "--data", data, "--batch", "100"]
    _, (recipe,) = planned(*words)
    known = SETTINGS["pythia-70m"]
    assert (recipe.sae.width, recipe.sae.units, recipe.samples) == (16, known.units, known.tokens)
    assert type(recipe.start).__name__ == "FromNoise"
    _, (recipe,) = planned(*words, "--units", "24", "--k", "3", "--epochs", "2", "--start", "data")
    assert (recipe.sae.units, recipe.sae.sparsifier.k, recipe.samples) == (24, 3, 1200)  # pyright: ignore
    assert type(recipe.start).__name__ == "FromData"


def test_a_setting_as_recipe_is_the_papers_method_live(monkeypatch):
    monkeypatch.setattr("osae.data.text.check_readable", lambda text: None)
    source, (recipe,) = planned("pythia-70m", "--context", "64", "--part", "all", "--tokens", "5e5")
    assert recipe.name == "osae-paper"
    known = SETTINGS["pythia-70m"].harvest("pile")
    text = replace(known.text, part="all")
    assert source == Live(replace(known, context=64, tokens=500_000, text=text), BATCH_TOKENS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "RECIPE nonsense: give one of vanilla"),
        (["topk,topk"], "RECIPE topk,topk: give topk once."),
        (["osae-from-noise"], "osae-from-noise is a recipe for activations: add --data"),
        (["pythia-70m,topk"], "a setting given as RECIPE cannot be combined with other recipes"),
        (["topk", "--set", "lr.peek=3"], "--set lr.peek=3: lr has no field 'peek': did you mean peak?"),
        (["topk", "--set", "lrr.peak=3"], "a recipe has no field 'lrr': did you mean lr?"),
        (["topk", "--set", "revival.speed=3"], "revival has no field 'speed': choose from k, coefficient"),
        (["topk", "--set", "sae.size=3"], "no field 'size'"),
        (["topk", "--set", "lr.peak=fast"], "is not JSON"),
        (["topk", "--set", "lr.peak=nan"], "--set lr.peak=nan: give a finite number."),
        (["topk", "--set", "lr.peak=1e999"], "give a finite number."),
        (["topk", "--set", "lr.peak=[1e999]"], "1e999 is not finite"),
        (["topk", "--set", 'lr.peak="fast"'], "wrong type"),
        (["topk", "--world-active", "200"], "--world-active 200 exceeds the world's 100 atoms"),
        (["topk", "--world-samples", "100"], "--batch 500 exceeds the world's 100 samples"),
        (["topk", "--snapshots", "99999999"], "snapshot at 99999999 samples"),
        (["topk", "--data", "DATA"], "--units and --k must be given"),
        (["topk", "--data", "DATA", "--live"], "give only one"),
        (["topk", "--data", "nowhere", *SIZES], "there is no such file or folder"),
        (["topk", "--live", *SIZES], "--live needs --model, --tokens, --layer or --module, --text or"),
        (["topk", "--live", "--layer", "1", "--module", "m"], "--layer and --module are mutually exclusive"),
        (["topk", "--setting", "gpt-5"], "--setting gpt-5: give one of pythia-70m"),
        (["topk", "--setting", "pythia-70m", "--dataset", "c4"], "no text 'c4' in this setting"),
        (["topk", "--setting", "pythia-70m", "--text", "a.txt"], "--text is fixed by --setting pythia-70m"),
        (
            ["topk", "--data", "DATA", *SIZES, "--epochs", "2", "--tokens", "5"],
            "can only be used with --data",
        ),
        (["topk", "--data", "DATA", *SIZES, "--batch", "7000"], "--batch 7000 exceeds the 600 rows"),
        (["topk", "--tokens", "5"], "a world has samples, not tokens"),
        (["topk", "--context", "64"], "--context applies to language models only: add --live or --setting."),
        (["topk", "--data", "DATA", *SIZES, "--bos", "yes"], "--bos has no effect with --data"),
        (
            ["topk", "--data", "DATA", *SIZES, "--world-zipf", "1"],
            "--world-zipf applies to synthetic worlds only: remove it.",
        ),
        (["topk", "osae"], "separate several with commas, without spaces, such as"),
        (["topk", "--log", "paper"], "--log paper: give one of tensorboard, wandb, trackio"),
        (["topk", "--device", "toaster"], "--device toaster: give auto, cpu, mps, cuda or cuda:N"),
        (["topk", "--seeds", "0,0"], "--seeds 0,0: give 0 once."),
        (["topk", "--seeds=-1"], "--seeds -1: give a whole number of at least 0."),
        (["topk", "--units", "3"], "--k 5 exceeds the SAE's 3 units: give at most 3."),
        (["topk", "--k", "101"], "--k 101 exceeds the SAE's 100 units: give at most 100."),
        (["topk", "--setting", "pythia-70m", "--units", "79"], "--k 80 exceeds the SAE's 79 units"),
        (
            ["topk", "--context", "1", "--skip-positions", "5"],
            "--skip-positions 5 leaves no tokens in a --context of 1",
        ),
        (["topk", "--context", "1"], "--skip-positions 1 leaves no tokens in a --context of 1"),
        (["topk", "--set", "lr.peak=-1"], "peak=-1: give a finite learning rate of at least 0."),
        (["topk", "--set", "lr.decay=2"], "decay=2: give a fraction from 0 to 1."),
        (["osae-paper", "--set", "sweep.until=1.5"], "until=1.5: give a fraction from 0 to 1."),
        (["topk", "--world-kind", "forest", "--world-exclusive", "2"], "--world-exclusive 2: give a number"),
        (["topk", "--world-kind", "forest", "--world-correlation", "1"], "--world-correlation 1: give"),
        (["topk", "--max-norm", "0.5"], "--max-norm 0.5: give at least 1, or 0"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(words, message, data, tmp_path, capsys):
    words = [data if word == "DATA" else word for word in words]
    out = tmp_path / "run"
    assert main(["train", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


WORLD = ["--world-width", "10", "--world-units", "8", "--world-active", "2", "--world-samples", "1000"]


def test_a_file_trains_what_the_command_line_trains(tmp_path, capsys):
    words = ["train", "topk", *WORLD, "--epochs", "1", "--batch", "100", "--seeds", "0,3"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "a"), "--print-config"]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    assert main(["train", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "b" / f"topk-seed{seed}") for seed in (0, 3)]
    assert runs.read(tmp_path / "a") == runs.read(tmp_path / "b")
    for name in ("topk-seed0", "topk-seed3"):
        a, b = (SAE.load(tmp_path / folder / name) for folder in "ab")
        assert a.decoder.equal(b.decoder)


def test_a_forest_is_trained_on(tmp_path, capsys):
    words = ["train", "topk", *WORLD, "--world-kind", "forest", "--world-roots", "2", "--world-part", "3"]
    assert main([*words, "--epochs", "1", "--batch", "100", "--out", str(tmp_path / "a")]) == 0
    run, world = runs.read(tmp_path / "a"), ForestWorld(10, 8, 2, samples=1000, roots=2, part=3)
    assert run.source == world
    assert run.recipes[0].sae.sparsifier == TopK(2)
    assert SAE.load(tmp_path / "a" / "topk-seed0").config.units == 8


def test_a_world_with_a_bias_is_fitted_with_a_bias():
    for words, wanted in (([], False), (["--world-bias", "2"], True)):
        _, (recipe,) = planned("topk", "--world-kind", "forest", *words)
        assert recipe.sae.decoder_bias is wanted
    words = ["--world-kind", "forest", "--world-bias", "2", "--set", "sae.decoder_bias=false"]
    assert planned("topk", *words)[1][0].sae.decoder_bias is False


def test_an_interrupted_run_says_how_to_resume_it(tmp_path, monkeypatch, capsys):
    def stop(*words, **options):
        raise KeyboardInterrupt

    words = ["train", "topk", *WORLD, "--epochs", "1", "--batch", "100", "--out", str(tmp_path / "a run")]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "go", stop)
        assert main(words) == 130
    assert f"Resume with: osae resume '{tmp_path}/a run'" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "a run"), "--device", "cpu"]) == 0
    assert (tmp_path / "a run" / "topk-seed0" / "sae.json").exists()


def test_a_run_whose_first_checkpoint_cannot_be_written_can_be_resumed(tmp_path, monkeypatch, capsys):
    def full(*words, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ["train", "topk", *WORLD, "--epochs", "1", "--batch", "100", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        patch.setattr(model, "save_file", full)
        assert main(words) != 0
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    assert main(["resume", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert (tmp_path / "run" / "topk-seed0" / "sae.json").exists()


def test_resume_refuses_what_holds_no_run(tmp_path, capsys):
    assert main(["resume", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: there is no such file or folder." in capsys.readouterr().err
    assert main(["resume", str(tmp_path)]) == 2
    assert "has no run.json, so there is no run to resume" in capsys.readouterr().err


def test_nothing_is_trained_into_a_folder_that_is_in_use(tmp_path, capsys):
    sae = SAE(SAEConfig(10, 8, TopK(2)))
    sae.save(tmp_path / "sae")
    before = (tmp_path / "sae" / "sae.safetensors").read_bytes()
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    for name, message in (
        ("sae", "sae already contains files: give a new or empty folder."),
        ("file", "is a file: give a new or empty folder."),
        ("run", f"run already contains a run: run `osae resume {tmp_path}/run` to continue."),
    ):
        assert main(["train", "topk", *WORLD, "--out", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert (tmp_path / "sae" / "sae.safetensors").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "sae").iterdir()) == ["sae.json", "sae.safetensors"]
