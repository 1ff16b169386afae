"""Agreement between seeds during training, from the snapshots of a run."""

import shutil

import pytest

from osae import metrics
from osae.cli import main
from osae.data.shards import write_shards
from osae.interop import load
from osae.studies import snapshots
from osae.studies.snapshots import measure_snapshots
from tests.studies.saes import noise

SIZES = ["--units", "12", "--k", "2", "--tokens", "400", "--batch", "50", "--start", "noise"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 2 recipes with 3 seeds, and 2 snapshots besides the start."""
    folder = tmp_path_factory.mktemp("run")
    write_shards(folder / "x", [noise(400, 16, 0)])
    given = ["--data", str(folder / "x"), "--seeds", "0,1,2", "--snapshots", "100,200"]
    assert main(["train", "osae,topk", *given, *SIZES, "--out", str(folder / "mine")]) == 0
    return folder / "mine"


def test_every_snapshot_and_the_end_have_the_agreement_of_all_pairs_of_seeds(run):
    found = measure_snapshots(run)
    assert [section.x for section in found.moments] == [0, 100, 200, 400]
    assert found.left_out == ""
    for section in found.moments:
        assert [row.method for row in section.rows] == ["osae", "topk"]
    for place, section in ((run / "snapshots" / "200", found.moments[2]), (run, found.moments[3])):
        decoders = [load(place / f"topk-seed{seed}").decoder for seed in range(3)]
        pairs = {(a, b): metrics.consistency(decoders[a], decoders[b]) for a, b in ((0, 1), (0, 2), (1, 2))}
        row = section.by_method()["topk"]
        for key in ("stability", "orderedness"):
            values = {pair: getattr(one, key) for pair, one in pairs.items()}
            assert row.measures[key] == metrics.pair_interval(values)


def test_the_cost_is_bounded_and_what_is_left_out_is_said(run, monkeypatch):
    monkeypatch.setattr(snapshots, "SEEDS", 2)
    monkeypatch.setattr(snapshots, "MOMENTS", 3)
    found = measure_snapshots(run)
    assert [section.x for section in found.moments] == [0, 200, 400]
    assert found.left_out == ("To save time, only 2 of 3 seeds and 3 of 4 moments of training are compared.")
    one = 2 * 12**2 * 16  # cosines of a pair of each recipe
    monkeypatch.setattr(snapshots, "MOST_WORK", 2 * one)
    assert [section.x for section in measure_snapshots(run).moments] == [0, 400]
    monkeypatch.setattr(snapshots, "MOST_WORK", one)
    found = measure_snapshots(run)
    assert found.moments == ()
    assert "too long" in found.left_out


def test_seeds_that_are_not_finished_are_left_out_and_one_is_not_enough(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for name in ("osae-seed0", "osae-seed1", "topk-seed2"):
        shutil.rmtree(copy / name)
    *_, end = measure_snapshots(copy).moments
    assert [row.method for row in end.rows] == ["topk"]
    assert end.rows[0].measures["stability"].low is None  # a single pair


def test_a_page_shows_agreement_against_samples_only_with_snapshots(run, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert "Agreement between seeds during training" in page.read_text()
    copy = shutil.copytree(run, tmp_path / "copy")
    for samples in (100, 200):
        shutil.rmtree(copy / "snapshots" / f"{samples}")
    assert main(["report", str(copy), "--out", str(page)]) == 0
    assert "Agreement between seeds" not in page.read_text()


def test_seeds_are_compared_only_after_every_other_input_of_a_page_was_read(run, tmp_path, capsys):
    damaged = tmp_path / "compare.json"
    damaged.write_text("{}")
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert main(["report", str(run), str(damaged), "--out", str(page)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "compare.json" in error
    assert not page.exists()
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert "compared with each other in the snapshots" in page.read_text()
