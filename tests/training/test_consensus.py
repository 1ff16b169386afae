"""The consensus of several SAEs has what they share; a run that starts from one can be killed at any time."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from osae import metrics
from osae.cli import forecasting, main
from osae.config import alter
from osae.data.harvest import Harvest
from osae.data.shards import write_shards
from osae.data.source import Live, MemoryRows, OnDisk
from osae.data.text import TextFiles
from osae.data.worlds import SparseWorld
from osae.dictionary import FreeAtoms
from osae.forecast import list_smaller_runs
from osae.model import SAE, SAEConfig
from osae.prefix import Full
from osae.ranks import Mesh, Ranks
from osae.recipes import FromConsensus, FromNoise, Task, recipe
from osae.sparsify import TopK
from osae.training import checkpoint, consensus, sizes
from osae.training import run as runs
from osae.training.consensus import find_consensus
from osae.training.member import Member
from osae.training.simple import fit
from osae.training.sizes import measure_training
from osae.training.start import Consensus

SAME = 0.6


def _make_sae(atoms, bias=0.0):
    sae = SAE(SAEConfig(atoms.shape[1], len(atoms), TopK(2)), atoms=atoms).requires_grad_(False)
    sae.encoder_bias.fill_(bias)
    return sae


def _draw_atoms(units, width=24, seed=0):
    return normalize(torch.randn(units, width, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _shuffle(sae, seed):
    return sae.reorder(torch.randperm(sae.config.units, generator=torch.Generator().manual_seed(seed)))


def _assert_same_units(a, b):
    nearest = (a.decoder @ b.decoder.T).max(1)
    torch.testing.assert_close(nearest.values, torch.ones(a.config.units))
    assert sorted(nearest.indices.tolist()) == list(range(b.config.units))
    for name in ("encoder", "encoder_bias", "threshold"):
        torch.testing.assert_close(a.state_dict()[name], b.state_dict()[name][nearest.indices])


@pytest.mark.parametrize("copies", [1, 4])
def test_the_consensus_of_copies_of_an_sae_is_that_sae(copies):
    sae = _make_sae(_draw_atoms(12), bias=0.25)
    found = find_consensus([_shuffle(sae, n) for n in range(copies)], SAME, 12)
    _assert_same_units(found.sae, sae)
    torch.testing.assert_close(found.scores, torch.ones(12))


def test_atoms_that_count_as_one_unit_still_fill_the_dictionary():
    atoms = _draw_atoms(6)
    near = normalize(atoms + 0.1 * _draw_atoms(6, seed=1), dim=-1)
    sae = _make_sae(torch.cat([atoms, near]))
    assert bool(((atoms * near).sum(1) > SAME).all())
    found = find_consensus([sae, sae, sae], SAME, 12).sae
    assert found.config.units == 12
    assert bool(found.decoder.isfinite().all())
    torch.testing.assert_close(found.decoder.norm(dim=1), torch.ones(12))


def test_neither_the_order_of_runs_nor_that_of_units_changes_the_set_of_units():
    shared = _draw_atoms(8)
    saes = [
        _make_sae(
            normalize(
                torch.cat([shared + 0.08 * _draw_atoms(8, seed=n), _draw_atoms(4, seed=50 + n)]), dim=-1
            )
        )
        for n in range(1, 5)
    ]
    found = find_consensus(saes, SAME, 12)
    again = find_consensus([_shuffle(sae, n) for n, sae in enumerate(reversed(saes))], SAME, 12)
    torch.testing.assert_close(found.scores[:8], again.scores[:8])
    first, other = found.sae.decoder[:8], again.sae.decoder[:8]
    torch.testing.assert_close((first @ other.T).amax(1), torch.ones(8))


def test_units_that_most_runs_find_come_first_and_are_nearer_to_the_truth_than_any_run():
    shared, runs = _draw_atoms(8), 6
    noisy = [normalize(shared + 0.5 * _draw_atoms(8, seed=20 + n), dim=-1) for n in range(runs)]
    saes = [_make_sae(torch.cat([_draw_atoms(4, seed=n + 1), each])) for n, each in enumerate(noisy)]
    found = find_consensus(saes, SAME, 12)
    nearest = (shared @ found.sae.decoder[:8].T).amax(1)
    assert float(nearest.mean()) > max(float((shared * each).sum(1).mean()) for each in noisy)
    assert bool((found.scores[:8] > found.scores[8:].max()).all())
    assert bool((found.scores <= 1 + 1e-6).all())


def test_of_wider_runs_the_units_that_most_of_them_find_are_kept():
    shared = _draw_atoms(8)
    saes = [_make_sae(torch.cat([_draw_atoms(6, seed=30 + n), shared])) for n in range(4)]
    found = find_consensus(saes, SAME, 8)
    _assert_same_units(found.sae, _make_sae(shared))
    torch.testing.assert_close(found.scores, torch.ones(8))


def _world_rows(part=0, samples=4000):
    world = SparseWorld(16, 24, 3, samples=2 * samples).draw("train").x
    return world[part * samples :][:samples]


def _make_recipe(**changes):
    task = Task(width=16, units=24, k=3, samples=2000, batch=100)
    start = FromConsensus(3, 1000, rate=2.0)
    return alter(recipe("osae-aligned", task), {"start": start, **changes})


def _states_equal(a, b):
    b = b.state_dict()
    return all(torch.equal(tensor, b[name]) for name, tensor in a.state_dict().items())


def test_short_runs_are_plain_runs_from_noise_at_another_rate():
    short = consensus.make_short(_make_recipe(), FromConsensus(3, 1000, rate=2.0, wider=1.5))
    assert (short.samples, short.start, short.prefix, short.resort) == (1000, FromNoise(), Full(), None)
    assert short.lr.peak == 2 * _make_recipe().lr.peak
    assert short.dictionary == FreeAtoms()
    assert short.sae == replace(_make_recipe().sae, units=36)


def test_consensuses_on_disjoint_samples_agree_more_than_single_short_runs_and_most_from_wider_ones():
    sources = [MemoryRows(_world_rows(part)) for part in (0, 1)]

    def agree(**changes):
        made = alter(_make_recipe(), {"start": FromConsensus(samples=8000, rate=2.0, **changes)})
        starts = [consensus.start_from_runs(made, part, source) for part, source in enumerate(sources)]
        return metrics.stability(*(start.sae.decoder for start in starts if start is not None))

    alone, together, wider = agree(runs=1, wider=1.0), agree(runs=8, wider=1.0), agree(runs=8, wider=1.5)
    assert together > alone + 0.02
    assert wider > together + 0.04


def test_the_start_is_a_function_of_the_data_and_the_seed():
    source = MemoryRows(_world_rows())
    first, again, other = (consensus.start_from_runs(_make_recipe(), seed, source) for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    assert _states_equal(first.sae, again.sae)
    assert torch.equal(first.scores, again.scores)
    assert not _states_equal(first.sae, other.sae)
    assert consensus.start_from_runs(_make_recipe(start=FromNoise()), 0, source) is None


def test_the_start_is_sorted_by_the_gain_of_its_units_times_their_score():
    rows = _world_rows()
    found = consensus.start_from_runs(_make_recipe(), 0, MemoryRows(rows))
    assert found is not None
    activity = metrics.Coactivity(found.sae.decoder)
    activity.update(*found.sae.encode(rows), rows - found.sae.decoder_bias)
    order, gains = activity.greedy_gains()
    key = gains * found.scores
    assert bool((key.diff() <= 1e-6 * key[0]).all())
    assert not torch.equal(order, torch.arange(24))


def test_the_scores_stay_with_their_units_and_are_stored_with_the_sae():
    rows, made = _world_rows(), _make_recipe()
    found = consensus.start_from_runs(made, 0, MemoryRows(rows))
    assert found is not None
    still = alter(made, {"dictionary": FreeAtoms()})  # which keeps the encoders of the start
    backwards = Consensus(found.sae.reorder(torch.arange(23, -1, -1)), found.scores.flip(0))
    member = Member(still, 0, rows, start=backwards)
    member.resort(rows, done=1)
    nearest = (member.finish().decoder @ found.sae.decoder.T).argmax(1)
    assert torch.equal(nearest, torch.arange(24))
    assert member.scores is not None
    assert torch.equal(member.scores, found.scores)
    assert member.list_scores() == {"scores": [round(score, 4) for score in found.scores.tolist()]}
    assert Member(alter(made, {"start": FromNoise()}), 0, rows).list_scores() == {}


def _create(tmp_path, name, **changes):
    data = tmp_path / "data"
    if not data.exists():
        write_shards(data, [{"activations": _world_rows()}])
    config = runs.RunConfig((_make_recipe(**changes),), (0,), OnDisk(str(data)), checkpoint_seconds=0.0)
    runs.create(tmp_path / name, config)
    return tmp_path / name


class _Killed(Exception):
    pass


@pytest.mark.parametrize("calls", [1, 2])
def test_a_run_killed_between_short_runs_continues_with_the_next_and_ends_the_same(
    tmp_path, monkeypatch, calls
):
    whole, killed = _create(tmp_path, "whole"), _create(tmp_path, "killed")
    (member,) = runs.go(whole)
    count, trained = 0, consensus.train

    def train_and_die(*given, **options):
        nonlocal count
        if count == calls:
            raise _Killed
        count += 1
        trained(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(consensus, "train", train_and_die)
        with pytest.raises(_Killed):
            runs.go(killed)
    kept = sorted(path.name for path in (killed / "short" / member.name).iterdir())
    assert kept == [str(n) for n in range(calls)]
    said = []
    (resumed,) = runs.go(killed, tell=said.append)
    assert len(said) == 3 - calls
    assert _states_equal(resumed.finish(), member.finish())


def test_a_run_resumed_from_its_checkpoint_trains_no_short_run_and_ends_the_same(tmp_path):
    whole, stopped = _create(tmp_path, "whole"), _create(tmp_path, "stopped")
    (member,) = runs.go(whole)

    def stop(done, steps, terms):
        if done == 7:
            raise _Killed

    with pytest.raises(_Killed):
        runs.go(stopped, progress=stop)
    assert checkpoint.exists(stopped)
    said = []
    (resumed,) = runs.go(stopped, tell=said.append)
    assert not said
    assert _states_equal(resumed.finish(), member.finish())
    about, again = (
        json.loads((run / member.name / "sae.json").read_text())["provenance"] for run in (whole, stopped)
    )
    assert about["recipe"]["start"]["kind"] == "FromConsensus"
    assert len(about["scores"]) == 24
    assert about["scores"] == again["scores"]
    assert len(set(about["scores"])) > 1


def test_a_run_and_fit_train_the_same_sae(tmp_path):
    (member,) = runs.go(_create(tmp_path, "run"))
    sae = fit(_make_recipe(), str(tmp_path / "data"), seed=0, progress=False)
    assert _states_equal(member.finish(), sae)
    assert member.list_scores() == {"scores": sae.provenance["scores"]}


def test_osae_train_announces_and_keeps_the_short_runs(tmp_path, capsys):
    write_shards(tmp_path / "data", [{"activations": _world_rows()}])
    words = ["train", "osae-aligned", "--data", str(tmp_path / "data"), "--units", "24", "--k", "3"]
    words += ["--tokens", "1000", "--batch", "100", "--out", str(tmp_path / "run")]
    words += ["--start", "consensus", "--set", "start.runs=2", "--set", "start.samples=500"]
    assert main(words) == 0
    assert "short run 2 of 2, for the start of osae-aligned, seed 0." in capsys.readouterr().err
    shorts = [SAE.load(tmp_path / f"run/short/osae-aligned-seed0/{n}") for n in range(2)]
    assert [sae.provenance["recipe"]["samples"] for sae in shorts] == [500, 500]
    assert len({sae.provenance["seed"] for sae in shorts} | {0}) == 3


def test_the_short_runs_score_every_unit_of_the_sae_that_starts_from_them(tmp_path):
    (member,) = runs.go(_create(tmp_path, "run"))
    shorts = [str(path) for path in sorted((tmp_path / "run/short" / member.name).iterdir())]
    scores = tmp_path / "scores.csv"
    assert main(["compare", str(tmp_path / "run" / member.name), *shorts, "--units", str(scores)]) == 0
    with scores.open() as file:
        supports = [float(row["support"]) for row in csv.DictReader(file) if row["sae"] == member.name]
    assert len(supports) == 24
    assert all(0 <= support <= 1 for support in supports)
    assert len(set(supports)) > 1


def test_a_member_alone_cannot_find_a_consensus():
    with pytest.raises(ValueError, match="needs short runs"):
        Member(_make_recipe(), 0, _world_rows())


def test_short_runs_on_several_processes_or_directly_from_a_model_are_refused(tmp_path):
    two, said = Mesh(rows=Ranks(0, 2), everyone=Ranks(0, 2)), []
    with pytest.raises(ValueError, match="short runs are trained on one process"):
        runs.go(_create(tmp_path, "run"), mesh=two, tell=said.append)
    assert not said  # not even the first short run
    live = Live(Harvest("model", TextFiles(("text.jsonl",)), tokens=1000))
    with pytest.raises(ValueError, match="harvest them with `osae harvest`"):
        runs.RunConfig((_make_recipe(),), (0,), live)
    runs.RunConfig((_make_recipe(start=FromNoise()),), (0,), live)


def test_short_runs_count_in_the_forecast(tmp_path):
    write_shards(tmp_path / "data", [{"activations": _world_rows()}])
    source = OnDisk(str(tmp_path / "data"))
    alone, after = (measure_training([_make_recipe(**c)], [0], source) for c in ({"start": FromNoise()}, {}))
    assert (alone.short_steps, after.short_steps) == (0, 1.5 * 3 * 10)
    assert after.forecast().disk > alone.forecast().disk


def test_short_runs_do_not_count_in_the_forecast_of_a_run_that_has_a_checkpoint(tmp_path, monkeypatch):
    run, seconds = _create(tmp_path, "run"), []
    steps = runs.read(run).recipes[0].steps
    monkeypatch.setattr(sizes, "forecast_seconds", lambda size, steps: steps + size.short_steps)
    monkeypatch.setattr(
        forecasting, "announce", lambda command, needs, *others: seconds.append(needs.seconds)
    )
    forecasting.announce_resuming(run, "cpu")
    monkeypatch.setattr(checkpoint, "exists", lambda folder: True)
    monkeypatch.setattr(checkpoint, "count_steps", lambda folder: 2)
    forecasting.announce_resuming(run, "cpu")
    assert seconds == [steps + 1.5 * 3 * 10, steps - 2]


def test_a_suggested_smaller_run_has_smaller_short_runs(tmp_path):
    write_shards(tmp_path / "data", [{"activations": _world_rows()}])
    source = OnDisk(str(tmp_path / "data"))
    large, small = (
        measure_training([recipe("topk", Task(16, units, 3, 2000, 100), start="consensus")], [0], source)
        for units in (24, 12)
    )
    suggested = dict(list_smaller_runs(large))["--units 12"]
    assert (suggested.consensus_units, suggested.short_units) == (small.consensus_units, small.short_units)
    assert suggested.forecast().memory < large.forecast().memory


def test_the_start_by_name_stays_near_the_consensus():
    made = recipe("topk", Task(width=16, units=24, k=3, samples=2000, batch=100), start="consensus")
    usual = recipe("topk", Task(width=16, units=24, k=3, samples=2000, batch=100))
    assert made.start == FromConsensus()
    assert made.k_warmup is None
    assert made.lr.peak == usual.lr.peak / 4
    assert consensus.make_short(made, FromConsensus()).lr.peak == 2 * usual.lr.peak


@pytest.mark.parametrize("wrong", [{"runs": 0}, {"samples": 0}, {"rate": 0.0}, {"same": 1.0}, {"wider": 0.5}])
def test_a_start_from_a_consensus_names_what_is_wrong(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        FromConsensus(**wrong)
