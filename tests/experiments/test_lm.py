"""The language-model experiment on activations of a small world, end to end."""

import csv
import json
from dataclasses import replace

import pytest

from osae import SAE
from osae.cli import main
from osae.config import alter
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from osae.experiments import lm_claims
from osae.experiments.claims import UNTESTED
from osae.experiments.lm import METHODS, LMOptions, Text, lm
from osae.experiments.trained import Job, train_all
from osae.metrics import chance_level
from osae.recipes import FromData, FromNoise, Task, recipe


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two texts whose atoms are the same and come in other proportions."""
    root, found = tmp_path_factory.mktemp("acts"), {}
    for name, zipf in (("one", 1.0), ("other", 0.6)):
        world = SparseWorld(16, 24, 3, zipf=zipf, samples=4000)
        for part, split in (("", "train"), ("-held-out", "test")):
            write_shards(root / f"{name}{part}", [world.draw(split, 2000 if part else 4000).x])
        found[name] = Text(root / name, root / f"{name}-held-out")
    return found


@pytest.fixture(scope="module")
def done(texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("lm")
    options = LMOptions(
        out, texts, units=24, k=3, tokens=6_000, seeds=2, starts=("noise", "data"), batch=100,
        first_text_only=("data",), rates=(1e-2, 3e-3), tuning_tokens=1000, jobs=1,
    )  # fmt: skip
    return lm(options, lambda done, total, text: None), options


def of_places(results):
    """The tables of one text and one start each; what follows them is stitching."""
    *places, stitching = results["sections"]
    assert [row["novel"] for row in stitching["rows"]] == [row["novel"] for row in results["stitching"]]
    return places


def test_every_method_start_and_text_has_a_row_and_a_curve(done):
    results, options = done
    places = [("one", "noise"), ("other", "noise"), ("one", "data")]
    assert [section["title"] for section in of_places(results)] == [
        f"{text}, start from {start}" for text, start in places
    ]
    for section in of_places(results):
        assert {row["method"] for row in section["rows"]} == {*METHODS, "topk-sorted", "untrained"}
        for row in section["rows"]:
            assert row["method"] == "untrained" or 0.3 < row["explained_variance"]["mean"] <= 1
            assert row["reference"] == (row["method"] == "untrained")
            assert row["stability_24"]["low"] <= row["stability_24"]["mean"] <= row["stability_24"]["high"]
    for by_method in results["curves"].values():
        for found in by_method.values():
            assert found["stability"]["prefix"] == [float(n) for n in options.lengths]


def test_sorting_changes_the_order_and_nothing_else(done):
    results, _ = done
    for section in of_places(results):
        rows = {row["method"]: row for row in section["rows"]}
        assert rows["topk"]["stability_24"]["mean"] == pytest.approx(
            rows["topk-sorted"]["stability_24"]["mean"]
        )
        assert rows["topk"]["mse"]["mean"] == pytest.approx(rows["topk-sorted"]["mse"]["mean"], rel=1e-4)
        assert rows["topk"]["orderedness_24"]["mean"] != rows["topk-sorted"]["orderedness_24"]["mean"]


def test_every_length_has_its_own_chance_level(done):
    results, options = done
    for section in of_places(results):
        for length in options.lengths:
            assert section["chance"][f"stability_{length}"] == chance_level(length, length, 16).stability


def test_every_method_has_the_same_trials_and_takes_the_best(done):
    results, options = done
    for name in METHODS:
        mine = [trial for trial in results["trials"] if trial["method"] == name]
        assert [trial["rate"] for trial in mine] == sorted(options.rates)
        assert results["rates"][name] == max(mine, key=lambda t: t["explained_variance"])["rate"]


def test_the_same_seed_from_noise_begins_alike_on_both_texts(done):
    """At the start both have the very same atoms; and time goes from there to the final agreement."""
    results, options = done
    one, other = (
        SAE.load(options.out / "saes" / "noise" / text / "topk-seed0" / "snapshots" / "0")
        for text in ("one", "other")
    )
    assert one.decoder.equal(other.decoder)
    moments = results["over_time"]["topk, one, noise"]
    assert moments[0]["tokens"] == 0
    assert moments[-1]["tokens"] == options.tokens
    final = results["curves"]["one, noise"]["topk"]["stability"]["mean"][-1]
    assert moments[-1]["stability"][-1] == pytest.approx(final)
    crossed = results["crossed"]["topk, noise"]
    assert (
        crossed["same_seed"]["stability"]["mean"][-1] >= crossed["other_seed"]["stability"]["mean"][-1] - 0.1
    )
    assert results["crossed"]["untrained, noise"]["same_seed"]["stability"]["mean"][-1] == pytest.approx(1)
    own = results["own_start"]["topk, one, data"]
    assert 0 < own["stability"]["mean"][-1] < 1


def test_stitched_shares_sum_to_one(done):
    results, options = done
    assert [row["method"] for row in results["stitching"]] == [
        "batchtopk",
        "matryoshka-random",
        "osae-paper",
        "osae",
    ]
    for row in results["stitching"]:
        assert row["novel"] + row["reconstruction"] + row["unchanged"] == pytest.approx(1)
    with open(options.out / "figures" / "stitching.csv") as file:
        assert [float(row["novel"]) for row in csv.DictReader(file)] == [
            row["novel"] for row in results["stitching"]
        ]


def test_every_figure_has_its_numbers_beside_it(done):
    results, options = done
    assert len(results["figures"]) == 3 + 2 + 6 + 3 + 1
    for figure in results["figures"]:
        picture = options.out / figure["file"]
        assert picture.stat().st_size > 5000
        with open(picture.with_suffix(".csv")) as file:
            lines = len(list(csv.DictReader(file)))
            assert lines == 4 if picture.stem == "stitching" else lines > 10


@pytest.mark.parametrize("name", METHODS)
def test_the_start_changes_the_start_alone(name):
    task = Task(16, 64, 4, 10_000)
    usual, begun = recipe(name, task), recipe(name, task, start="noise")
    assert usual == recipe(name, task, start="data")
    assert (usual.start, begun.start) == (FromData(), FromNoise())
    assert replace(usual, start=FromNoise()) == begun


def test_from_noise_our_method_holds_nothing():
    made = recipe("osae-from-noise", Task(16, 64, 4, 10_000))
    assert made.start == FromNoise()
    assert made.sweep is None


def test_a_start_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no start 'zeros': there are data, noise"):
        recipe("osae", Task(16, 64, 4, 10_000), start="zeros")


def test_one_text_and_one_method_are_enough(texts, tmp_path):
    options = LMOptions(
        tmp_path, {"one": texts["one"]}, units=12, k=2, tokens=2000, seeds=2, methods=("batchtopk",),
        batch=500, groups=3, rates=(1e-2,), stitch=0, jobs=1,
    )  # fmt: skip
    results = lm(options, lambda done, total, text: None)
    assert not results["crossed"]
    assert not results["stitching"]
    assert not results["claims"]
    assert "2 seeds are one pair" in results["notes"][0]
    tested = {c["claim"] for c in lm_claims.claims(results, 12, 3) if c["verdict"] != UNTESTED}
    assert not tested
    assert [moment["tokens"] for moment in results["over_time"]["batchtopk, one, data"]] == [
        0,
        500,
        1000,
        2000,
    ]


def test_what_another_training_has_begun_to_write_over_is_trained_again(done, texts, tmp_path, monkeypatch):
    """Snapshots of one recipe are never taken for those of another that was asked for before and after."""
    _, options = done
    task = options.task(tokens=1000)
    before, between = (
        Job(alter(recipe("topk", task), {"lr.peak": rate}), 0, options.source("one"), (0, 500))
        for rate in (1e-2, 3e-3)
    )
    (first,) = train_all([before], tmp_path, workers=1)
    kept = SAE.load(before.snapshot(tmp_path, 500)).decoder

    def killed(self, folder, *, provenance=None):
        if provenance is not None:
            raise InterruptedError
        return save(self, folder)

    save = SAE.save
    with monkeypatch.context() as patch:
        patch.setattr(SAE, "save", killed)
        with pytest.raises(InterruptedError):
            list(train_all([between], tmp_path, workers=1))
    assert not SAE.load(before.snapshot(tmp_path, 500)).decoder.equal(kept)
    (again,) = train_all([before], tmp_path, workers=1)
    assert again.sae.decoder.equal(first.sae.decoder)
    assert SAE.load(before.snapshot(tmp_path, 500)).decoder.equal(kept)


def test_command_goes_on_from_what_is_there_and_writes_the_page(texts, tmp_path, capsys):
    words = ["reproduce", "lm", "--out", str(tmp_path), "--units", "16", "--k", "2", "--tokens", "4096"]
    words += ["--seeds", "2", "--methods", "topk,osae", "--rates", "1e-2", "--stitch", "0", "--jobs", "1"]
    words += [f"--data={name}={text.train}" for name, text in texts.items()]
    assert main(words) == 0
    made = sorted(path.stat().st_mtime_ns for path in (tmp_path / "saes").rglob("sae.json"))
    assert main(words) == 0
    assert made == sorted(path.stat().st_mtime_ns for path in (tmp_path / "saes").rglob("sae.json"))
    assert json.loads((tmp_path / "results.json").read_text())["experiment"] == "lm"
    assert (tmp_path / "report.html").exists()
    assert "topk-sorted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "one"], "write NAME="),
        (["--setting", "gpt-5"], "no setting 'gpt-5'"),
        (["--starts", "luck"], "no start 'luck'"),
        (["--first-text-only", "luck"], "no start 'luck'"),
        (["--seeds", "1"], "needs at least 2"),
        (["--methods", "topk,topk"], "name each once"),
        (["--data", "a=ONE", "--data", "a=ONE"], "two texts are called 'a'"),
        (["--data", "a=ONE-held-out"], "no such file or folder"),
    ],
)
def test_bad_requests_are_refused(words, message, texts, tmp_path, capsys):
    words = [word.replace("ONE", str(texts["one"].train)) for word in words]
    assert main(["reproduce", "lm", "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
