"""Every experiment on worlds, small: it runs, and what it claims is in its numbers."""

import json
from dataclasses import replace

import pytest

from osae import results
from osae.config import to_json
from osae.data.worlds import SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments.methods import SORTED_BY_ENERGY, SORTED_BY_GAIN, TABLE_METHODS
from osae.experiments.worlds import training
from osae.experiments.worlds.ablate import ablations
from osae.experiments.worlds.figures import draw_sweep
from osae.experiments.worlds.measuring import SHIFTS, measure_chance
from osae.experiments.worlds.schedules import drop_schedules
from osae.experiments.worlds.trials import list_trials, read_record, tuned_recipe
from osae.experiments.worlds.zipf import zipf_recipes
from osae.model import SAE
from osae.recipes import WORLD_RECIPES, Task, world_recipe
from osae.report import figures as report_figures
from osae.report import write_experiment
from osae.results.experiment import MethodRow, Section

TASK = Task(80, 100, 5, samples=3_000_000)
SMALL = {"world_width": 12, "world_units": 10, "world_active": 2, "world_samples": 2000}


def run(name, out, **choices):
    experiment = EXPERIMENTS[name]
    seen = []
    result = experiment.run(
        experiment.options(out=out, quick=True, jobs=1, **choices),
        lambda done, total, text: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    assert result.experiment == name
    write_experiment(result, out)
    assert results.read(out / "results.json").to_json() == result.to_json()
    for figure in result.figures:
        assert (out / figure.file).stat().st_size > 5000
    return result


def test_pca_world_gives_principal_directions_in_order(tmp_path):
    result = run("pca", tmp_path)
    assert result.chance["least_cosine"] < 0.05 < result.chance["cosine_in_place"] < 0.3  # 20 dimensions
    ordered, plain = result.rows
    assert [figure.file for figure in result.figures] == ["figures/directions.png"]
    assert ordered.interval("least_cosine").ends()[0] >= 0.99
    assert plain.mean("least_cosine") < 0.9
    assert ordered.mean("mse") == pytest.approx(ordered.mean("least_possible_mse"), rel=0.02)


def test_activations_have_a_chance_level_in_stability_and_in_order():
    """Once it is shifted against itself, even the truth agrees far less with itself, and not in order."""
    world = SparseWorld(16, 20, 2, zipf=0.0, samples=4000)
    recipe = world_recipe("topk", Task(16, 20, 2, samples=4000))
    truth = SAE(recipe.sae, atoms=world.dictionary())
    levels = measure_chance([training.Group("truth", recipe, {0: truth, 1: truth})], world)
    assert levels["stream_stability"] < 0.1
    assert abs(levels["stream_orderedness"]) < 3 * levels["orderedness_std"] / SHIFTS**0.5
    assert levels["orderedness_std"] == pytest.approx(19**-0.5)


def test_order_is_by_energy_where_frequency_disagrees(tmp_path):
    result = run("energy", tmp_path)
    rows = result.by_method()
    assert [figure.file for figure in result.figures] == ["figures/orders.png"]
    for method in ("osae", "osae-paper"):
        assert (
            rows[method].mean("orderedness_energy") > 0.5
        )  # after short training a seed may miss some atoms
        assert rows[method].mean("orderedness_frequency") < 0


def test_the_zipf_figure_has_at_most_six_lines_none_like_another(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(report_figures, "sweep", lambda sections, *more: drawn.update(sections=sections))
    names = [recipe.name for recipe in zipf_recipes(SparseWorld(16, 32, 3), 10)]
    names += [*SORTED_BY_ENERGY.values(), *SORTED_BY_GAIN.values()]
    draw_sweep([Section("", tuple(MethodRow(name) for name in names), x=1.0)], tmp_path)
    (section,) = drawn["sections"]
    shown = [row.method for row in section.rows]
    looks = report_figures.looks(shown).values()
    assert 4 <= len(shown) <= 6
    assert len({look.color for look in looks}) == len(shown)


@pytest.fixture
def short(monkeypatch):
    """Training runs too short to learn much, where only what is made of them is looked at."""
    monkeypatch.setattr(training, "QUICK_SAMPLES_PER_UNIT", 400)


@pytest.mark.usefixtures("short")
def test_table_1_has_a_row_per_method_and_topk_sorted_afterwards(tmp_path):
    result = run("toy", tmp_path, methods=("topk", "osae"), **SMALL)
    rows = result.by_method()
    assert list(rows) == ["topk", "topk-sorted", "topk-sorted-by-gain", "osae"]
    assert rows["topk"].measures["seconds"]
    assert rows["topk-sorted"].measures["seconds"] is None
    for name in ("topk-sorted", "topk-sorted-by-gain"):  # sorting changes the order and nothing else
        assert rows[name].mean("stability_truth") == pytest.approx(rows["topk"].mean("stability_truth"))
        assert rows[name].mean("orderedness_truth") != rows["topk"].mean("orderedness_truth")
    assert not any(row.paper for row in result.rows)  # another world than the paper's
    assert not result.claims  # two seeds, and in haste


@pytest.mark.usefixtures("short")
def test_sizes_run(tmp_path):
    result = run("sizes", tmp_path / "sizes", world_width=12, world_samples=2000, methods=("topk", "osae"))
    assert [section.world["units"] for section in result.sections] == [10, 30, 50]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_ablations_and_schedules_run(tmp_path):
    result = run("ablate", tmp_path / "ablate", **SMALL)
    assert {"osae", "no sorting", "unit sweeping", "prefix uniform"} <= set(result.by_method())
    result = run("schedules", tmp_path / "schedules", **SMALL)
    described = ["osae-swept", "osae-swept-restarting", "osae-swept, no unit sweeping"]
    soon = [f"{name}, k within the burn-in" for name in described]
    names = ["osae-paper", "no unit sweeping", "no warm-up of k", *described, *soon]
    assert list(result.by_method()) == names


@pytest.mark.usefixtures("short")
def test_tuning_gives_every_method_as_many_trials_and_keeps_them(tmp_path):
    assert len({len(list_trials(name)) for name in WORLD_RECIPES}) == 1
    result = run("tuning", tmp_path, methods=("vanilla", "topk"), **SMALL)
    assert len(result.rows) == 2 * len(list_trials("topk"))
    record = json.loads((tmp_path / "tuned.json").read_text())
    assert record.keys() == read_record().keys() | {"samples"}
    assert [trial["mse"] for trial in record["trials"]] == [row.mean("mse") for row in result.rows]


def test_shipped_trials_cover_every_recipe_and_the_chosen_one_is_the_best():
    shipped = read_record()
    for name in TABLE_METHODS:
        trials = [trial for trial in shipped["trials"] if trial["method"] == name]
        assert len(trials) == len(list_trials(name))
        sparse = [trial for trial in trials if trial["l0"] <= 5.5]
        best = min(sparse, key=lambda trial: trial["mse"])
        assert shipped["chosen"][name] == best["changes"]
        assert tuned_recipe(name, TASK).name == name


def test_zipf_recipes_follow_the_appendix():
    made = {r.name: r for r in zipf_recipes(SparseWorld(16, 32, 3, zipf=1.5, samples=50_000), 30_000)}
    ours = ("osae", "topk-our-settings")
    assert all(r.steps == (10_000 if name in ours else 30_000) for name, r in made.items())
    assert made["osae-paper"].prefix.alpha == 1.5
    assert len(made["matryoshka-fixed"].prefix.ends) == 8
    assert made["matryoshka-random"].prefix.count == 4
    assert made["vanilla"].sae.sparsifier.l1 == 0.01
    assert made["topk"].lr.peak == 1e-4


def test_unit_sweeping_is_also_tried_with_a_final_k():
    made = {recipe.name: recipe for recipe in drop_schedules(TASK)}
    for name in ("osae-swept", "osae-swept-restarting", "osae-swept, no unit sweeping"):
        soon = made[f"{name}, k within the burn-in"]
        assert replace(soon, name=name, k_warmup=made[name].k_warmup) == made[name]
        assert soon.k_warmup.share == (soon.sweep.burn_in if soon.sweep else 0.1)


def test_variants_change_one_choice_each():
    neighbours = [
        (flat(to_json(base)), flat(to_json(r)))
        for base, *rest in (ablations(TASK), drop_schedules(TASK)[:3])
        for r in rest
    ]
    assert len(neighbours) == 16
    for base, other in neighbours:
        changed = {
            path.rsplit(".", 1)[0] for path in base.keys() | other.keys() if base.get(path) != other.get(path)
        }
        changed = {
            path.split(".")[0] if not path.startswith("sae.") else path.split(".")[1] for path in changed
        }
        both = "no sorting" in other["name"] and "sweeping" in other["name"]
        assert len(changed - {"name"}) == (2 if both else 1), other["name"]


def flat(data, path="") -> dict:
    """JSON as a dictionary of paths."""
    if not isinstance(data, dict):
        return {path.strip("."): data}
    return {key: value for name, item in data.items() for key, value in flat(item, f"{path}.{name}").items()}
