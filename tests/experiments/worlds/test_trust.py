"""Reproducibility against the truth, and against the next run."""

from dataclasses import replace

import pytest
import torch

from osae import metrics
from osae.data.worlds import ForestWorld, SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments.worlds import trust
from osae.experiments.worlds.options import TrustTestOptions
from osae.studies.compare import compare


def test_ranking_quality_is_the_share_of_pairs_in_the_right_order():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(5, (60,), generator=generator).double()
    true = torch.rand(60, generator=generator) < 0.4
    ahead = score[true][:, None] - score[~true]
    slow = float(((ahead > 0).double() + 0.5 * (ahead == 0).double()).mean())
    assert metrics.ranking_quality(score, true) == pytest.approx(slow, abs=1e-12)
    assert metrics.ranking_quality(score, torch.ones(60, dtype=torch.bool)) is None


def test_calibration_is_the_weighted_gap_between_what_is_predicted_and_found():
    predicted = torch.tensor([0.125, 0.125, 0.875, 0.875])
    found = metrics.calibration(predicted, torch.tensor([True, False, True, True]))
    assert (found.expected, found.observed, found.units) == ((0.125, 0.875), (0.5, 1.0), (2, 2))
    assert found.error == pytest.approx((0.375 + 0.125) / 2)


def test_features_of_a_forest_are_atoms_and_paths_to_them():
    world = ForestWorld(width=8, units=7, active=1.0, samples=10, roots=1, branching=2, depth=2)
    atoms, parents = world.dictionary(), world.trees().parents
    expected = [*atoms]
    for atom in range(7):
        total, above = atoms[atom].clone(), parents[atom]
        while above >= 0:
            total = total + atoms[above]
            expected.append(total / total.norm())
            above = parents[above]
    features = trust.list_features(world)
    assert len(features) == len(expected) == 7 + 2 + 4 * 2
    nearest = torch.stack(expected) @ features.T
    torch.testing.assert_close(nearest.amax(1), torch.ones(len(expected)))


def run(tmp_path, **options):
    """Return the measures in the first row of every table, for TopK after quick training."""
    return [section.rows[0].measures for section in run_all(tmp_path, **options)]


def run_all(tmp_path, **options):
    """Return every table of the experiment for TopK after quick training."""
    asked = TrustTestOptions(out=tmp_path, quick=True, methods=("topk",), jobs=1, **options)
    result = EXPERIMENTS["trust"].run(asked, lambda *words: None)
    assert (tmp_path / result.figures[0].file).is_file()
    return result.sections


def test_reproducibility_tells_true_units_from_false_ones_on_small_worlds(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "TABLE", SparseWorld(width=32, units=40, active=3, samples=20_000))
    small = {"width": 32, "units": 32, "active": 2.5, "samples": 20_000, "roots": 8}
    monkeypatch.setattr(trust, "FOREST", replace(trust.FOREST, **small))
    monkeypatch.setattr(trust, "QUICK_SHORT", (3000,))
    monkeypatch.setattr(trust, "FOREST_SHORT", (2000,))
    table, forest = run(tmp_path, seeds=4)
    assert 0.4 < table["true_units"].mean < 0.99
    assert table["auc"] > 0.9
    assert forest["auc"] > 0.65
    assert min(table["auc_support"], forest["auc_support"]) > 0.8
    for key in ("found_units", "true_units", "calibration_error"):
        assert set(table[key].values) == {"0", "1", "2", "3"}
        assert table[key].mean == pytest.approx(sum(table[key].values.values()) / 4)


@pytest.mark.slow
def test_reproducibility_tells_true_units_from_false_ones_where_runs_still_err(tmp_path):
    table, forest = run(tmp_path, seeds=6)
    assert table["true_units"].mean < 0.99
    assert table["auc"] >= 0.95
    assert forest["true_units"].mean < 0.99
    assert table["auc_support"] >= 0.95
    assert forest["auc_support"] >= 0.9


def test_activations_have_no_truth_but_a_next_run(tmp_path):
    import numpy as np

    world = SparseWorld(width=16, units=12, active=2, samples=4000)
    np.save(tmp_path / "x.npy", world.draw("train").x.numpy())
    asked = {"data": tmp_path / "x.npy", "units": 12, "k": 2, "tokens": 20_000}
    (table, curve) = run_all(tmp_path / "out", seeds=4, **asked)
    measures = table.rows[0].measures
    assert curve.head == "Expected share"
    numbers = [tuple(row.measures.values()) for row in curve.rows]
    assert sum(units for *_, units in numbers) == 4 * 3 * 12  # in each turn, the units of the other runs
    assert numbers[-1][1] == pytest.approx(measures["found_next_always"])
    assert "auc" not in measures
    assert 0 <= measures["calibration_error"].mean < 0.3
    assert 0 < measures["found_units"].mean <= 1


@pytest.mark.parametrize("chosen", [("table",), ("trees",), ("table", "trees")])
def test_worlds_that_are_not_asked_for_are_left_out(chosen, tmp_path):
    options = TrustTestOptions(out=tmp_path, quick=True, world_kinds=chosen)
    titles = {"table": "Table 1's world", "trees": "Trees of correlated atoms"}
    found = [setting.title.partition(",")[0] for setting in trust._worlds(options, 2)]
    assert found == [titles[name] for name in chosen]


def test_a_run_that_is_predicted_takes_no_part_in_the_prediction():
    rows = torch.eye(24)
    saes = [rows.clone() for _ in range(4)]
    saes[0][:6] = rows[:6] + 2 * rows[12:18]  # the first run lacks what all others have
    units = compare(saes, chance_draws=0).units
    assert units is not None
    turns = trust.predict_runs(units)
    assert [len(told) for told, _ in turns] == [3 * 24] * 4
    told, seen = turns[0]
    assert torch.equal(seen, torch.cat([torch.arange(24) >= 6] * 3))
    assert len(told.unique()) == 1  # to the others, all units are equal
    assert len(turns[1][0].unique()) > 1
    fourth = trust._predict_fourth(units)
    held_out = []
    for last in range(4):
        chosen = [saes[place] for place in range(4) if place != last]
        both = compare(chosen, chance_draws=0).units
        counts = torch.cat([2 * torch.tensor(sae.measures["reproducibility"]) for sae in both.saes]).long()
        found = turns[last][1]
        held_out.append(metrics.calibration(metrics.expected_share(counts, 2), found).error)
    assert fourth["calibration_error_three"] == pytest.approx(sum(held_out) / 4)
    assert fourth["calibration_error_worst"] == pytest.approx(max(held_out))
    assert fourth["found_fourth"] == pytest.approx((54 / 72 + 1 + 1 + 1) / 4)
    assert trust._predict_fourth(compare(saes[:3], chance_draws=0).units) == {}


def test_options_that_a_setting_would_ignore_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--units applies to activations only: add --data"):
        TrustTestOptions(out=tmp_path, units=64)
    with pytest.raises(ValueError, match="--world-kinds applies to synthetic worlds only"):
        TrustTestOptions(out=tmp_path, data=tmp_path, world_kinds=("trees",))
    with pytest.raises(ValueError, match="--world-seed applies to synthetic worlds only"):
        TrustTestOptions(out=tmp_path, data=tmp_path, world_seed=1)
