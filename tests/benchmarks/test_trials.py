"""Trials: a file keeps every one once, and two runs of a trial share no document."""

import json

import torch

from benchmarks import ROOT
from benchmarks.hard import plans as hard_plans
from benchmarks.hard import trials as hard
from benchmarks.language import plans, table, trials
from benchmarks.language.measures import measure_pair
from benchmarks.trials import read_trials, run_missing
from osae.data.documents import read_documents
from osae.data.shards import write_shards
from osae.recipes import Task, recipe


def _harvest(folder, rows=512, width=8, seed=0):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return write_shards(folder, [{"activations": x, "documents": torch.arange(rows) // 16}])


def _trial(**changes):
    sizes = {"units": 12, "k": 2, "tokens": 640, "batch": 64}
    return {"text": "text", "method": "topk", "changes": {}, **sizes, **changes}


def test_trials_that_the_file_has_are_not_repeated(tmp_path):
    file, ran = tmp_path / "below" / "trials.jsonl", []

    def run(trial):
        ran.append(trial["name"])
        return {**trial, "measures": {}, "cpu_seconds": 0.0}

    run_missing(file, [{"name": "a"}], run, ["name"])
    run_missing(file, [{"name": "a"}, {"name": "b"}, {"name": "b"}], run, ["name"])
    assert ran == ["a", "b"]
    assert [record["name"] for record in read_trials(file)] == ["a", "b"]


def test_the_halves_of_a_text_share_no_document(tmp_path):
    whole = _harvest(tmp_path / "text")
    halves = trials.split(tmp_path / "text")
    documents = dict(
        zip(map(_digest, whole.read(0, whole.rows)), read_documents(whole).tolist(), strict=True)
    )
    seen = [{documents[_digest(row)] for row in half.read(0, half.rows)} for half in halves]
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 32


def _digest(row):
    return tuple(row.tolist())


def test_a_trial_keeps_its_recipe_cost_and_measures(tmp_path):
    _harvest(tmp_path / "text")
    _harvest(tmp_path / "text-held-out", rows=128, seed=1)
    record = trials.run_trial(_trial(changes={"lr.peak": 0.01}), tmp_path)
    assert record["recipe"]["lr"]["peak"] == 0.01
    assert record["cpu_seconds"] > 0
    assert 0 < record["measures"]["stability"] <= 1
    assert json.loads(json.dumps(record)) == record


def test_measures_of_an_sae_with_itself_are_perfect(tmp_path):
    rows = _harvest(tmp_path / "rows")
    sae = trials.fit(recipe("topk", Task(8, 12, 2, 640, 64)), rows, progress=False)
    found = measure_pair([sae, sae], rows, [4])
    assert abs(found["stability"] - 1) < 1e-5
    assert found["orderedness"] == found["orderedness_4"] == 1
    assert abs(found["stream_stability"] - 1) < 1e-5
    assert found["ev_4"] < found["ev"]
    assert found["chance"] < 1


def test_units_are_sorted_by_gain_where_training_does_not_sort_them(tmp_path):
    rows = _harvest(tmp_path / "rows")
    sae = trials.fit(recipe("topk", Task(8, 12, 2, 640, 64)), rows, progress=False)
    once = trials.sort_once(sae, rows)
    assert torch.equal(trials.sort_once(once, rows).decoder, once.decoder)
    assert not torch.equal(once.decoder, sae.decoder)


def test_every_planned_trial_has_a_recipe():
    for make in plans.PLANS.values():
        for trial in make():
            assert trials.make_recipe(trial, 576).batch == trial["batch"]
    for make in hard_plans.PLANS.values():
        for world, method, changes, epochs, batch in make():
            trial = {"method": method, "changes": changes, "epochs": epochs, "batch": batch}
            assert hard.make_recipe(trial, world).sae.units == world.units


def test_the_kept_table_is_that_of_the_kept_trials():
    kept = ROOT / "evidence" / "language"
    assert table.tabulate(read_trials(kept / "trials.jsonl")) == (kept / "table.md").read_text()


def test_the_figure_shows_every_trial(tmp_path):
    kept = read_trials(ROOT / "evidence" / "language" / "trials.jsonl")
    table.plot(kept, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
