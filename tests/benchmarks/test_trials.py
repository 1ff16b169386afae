"""Trials: a file keeps every one once, and two runs of a trial share no document."""

import json
from dataclasses import replace

import torch

from benchmarks import ROOT
from benchmarks.hard import plans as hard_plans
from benchmarks.hard import table as hard_table
from benchmarks.hard import trials as hard
from benchmarks.language import ceiling, goals, growth, limits, plans, sharing, table, trials, ways
from benchmarks.language.measures import measure_pair
from benchmarks.trials import read_trials, run_missing
from osae.config import alter, to_json
from osae.data.documents import read_documents
from osae.data.shards import Shards, write_shards
from osae.model import SAE
from osae.recipes import FromConsensus, Task, recipe
from osae.training.consensus import make_short
from osae.training.simple import fit
from osae.training.start import Consensus


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


def test_the_first_rows_of_a_text_are_cut_from_it(tmp_path):
    whole = _harvest(tmp_path / "text", rows=1100)
    text = tmp_path / "text, first 1,024 rows"
    assert sum(half.rows for half in trials.split(text)) == 1024
    found = Shards(text)
    assert torch.equal(found.read(0, 1024), whole.read(0, 1024))
    assert torch.equal(read_documents(found), read_documents(whole)[:1024])


def test_pairs_that_share_something_are_next_to_one_that_shares_nothing():
    kept = read_trials(ROOT / "evidence/language/trials.jsonl")
    _, _, nothing, *others = table.tabulate_causes(kept)
    assert nothing[0] == "nothing"
    assert [row[0].startswith(("the ", "an SAE ")) for row in others] == [True] * 4


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
    sae = fit(recipe("topk", Task(8, 12, 2, 640, 64)), rows, progress=False)
    found = measure_pair([sae, sae], rows, [4])
    assert abs(found["stability"] - 1) < 1e-5
    assert found["orderedness"] == found["orderedness_4"] == 1
    assert abs(found["stream_stability"] - 1) < 1e-5
    assert found["ev_4"] < found["ev"]
    assert found["chance"] < 1


def test_units_are_sorted_by_gain_where_training_does_not_sort_them(tmp_path):
    rows = _harvest(tmp_path / "rows")
    sae = fit(recipe("topk", Task(8, 12, 2, 640, 64)), rows, progress=False)
    once = ways.sort_units(sae, rows)
    assert torch.equal(ways.sort_units(once, rows).decoder, once.decoder)
    assert not torch.equal(once.decoder, sae.decoder)


def _parts(folder):
    return [_harvest(folder / "a"), _harvest(folder / "b", seed=1)]


def _train(folder, way, run=0):
    made = recipe("topk", Task(8, 12, 2, 640, 64))
    return ways.train_one(way, ways.Trainer(folder / "saes"), made, _parts(folder), run, run)


def test_one_run_is_a_run_of_the_package_and_is_trained_once(tmp_path):
    made, rows = recipe("topk", Task(8, 12, 2, 640, 64)), _harvest(tmp_path / "rows")
    first, second = ways.Trainer(tmp_path / "saes"), ways.Trainer(tmp_path / "saes")
    sae = first.fit(made, rows, 3)
    assert torch.equal(sae.decoder, fit(made, rows, seed=3, progress=False).decoder)
    assert torch.equal(second.fit(made, rows, 3).decoder, sae.decoder)
    assert second.seconds == first.seconds > 0
    assert not torch.equal(second.fit(made, rows, 4).decoder, sae.decoder)


def test_averaged_weights_are_the_mean_of_the_weights_along_the_run(tmp_path):
    made, rows = recipe("topk", Task(8, 12, 2, 640, 64)), _harvest(tmp_path / "rows")
    assert made.steps == 10  # one weight every EVERY steps: the eighth
    trainer = ways.Trainer(tmp_path / "saes")
    whole, last = (trainer.fit(made, rows, 0, average=each) for each in (ways.Average(1.0), None))
    assert not torch.equal(whole.decoder, last.decoder)
    assert torch.allclose(whole.decoder.norm(dim=1), torch.ones(12), atol=1e-5)


def test_every_way_trains_an_sae_of_the_size_of_the_recipe(tmp_path):
    for number, way in enumerate(
        (
            None,
            ways.Average(0.5),
            ways.Fork(640, 1e-3),
            ways.Shared(documents=True),
            ways.Consensus(3, 640, 1e-3, 2e-3),
            ways.Consensus(2, 640, 1e-3, 2e-3, wider=1.5, free=True),
            ways.Consensus(2, 640, 1e-3, 2e-3, wider=1.5, free=True, scored="gain"),
        )
    ):
        sae = _train(tmp_path / str(number), way)
        assert (sae.config.units, sae.config.width) == (12, 8)
        assert bool(sae.decoder.isfinite().all())
        assert ways.describe(way)


def test_agreement_is_measured_for_every_doubling_of_the_short_runs_without_training_them_again(tmp_path):
    _harvest(tmp_path / "text")
    _harvest(tmp_path / "text-held-out", rows=128, seed=1)
    way = to_json(ways.Consensus(5, 640, 1e-3, 2e-3, wider=1.5))
    record = trials.run_trial(_trial(way=way), tmp_path)
    kept = len(list((tmp_path / "saes").iterdir()))
    planned = list(growth.plan([record, _trial()]))
    assert [each["runs"] for each in planned] == [1, 2, 4]
    found = [growth.measure(each, tmp_path) for each in planned]
    assert len(list((tmp_path / "saes").iterdir())) == kept
    assert found[0]["measures"]["found_by_half"] == 1
    assert 0 < found[0]["cpu_seconds"] < found[2]["cpu_seconds"] < record["cpu_seconds"]
    assert json.loads(json.dumps(found)) == found


def test_scores_decide_the_order_of_a_trial_that_asks_for_them(tmp_path):
    rows, made = _harvest(tmp_path / "rows"), recipe("topk", Task(8, 12, 2, 640, 64))
    trainer = ways.Trainer(tmp_path / "saes")
    plain, scored = (
        ways.start_from_consensus(replace(way, scored=asked), trainer, made, rows, 0)
        for way in [ways.Consensus(3, 640, 1e-3, 2e-3, wider=1.5, free=True)]
        for asked in (None, "gain")
    )
    assert isinstance(plain, SAE)
    assert isinstance(scored, Consensus)
    assert torch.equal(scored.sae.decoder.sum(1).sort().values, plain.decoder.sum(1).sort().values)
    assert not torch.equal(scored.sae.decoder, plain.decoder)


def test_shared_documents_are_compared_by_other_short_runs_on_the_same_rows(tmp_path, monkeypatch):
    _harvest(tmp_path / "text")
    monkeypatch.setattr(sharing, "CURVE", (4, 8, 12))
    way = ways.Consensus(4, 640, 1e-3, 2e-3, wider=1.5, free=True)
    about = {"short_tokens": 640, "short_rate": 2e-3, "wider": 1.5, "seed": 0}
    found = {
        documents: sharing.measure(_trial(way=to_json(way), documents=documents, runs=2, **about), tmp_path)
        for documents in (sharing.SHARED, sharing.OTHER)
    }
    assert len(list((tmp_path / "saes").iterdir())) == 8  # four on each half, of which two serve both
    assert found[sharing.SHARED]["measures"]["stability"] != found[sharing.OTHER]["measures"]["stability"]
    for one in found.values():
        counts, scores, shares = zip(*one["curve"], strict=True)
        assert counts == (4, 8, 12)
        assert list(scores) == sorted(scores, reverse=True)
        assert all(0 <= share <= 1 for share in shares)


def test_a_limit_is_estimated_for_shared_and_for_other_documents():
    def record(documents, runs, stability):
        measures = {"stability": stability, "found_by_half": 0.5, "stability_of_these": 0.9}
        return {"rows": 10, "documents": documents, "runs": runs, "measures": measures}

    other = [record(sharing.OTHER, runs, 0.8 - 0.4 / runs) for runs in (1, 2, 4, 8)]
    shared = [record(sharing.SHARED, runs, 1 - 0.6 / runs) for runs in (1, 2, 4)]
    head, _, first, second = limits.tabulate_sharing([*shared, *other])
    limit = head.index("limit")
    assert (first[1], first[limit]) == (sharing.OTHER, "0.80")
    assert (second[1], second[limit], second[head.index("8 runs")]) == (sharing.SHARED, "1.00", limits.ABSENT)


def test_the_short_runs_of_a_trial_are_those_of_the_package(tmp_path):
    made = recipe("osae-aligned", Task(8, 12, 2, 640, 64))
    way = ways.Consensus(1, 640, 1e-3, 8e-3, wider=1.5, free=True)
    rows = _harvest(tmp_path / "rows")
    (short,) = ways.train_short(way, ways.Trainer(tmp_path / "saes"), made, rows, 0)
    start = FromConsensus(1, 640, 8e-3 / made.lr.peak, wider=1.5)
    same = fit(make_short(made, start), rows, seed=ways.SEEDS, progress=False)
    assert len(short.decoder) == 18
    assert torch.equal(short.decoder, same.decoder)


def test_every_planned_trial_has_a_recipe():
    for make in plans.PLANS.values():
        for trial in make():
            assert trials.make_recipe(trial, 576).batch == trial["batch"]
    for make in hard_plans.PLANS.values():
        for world, method, changes, epochs, batch in make():
            trial = {"method": method, "changes": changes, "epochs": epochs, "batch": batch}
            assert hard.make_recipe(trial, world).sae.units == world.units


def test_the_recipe_is_the_one_that_was_tried():
    tried = next(trial for trial in plans.repeats() if trial["changes"] == plans.ORDERED_AT_ONCE)
    made = trials.make_recipe(tried, 576)
    assert made.k_warmup is not None
    assert made.k_warmup.share == 0
    task = Task(576, tried["units"], tried["k"], tried["tokens"], tried["batch"])
    assert replace(made, name="osae-aligned", k_warmup=None) == recipe("osae-aligned", task)


def test_the_default_consensus_is_the_one_that_was_tried():
    tried = plans.chosen()
    way, task = tried["way"], Task(576, tried["units"], tried["k"], tried["tokens"], tried["batch"])
    made = alter(recipe("osae-aligned", task, start="consensus"), {"prefix.full": 0.9})
    start = made.start
    assert isinstance(start, FromConsensus)
    assert (start.runs, start.samples, start.wider, start.same) == (24, way.tokens, way.wider, way.same)
    assert (made.lr.peak, start.rate * made.lr.peak) == (way.rate, way.short_rate)
    same = ("prefix", "resort", "dictionary", "samples", "batch", "sae", "sweep", "adam")
    assert all(getattr(made, name) == getattr(trials.make_recipe(tried, 576), name) for name in same)


def test_repeated_trials_are_summarised_by_their_mean():
    kept = read_trials(ROOT / "evidence/language/trials.jsonl")
    rows = table.tabulate_repeats(kept)[2:]
    assert len(rows) >= 3
    assert all(int(row[2]) >= 3 for row in rows)
    usual = [trial for trial in kept if trial["method"] == "topk" and trial["text"] == "wikipedia"]
    usual = [trial for trial in usual if trial["tokens"] == 1_500_000 and trial["batch"] == 256]
    usual = [trial for trial in usual if table.name_differences(trial, seeds=False) == table.ABSENT]
    usual = [t for t in usual if t["recipe"]["lr"]["peak"] == 0.004 and table.name_start(t) == "noise"]
    mean = sum(trial["measures"]["stability"] for trial in usual) / len(usual)
    assert any(row[5].startswith(f"{mean:.3f} [") for row in rows)


def test_the_limit_of_agreement_is_found_where_agreement_follows_the_model():
    tokens = [250_000, 500_000, 1_000_000, 4_000_000, 16_000_000]
    found = ceiling.estimate({at: 0.8 - 0.3 * (at / 250_000) ** -0.5 for at in tokens})
    assert abs(found.limit - 0.8) < 0.01
    assert abs(found.power - 0.5) < 0.05
    assert found.low < 0.8 < found.high
    few = ceiling.estimate({at: 0.8 - 0.3 * (at / 250_000) ** -0.5 for at in tokens[:3]})
    assert few.high - few.low > found.high - found.low  # short runs say less about the limit


def test_the_kept_table_is_that_of_the_kept_trials():
    kept = ROOT / "evidence" / "language"
    names = ("trials.jsonl", "growth.jsonl", "sharing.jsonl")
    assert table.tabulate(*(read_trials(kept / name) for name in names)) == (kept / "table.md").read_text()


def test_the_kept_table_of_worlds_is_that_of_the_kept_trials():
    folder = ROOT / "evidence/hard"
    text = hard_table.tabulate(read_trials(folder / "trials.jsonl"))
    assert (folder / "table.md").read_text() == text
    assert text.count(" - ") == 4  # aligned encoders were not tried with the usual schedule


def test_the_figure_of_limits_shows_every_consensus(tmp_path):
    limits.plot_limits(read_trials(ROOT / "evidence/language/sharing.jsonl"), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def _reached(planned, seed, ev=0.7, **measures):
    found = {goal.key: 0.5 for target in goals.TARGETS for goal in target.goals}
    return {**to_json(planned), "seed": seed, "measures": {**found, "ev": ev, **measures}}


def test_goals_are_compared_with_every_pair_and_with_topk(tmp_path):
    large = goals.TARGETS[-1]
    tried = [_reached(large.ours, seed, stability=0.6 + 0.1 * seed) for seed in (0, 1)]
    tried += [_reached(large.ours, 2, stability=0.8)]
    tried += [_reached(large.rival, 0, ev=0.75), {**_reached(large.rival, 0), "tokens": 5}]
    rows = {row[2]: row[3:] for row in goals.tabulate_goals(tried)[2:]}
    assert len(rows) == len(large.goals)
    assert rows["stability"][0] == "0.750"
    assert rows["stability"][1].startswith("0.700 [")  # three pairs have an interval, one has none
    assert rows["stability"][1].endswith("(3 pairs)")
    assert rows["stability"][2:] == ["0.500 (1 pair)", "8,000,000"]
    assert rows["explained variance, less TopK's"][1].startswith("-0.050 [")
    assert rows["explained variance, less TopK's"][2] == "0.000 (1 pair)"
    goals.plot_goals(tried, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_goals_without_topk_have_no_difference():
    ours = _reached(goals.TARGETS[0].ours, 0)
    assert goals.tabulate_goals([ours])[-1][-3:-1] == ["-", "-"]


def test_a_baseline_is_shown_at_its_best_rate_by_error_and_by_stability():
    low, high = (to_json(plans.tuned("topk", rate)) for rate in plans.BASELINE_RATES)
    kept = read_trials(ROOT / "evidence" / "language" / "trials.jsonl")
    like = next(one for one in kept if one["method"] == "topk" and one["changes"] == low["changes"])
    tried = [
        {**like, **made, "recipe": like["recipe"] | {"lr": like["recipe"]["lr"] | {"peak": rate}}}
        | {"measures": like["measures"] | found}
        for made, rate, found in (
            (low, 0.004, {"ev": 0.8, "stability": 0.5}),
            (high, 0.008, {"ev": 0.7, "stability": 0.6}),
        )
    ]
    rows = table.tabulate_baselines(tried)[2:]
    assert [row[1:4] for row in rows] == [["2", "EV", "0.004"], ["2", "stability", "0.008"]]


def test_the_figure_shows_every_trial(tmp_path):
    kept = read_trials(ROOT / "evidence" / "language" / "trials.jsonl")
    table.plot(kept, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
