"""The command behind `make evidence`: what it runs, what it keeps, and how long it says that it takes."""

import importlib.util
import json

import pytest
from PIL import Image

from benchmarks import evidence
from osae.cli.commands.reproduce import find_commands
from osae.cli.parsing import parse

DOCUMENTATION = ["benchmarks.documentation.evidence", "benchmarks.documentation.pages"]


def test_time_left_is_that_of_the_kept_results_for_as_many_seeds_as_are_asked_for(tmp_path):
    for name, found in {
        "pca": {"training_seconds": 600.0, "seeds": [0, 1, 2, 3, 4]},
        "budgets": {"training_seconds": 1200.0, "seeds": [0, 1, 2, 3, 4]},  # ten are asked for
        "zipf": {"seeds": [0, 1, 2]},  # of a release that did not say
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(found))
    assert evidence.describe_left(["pca"], tmp_path, 1) == "about 10 minutes left"
    assert evidence.describe_left(["pca", "budgets"], tmp_path, 2) == "about 25 minutes left"
    left = evidence.describe_left(["pca", "zipf", "toy"], tmp_path, 1)
    assert left == "about 10 minutes left, not counting zipf, toy"


def test_results_and_numbers_behind_figures_are_kept_and_nothing_else(tmp_path):
    source, folder = tmp_path / "run", tmp_path / "kept"
    (source / "figures").mkdir(parents=True)
    for name in ("results.json", "results.csv", "report.html", "figures/a.csv", "figures/a.png"):
        (source / name).write_text(name)
    folder.mkdir()
    (folder / "old.txt").write_text("")
    evidence.keep(source, folder)
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert kept == ["figures/a.csv", "results.csv", "results.json"]


def test_every_experiment_that_is_run_exists():
    for name, part in evidence.EXPERIMENTS.items():
        module, command, experiment, *words = part.commands[0]
        assert (module, command) == ("osae", "reproduce")
        request = parse(find_commands()[experiment], words)  # raises if an option is wrong
        assert request.options.out == part.run, name
    runs = [part.run for part in evidence.EXPERIMENTS.values()]
    assert len(set(runs)) == len(runs)


def test_every_stored_folder_is_made_by_a_part():
    folders = {path.name for path in (evidence.ROOT / "evidence").iterdir() if path.is_dir()}
    made = evidence.PARTS.keys() - {"hard-trials"} | {"hard"}
    assert folders <= made


def test_every_image_of_the_documentation_is_drawn_by_a_part_or_is_a_screenshot():
    kept = {path.stem for path in (evidence.ROOT / "docs" / "images").glob("*.png")}
    drawn = {image for figures in evidence.FIGURES.values() for image in figures.values()}
    screenshots = {name for name in kept if name.startswith("units-")}
    assert drawn | evidence.DRAWN_ELSEWHERE == kept - screenshots
    assert evidence.FIGURES.keys() <= evidence.EXPERIMENTS.keys()


def test_figures_of_an_experiment_replace_their_images(monkeypatch, tmp_path):
    figures = tmp_path / evidence.EXPERIMENTS["zipf"].run / "figures"
    figures.mkdir(parents=True)
    for name in ("results.json", "results.csv"):
        (figures.parent / name).write_text("")
    Image.new("RGB", (2400, 800)).save(figures / "sweep.png")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "run", lambda words, python=None: None)
    evidence.run_part("zipf")
    with Image.open(tmp_path / "docs" / "images" / "sweep.png") as image:
        assert image.size == (1200, 400)


def test_every_module_that_is_run_exists_and_has_a_command_line():
    modules = {words[0] for part in evidence.BENCHMARKS.values() for words in part.commands}
    for module in modules:
        assert importlib.util.find_spec(module), module


def test_parts_that_lack_something_are_named_and_the_others_run(monkeypatch, capsys, tmp_path):
    ran = []
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "run", lambda words, python=None: ran.append(words[0]))
    evidence.main(["threads", "precision", "peers"])
    assert ran == ["benchmarks.reliability.threads", *DOCUMENTATION]
    said = capsys.readouterr().out
    assert "left out precision: give --texts FOLDER" in said
    assert "left out peers: the peers' environment is missing" in said
    ran.clear()
    evidence.main(["threads"])  # again
    assert ran == DOCUMENTATION
    assert "threads is done; to repeat it, remove runs/done/threads" in capsys.readouterr().out
    evidence.main(["precision", "--texts", "texts"])
    assert ran.count("osae") == 4  # harvests of two texts, for training and held out


def test_commands_get_the_texts_and_the_model_that_were_given(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "run", lambda words, python=None: ran.append(words))
    evidence.run_part("pace", texts="texts", model="a-model")
    harvesting, _ = ran
    assert harvesting[harvesting.index("--text") + 1] == "texts/wikipedia.jsonl.xz"
    assert harvesting[harvesting.index("--model") + 1] == "a-model"


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        evidence.main(["lm-large"])
    assert "no part lm-large: choose from lemma" in capsys.readouterr().err
