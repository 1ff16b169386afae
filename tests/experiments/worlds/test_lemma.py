"""The counterexample to the lemma, the worlds where the truth stays, and verdicts from the numbers."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import ROOT
from osae import results
from osae.config import from_json
from osae.data.worlds import SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments.claims import FAILS, HOLDS, PARTLY, judge_result
from osae.experiments.worlds import hard
from osae.experiments.worlds.identifiability import LEMMA_WORLD, WORLDS, world_identifiability
from osae.experiments.worlds.lemma import WEIGHTS, descend_from_truth, draw_kind
from osae.experiments.worlds.theory_claims import (
    FIXED_CODES,
    IDENTIFIABILITY,
    LEMMA,
    THEOREM,
    Kind,
    judge_energy,
    judge_frequency,
    judge_gain,
    judge_lemma,
    judge_lemma_with_known_atoms,
    judge_uncorrelated,
)
from osae.metrics import unique_sparsity
from osae.report import write_experiment
from osae.results.experiment import MethodRow

KEPT = ROOT / "evidence"


@pytest.mark.parametrize("p", WEIGHTS)
def test_with_gaussian_atoms_the_nested_loss_falls_below_the_truth_while_the_full_loss_rises(p):
    found = descend_from_truth(Kind.GAUSSIAN, WEIGHTS[p], seed=0).measures
    assert found["code_gradient"] > 0.01
    assert found["nested_loss_free"] < found["nested_loss_codes"] < found["nested_loss_truth"] - 1e-3
    assert found["full_loss_codes"] > 1e-3
    assert found["full_loss_free"] > 1e-3
    assert found["leaves_truth"] == 1
    assert found["stability_truth"] < 0.99


def test_with_orthonormal_atoms_the_true_codes_are_best_but_the_true_atoms_are_not():
    found = descend_from_truth(Kind.ORTHONORMAL, WEIGHTS["uniform p"], seed=0).measures
    assert found["code_gradient"] == pytest.approx(0, abs=1e-12)
    assert found["full_loss_codes"] == pytest.approx(0, abs=1e-12)
    assert found["atom_gradient"] > 0.01
    assert found["nested_loss_free"] < found["nested_loss_truth"] - 1e-4
    assert found["full_loss_free"] > 1e-4


@pytest.mark.parametrize("kind", [Kind.ONE_AT_A_TIME, Kind.SIGNED])
def test_with_orthonormal_atoms_and_uncorrelated_codes_the_truth_stays(kind):
    truth, _ = draw_kind(kind, 0)
    moments = truth.codes.T @ truth.codes
    assert np.abs(moments - np.diag(np.diag(moments))).max() < 1e-10
    found = descend_from_truth(kind, WEIGHTS["geometric p"], seed=0)
    assert found.measures["code_gradient"] == pytest.approx(0, abs=1e-12)
    assert found.measures["atom_gradient"] == pytest.approx(0, abs=1e-12)
    assert found.measures["full_loss_free"] == pytest.approx(0, abs=1e-12)
    assert found.measures["leaves_truth"] == 0
    assert found.measures["stability_truth"] == pytest.approx(1)
    assert all(step["nested_change"] == pytest.approx(0, abs=1e-12) for step in found.path)


@pytest.mark.parametrize("kind", [Kind.GAUSSIAN, Kind.ORTHONORMAL])
def test_the_counterexamples_satisfy_the_lemmas_assumptions(kind):
    """Unit-norm atoms with a spark above 2m, and nonnegative codes of m units."""
    (atoms, codes), signed = draw_kind(kind, 0)
    assert not signed
    assert (codes >= 0).all()
    assert ((codes != 0).sum(1) == 2).all()
    np.testing.assert_allclose(np.linalg.norm(atoms, axis=1), 1)
    sets = np.array(list(itertools.combinations(range(14), 4)))
    assert np.linalg.svd(atoms[sets], compute_uv=False)[:, -1].min() > 1e-4


def test_the_experiment_writes_tables_a_figure_and_verdicts_that_follow_from_its_file(tmp_path):
    experiment, seen = EXPERIMENTS["lemma"], []
    options = experiment.options(out=tmp_path, seeds=1, jobs=1)
    result = experiment.run(options, lambda done, total, text: seen.append((done, total)))
    assert seen[-1] == (17, 17)
    write_experiment(result, tmp_path)
    kept = results.read(tmp_path / "results.json")
    assert kept.to_json() == result.to_json()
    assert judge_result(kept) == result.claims
    assert [claim.verdict for claim in result.claims] == [FAILS, PARTLY, HOLDS, PARTLY, HOLDS, HOLDS]
    assert [section.title for section in result.sections] == [LEMMA, THEOREM, FIXED_CODES, IDENTIFIABILITY]
    assert (tmp_path / result.figures[0].file).stat().st_size > 5000
    assert "| World | m | Coherence |" in (tmp_path / "table.md").read_text()


# --- verdicts ---------------------------------------------------------------------------------------


def lemma_rows(**measures):
    """All kinds of worlds, all alike."""
    base = {"nested_loss_truth": 0.4, "nested_loss_codes": 0.4, "nested_loss_free": 0.4}
    base |= {"full_loss_codes": 0.0, "full_loss_free": 0.0, "leaves_truth": 0.0}
    return [MethodRow(f"{kind}, uniform p", measures={**base, **measures}) for kind in Kind]


def test_the_lemma_holds_or_fails_with_its_minimisers():
    assert judge_lemma(lemma_rows()).verdict == HOLDS
    assert judge_lemma(lemma_rows(leaves_truth=1.0)).verdict == FAILS
    assert judge_lemma_with_known_atoms(lemma_rows()).verdict == HOLDS
    left = judge_lemma_with_known_atoms(lemma_rows(full_loss_codes=0.01))
    assert left.verdict == FAILS
    assert "Gaussian, uniform p: nested 0.4000 to 0.4000, full 0 to 0.0100" in left.found
    assert "one at a time" not in left.found
    assert judge_uncorrelated(lemma_rows()).verdict == HOLDS
    assert judge_uncorrelated(lemma_rows(leaves_truth=0.2)).verdict == FAILS


def order_row(name, **measures):
    base = {"best_order_frequency": 1.0, "best_order_energy": 1.0, "full_loss_codes": 0.0}
    return MethodRow(name, measures={**base, "tied_orders": 1.0, "swaps": 0.0, **measures})


def test_an_order_is_that_of_minimisers_if_it_alone_is_best_everywhere_with_the_true_codes():
    names = "orthonormal, equally strong", "Gaussian, d = 4, equally strong"
    assert judge_frequency([order_row(name) for name in names]).verdict == HOLDS
    assert "100% (as are 119 others), 0." in judge_frequency([order_row(names[0], tied_orders=120.0)]).found
    for worse in ({"best_order_frequency": 0.8}, {"full_loss_codes": 0.1}, {"tied_orders": 120.0}):
        assert judge_frequency([order_row(names[0]), order_row(names[1], **worse)]).verdict == PARTLY
        assert judge_frequency([order_row(name, **worse) for name in names]).verdict == FAILS
    assert judge_energy([order_row(names[0]), order_row(names[1], best_order_energy=0.0)]).verdict == HOLDS
    assert judge_energy([order_row(names[0], best_order_energy=0.0)]).verdict == FAILS
    assert judge_gain([order_row(name) for name in names]).verdict == HOLDS
    assert judge_gain([order_row(names[0], swaps=1.0)]).verdict == FAILS


# --- identifiability of the worlds ------------------------------------------------------------------


def kept_worlds(name):
    """The worlds of a kept experiment."""
    data = json.loads((KEPT / name / "results.json").read_text())
    sections = [section["world"] for section in data.get("sections", ()) if section["world"]]
    return [from_json(world) for world in sections or [data["world"]]]


KEPT_WORLDS = ("toy", "budgets", "sizes", "zipf", "pca", "energy", "ablate", "schedules")


@pytest.mark.parametrize("experiment", KEPT_WORLDS)
def test_every_world_of_the_experiments_is_in_the_table(experiment):
    listed = [world for name, world in WORLDS.items() if experiment in name]
    for world in kept_worlds(experiment):
        if experiment == "zipf":
            np.testing.assert_array_equal(world.dictionary(), replace(world, zipf=3.0).dictionary())
            world = replace(world, zipf=listed[0].zipf)
        assert world in listed


@pytest.mark.parametrize("name", hard.WORLDS)
def test_every_hard_world_has_the_atoms_of_one_in_the_table(name):
    atoms = hard.WORLDS[name].dictionary()
    listed = [world.dictionary() for title, world in WORLDS.items() if title.startswith("hard")]
    assert any(one.shape == atoms.shape and (one == atoms).all() for one in listed)


@pytest.mark.parametrize("world", [SparseWorld(units=10, active=2), LEMMA_WORLD])
def test_a_world_is_measured_at_its_own_sparsity(world):
    found = world_identifiability(world)
    assert found.active == world.active
    assert found.coherence_limit == pytest.approx(1 / 3)
    assert (found.coherence < found.coherence_limit) == (unique_sparsity(world.dictionary()) >= world.active)
    assert found.general_spark == min(world.units, world.width) + 1 > found.spark_limit == 4
