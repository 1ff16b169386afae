"""Every experiment has one shape, and is known without torch."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from osae.data.worlds import ForestWorld, PCAWorld, SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments import methods as names
from osae.experiments.worlds.options import FOREST_FIELDS, FOREST_SIZES, AnyWorldOptions, WorldOptions
from osae.options import list_options
from osae.recipes import RECIPES, STARTS, WORLD_RECIPES

OUT = Path("runs")


def test_experiments_and_their_options_are_known_without_torch():
    words = (
        "import sys, osae.experiments as e; from pathlib import Path\n"
        "for one in e.EXPERIMENTS.values(): one.options(out=Path('runs'))\n"
        "print([name for name in ('torch', 'matplotlib', 'numba', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_of_methods_and_starts_are_those_of_the_recipes():
    assert tuple(WORLD_RECIPES) == names.WORLD_METHODS
    assert tuple(RECIPES) == names.ACTIVATION_METHODS
    assert tuple(STARTS) == names.STARTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_declares_what_it_uses(name):
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    declared = [option.name for option in list_options(experiment.options)]
    assert declared == [field.name for field in fields(experiment.options)]  # all of them have a help text
    assert {"out", "quick", "jobs"} <= set(declared)
    assert ("seeds" in declared) == (name != "tuning")  # all of its trials have one seed


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pca", {"methods": ("topk",)}),
        ("energy", {"world_units": 30}),
        ("sizes", {"world_active": 3}),
        ("zipf", {"world_zipf": 1.0}),
        ("toy", {"exponents": (1.0,)}),
        ("tuning", {"seeds": 3}),
        ("lm", {"world_width": 16}),
    ],
)
def test_options_without_a_use_are_not_there(name, options):
    with pytest.raises(TypeError, match="unexpected keyword"):
        EXPERIMENTS[name].options(out=OUT, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("toy", {"methods": ("topk", "topk")}, "--methods topk,topk: give topk once"),
        ("toy", {"methods": ("tokp",)}, "--methods tokp: did you mean topk"),
        ("toy", {"seeds": 0}, "--seeds 0: give a whole number of at least 1"),
        ("toy", {"world_zipf": float("nan")}, "--world-zipf nan: give a finite number"),
        ("toy", {"world_width": 0}, "--world-width 0"),
        ("zipf", {"exponents": (1.0, -1.0)}, "--exponents -1: give a number of at least 0"),
        ("zipf", {"exponents": (1.0, 1.0)}, "give 1.0 once"),
    ],
)
def test_values_are_checked_where_they_are_declared(name, options, message):
    with pytest.raises(ValueError, match=message):
        EXPERIMENTS[name].options(out=OUT, **options)


WORLDS = {
    "toy": SparseWorld(),
    "sizes": SparseWorld(),
    "zipf": SparseWorld(width=16, units=32, active=3, samples=50_000),
    "pca": PCAWorld(),
    "energy": SparseWorld(40, 20, 2, zipf=1.0, samples=50_000),
    "ablate": SparseWorld(),
    "schedules": SparseWorld(),
    "tuning": SparseWorld(),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_help_text_shows_the_worlds_defaults(name):
    shown = {o.name: o.shown for o in list_options(EXPERIMENTS[name].options) if o.group == "world"}
    assert shown == {key: f"{getattr(WORLDS[name], key.removeprefix('world_')):.12g}" for key in shown}


def test_options_change_the_fields_of_the_world():
    assert WorldOptions().world() == SparseWorld()
    chosen = WorldOptions(world_units=3, world_active=2, world_zipf=0.5, world_seed=7)
    assert chosen.world() == SparseWorld(units=3, active=2, zipf=0.5, seed=7)


def test_a_forest_is_asked_for_by_name():
    sizes = {**FOREST_SIZES, **{field: default for field, (_, default) in FOREST_FIELDS.items()}}
    assert AnyWorldOptions(world_kind="forest").any_world() == ForestWorld() == ForestWorld(**sizes)
    chosen = AnyWorldOptions(world_kind="forest", world_units=30, world_roots=2, world_noise=0.5)
    assert chosen.any_world() == ForestWorld(units=30, roots=2, noise=0.5)
    assert AnyWorldOptions().any_world() == SparseWorld()
    with pytest.raises(ValueError, match="--world-roots applies to forests only: add --world-kind forest"):
        AnyWorldOptions(world_roots=2)
