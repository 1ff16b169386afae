"""Every experiment, small: it runs, and what it claims is in its numbers."""

import sys
from dataclasses import replace

import pytest

from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments import EXPERIMENTS, Options
from osae.experiments.tuned import grid, record, tuned
from osae.experiments.variations import ablations, unscheduled, zipf_recipes
from osae.recipes import WORLD_RECIPES, Task
from osae.report import write_report

TASK = Task(80, 100, 5, samples=3_000_000)


def run(name, tmp_path, **choices):
    options = replace(Options(tmp_path, seeds=2, quick=True, jobs=1), **choices)
    seen = []
    results = EXPERIMENTS[name](options, lambda done, total, text: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    write_report({"schema": 1, "experiment": name, **results}, tmp_path)
    return results


def test_pca_world_gives_principal_directions_in_order(tmp_path):
    results = run("pca", tmp_path)
    ordered, plain = results["rows"]
    assert ordered["least_cosine"]["low"] >= 0.99
    assert plain["least_cosine"]["mean"] < 0.9
    assert ordered["mse"]["mean"] == pytest.approx(ordered["least_possible_mse"]["mean"], rel=0.02)


def test_order_is_by_energy_where_frequency_disagrees(tmp_path):
    results = run("energy", tmp_path)
    rows = {row["method"]: row for row in results["rows"]}
    for method in ("osae", "osae-paper"):
        assert (
            rows[method]["orderedness_energy"]["mean"] > 0.5
        )  # short trainings: a seed may miss an atom or two
        assert rows[method]["orderedness_frequency"]["mean"] < 0


@pytest.fixture
def short(monkeypatch):
    """Trainings too short to learn much, where only what is made of them is looked at."""
    monkeypatch.setattr(sys.modules["osae.experiments.toy"], "QUICK_SAMPLES_PER_UNIT", 400)


@pytest.mark.usefixtures("short")
def test_sizes_and_ablations_run(tmp_path):
    results = run("sizes", tmp_path / "sizes", world={"width": 12, "samples": 2000}, methods=("topk", "osae"))
    assert [section["world"]["units"] for section in results["sections"]] == [10, 30, 50]
    small = {"width": 12, "units": 10, "active": 2, "samples": 2000}
    results = run("ablate", tmp_path / "ablate", world=small)
    assert {"osae", "no sorting", "unit sweeping", "prefix uniform"} <= {r["method"] for r in results["rows"]}
    results = run("schedules", tmp_path / "schedules", world=small)
    assert [r["method"] for r in results["rows"]] == ["osae-paper", "no unit sweeping", "no warm-up of k"]
    assert not results["claims"]  # two seeds, and in haste


@pytest.mark.usefixtures("short")
def test_tuning_gives_every_method_as_many_trials_and_keeps_them(tmp_path):
    assert len({len(grid(name)) for name in WORLD_RECIPES}) == 1
    small = {"width": 12, "units": 10, "active": 2, "samples": 2000}
    results = run("tuning", tmp_path, world=small, methods=("vanilla", "topk"))
    assert len(results["rows"]) == 2 * len(grid("topk"))
    assert (tmp_path / "tuned.json").exists()


def test_shipped_trials_cover_every_recipe_and_the_chosen_one_is_the_best():
    shipped = record()
    for name in WORLD_RECIPES:
        trials = [trial for trial in shipped["trials"] if trial["method"] == name]
        assert len(trials) == len(grid(name))
        sparse = [trial for trial in trials if trial["l0"] <= 5.5]
        best = min(sparse, key=lambda trial: trial["mse"])
        assert shipped["chosen"][name] == best["changes"]
        assert tuned(name, TASK).name == name


def test_zipf_recipes_follow_the_appendix():
    made = {r.name: r for r in zipf_recipes(SparseWorld(16, 32, 3, zipf=1.5, samples=50_000), 30_000)}
    ours = ("osae", "topk-our-settings")
    assert all(r.steps == (10_000 if name in ours else 30_000) for name, r in made.items())
    assert made["osae-paper"].prefix.alpha == 1.5
    assert len(made["matryoshka-fixed"].prefix.ends) == 8
    assert made["matryoshka-random"].prefix.count == 4
    assert made["vanilla"].sae.sparsifier.l1 == 0.01
    assert made["topk"].lr.peak == 1e-4


MADE = (ablations(TASK), unscheduled(TASK))


def test_ablations_change_one_choice_each():
    neighbours = [(flat(to_json(base)), flat(to_json(r))) for base, *rest in MADE for r in rest]
    assert len(neighbours) == 16
    for base, other in neighbours:
        changed = {
            path.rsplit(".", 1)[0] for path in base.keys() | other.keys() if base.get(path) != other.get(path)
        }
        changed = {
            path.split(".")[0] if not path.startswith("sae.") else path.split(".")[1] for path in changed
        }
        allowed = (
            {"sweep", "resort"} if "no sorting" in other["name"] and "sweeping" in other["name"] else None
        )
        assert len(changed - {"name"}) == (2 if allowed else 1), other["name"]


def flat(data, path="") -> dict:
    """JSON as a dictionary of paths."""
    if not isinstance(data, dict):
        return {path.strip("."): data}
    return {key: value for name, item in data.items() for key, value in flat(item, f"{path}.{name}").items()}
