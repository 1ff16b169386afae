"""`osae.fit`: what it takes, what it fills in, what it shows, and what it refuses."""

import io
import re
import sys

import jaxtyping
import numpy as np
import pytest
import torch

import osae
from osae.config import alter
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from osae.recipes import RECIPES, Task, recipe, world_recipe
from osae.training.simple import fit

WORLD = SparseWorld(width=12, units=16, active=2, samples=1600)
SMALL = {"units": 16, "k": 2, "samples": 3200}


@pytest.fixture(scope="module")
def rows():
    return WORLD.draw().x


@pytest.fixture
def unchecked_types(monkeypatch):
    """Switch run-time type checks off, so that a test sees the error that a user would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "given",
    [
        lambda x, folder: x.numpy(),
        lambda x, folder: read_only(x.numpy().copy()),
        lambda x, folder: np.asfortranarray(x.numpy().astype(">f8")),
        lambda x, folder: x.double(),
        lambda x, folder: x.clone().requires_grad_(),
        lambda x, folder: x.tolist(),
        lambda x, folder: write_shards(folder / "acts", [x], rows_per_shard=500),
        lambda x, folder: str(write_shards(folder / "acts", [x], rows_per_shard=500).path),
        lambda x, folder: (np.save(folder / "x.npy", x.numpy()), folder / "x.npy")[1],
    ],
    ids=["array", "read-only", "big-endian", "double", "with-grad", "list", "shards", "path", "npy"],
)
def test_any_form_of_the_same_rows_gives_the_same_sae(given, rows, tmp_path):
    expected = fit("topk", rows, **SMALL)
    found = fit("topk", given(rows, tmp_path), **SMALL)
    assert torch.equal(found.decoder, expected.decoder)
    assert torch.equal(found.encoder, expected.encoder)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_named(name, rows):
    sae = osae.fit(name, rows, units=16, k=2, samples=3200)
    assert (sae.config.width, sae.config.units) == (12, 16)


def test_a_name_and_the_recipe_it_stands_for_give_the_same_sae(rows):
    task = Task(12, 16, 2, samples=3200, batch=200)
    named = fit("osae", rows, units=16, k=2, samples=3200, batch=200, seed=5)
    assert torch.equal(named.decoder, fit(recipe("osae", task), rows, seed=5).decoder)


def test_the_defaults_are_4000_steps_of_an_eighth_of_the_rows_or_512(monkeypatch, rows):
    seen = []
    monkeypatch.setattr("osae.training.simple.train", lambda members, source, **rest: seen.append(members))
    fit("topk", rows, units=16, k=2)
    fit("topk", torch.zeros(40_000, 4) + torch.arange(4), units=16, k=2)
    fit("topk", torch.randn(3, 4), units=16, k=2)
    recipes = [members[0].recipe for members in seen]
    assert [made.batch for made in recipes] == [200, 512, 1]
    assert [made.steps for made in recipes] == [4000, 4000, 4000]


def test_one_pass_is_the_least(monkeypatch):
    seen = []
    monkeypatch.setattr("osae.training.simple.train", lambda members, source, **rest: seen.append(members))
    monkeypatch.setattr("osae.training.simple.STEPS", 2)
    fit("topk", torch.randn(1000, 4), units=16, k=2)
    assert seen[0][0].recipe.samples == 1000


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(rows, monkeypatch, capsys):
    fit("topk", rows, **SMALL, progress=False)
    assert capsys.readouterr() == ("", "")
    fit("topk", rows, **SMALL)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"(training topk-seed0: \d+/16 loss [\d.e-]+.*\n)+", err)
    assert "16/16" in err
    for wanted in (True, False):
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        fit("topk", rows, **SMALL, progress=wanted)
        assert ("training topk-seed0" in screen.getvalue()) == wanted
        assert ("loss" in screen.getvalue()) == wanted


@pytest.mark.parametrize(
    ("x", "sizes", "words"),
    [
        (torch.randn(50, 6), {}, "units=None, k=None: give the number of units .*units=48, k=1"),
        (torch.randn(50, 6), {"units": 9}, "units=9, k=None"),
        (torch.randn(50, 6), {"units": 9, "k": 10}, "k=10 active units of 9: give 1 to 9"),
        (torch.randn(50, 6), {"units": 9, "k": 0}, "k=0: give a whole number of at least 1"),
        (torch.randn(50, 6), {"units": 9.5, "k": 1}, "units=9.5: give a whole number"),
        (torch.randn(50, 6), {"units": 9, "k": 1, "samples": 0}, "samples=0: give"),
        (torch.randn(50, 6), {"units": 9, "k": 1, "batch": 51}, "batch=51 exceeds the 50 available rows"),
        (torch.randn(50, 6), {"units": 9, "k": 1, "samples": 3, "batch": 4}, "samples=3, batch=4"),
        (torch.randn(6), {"units": 9, "k": 1}, r"x has shape \(6,\): give a matrix"),
        (torch.randn(0, 6), {"units": 9, "k": 1}, r"x has shape \(0, 6\)"),
        (np.full((50, 6), np.nan), {"units": 9, "k": 1}, "row 0 of x contains NaN or infinity"),
        ([["a", "b"]], {"units": 9, "k": 1}, "x, a list, is not a numeric matrix"),
        (torch.randn(50, 6), {"units": 9, "k": 1, "seed": -1}, "seed=-1: give a whole number of at least 0"),
        (torch.randn(50, 6), {"units": 9, "k": 1, "seed": "a"}, "seed='a': give a whole number"),
        ("nowhere", {"units": 9, "k": 1}, "nowhere: there is no such file or folder"),
        (
            torch.randn(50, 6),
            {"units": 9, "k": 1, "device": "toaster"},
            "device='toaster' cannot be used",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_what_cannot_be_fitted_is_refused_with_a_remedy(x, sizes, words):
    with pytest.raises(ValueError, match=words) as refused:
        fit("topk", x, **sizes)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("unchecked_types")
def test_sizes_and_seed_may_be_numbers_of_numpy(rows):
    sizes = {name: np.int64(value) for name, value in SMALL.items()}
    found = fit("topk", rows, **sizes, seed=np.int64(5))
    assert torch.equal(found.decoder, fit("topk", rows, **SMALL, seed=5).decoder)
    assert type(found.config.units) is int


def test_unknown_recipes_are_refused(rows):
    with pytest.raises(ValueError, match=r"no recipe 'osea': did you mean osae\? Choose from vanilla, topk"):
        fit("osea", rows, units=16, k=2)
    with pytest.raises(ValueError, match="no recipe 'toppk': did you mean topk"):
        fit("toppk", rows, **SMALL)


def test_what_is_no_recipe_is_refused(rows, unchecked_shapes):
    with pytest.raises(ValueError, match="recipe is of type type: give the name of a recipe or a Recipe"):
        fit(Task, rows, units=16, k=2)  # pyright: ignore[reportArgumentType]


def test_a_recipe_brings_its_own_sizes(rows):
    made = world_recipe("topk", Task(12, 16, 2, samples=400, batch=100))
    with pytest.raises(ValueError, match="units=16, batch=5 cannot be combined with a Recipe"):
        fit(made, rows, units=16, batch=5)
    with pytest.raises(ValueError, match="x has width 12, but the recipe is for width 13"):
        fit(alter(made, {"sae.width": 13}), rows)
    with pytest.raises(ValueError, match="batch=100 exceeds the 50 available rows"):
        fit(made, rows[:50])


def test_an_sae_carries_its_recipe_and_seed_into_files_and_comparisons(rows, tmp_path):
    saes = [fit("topk", rows, **SMALL, seed=seed, progress=False) for seed in (0, 1)]
    saes.append(fit("osae", rows, **SMALL, progress=False))
    assert [sae.provenance["seed"] for sae in saes] == [0, 1, 0]
    for place, sae in enumerate(saes):
        sae.save(tmp_path / f"{place}")
        osae.convert(sae, tmp_path / f"lens{place}", to="saelens")
    loaded = [osae.SAE.load(tmp_path / f"{place}") for place in range(3)]
    assert [sae.provenance for sae in loaded] == [sae.provenance for sae in saes]
    lens = [tmp_path / f"lens{place}" for place in range(3)]
    for given in (saes, loaded, lens, [tmp_path / f"{place}" for place in range(3)]):
        found = osae.compare(given, chance_draws=0)
        assert [sae.recipe for sae in found.saes] == ["topk", "topk", "osae"]
        assert [(group.recipe, group.pairs) for group in found.groups] == [("topk", 1)]


def test_a_changed_sae_does_not_claim_the_recipe_it_was_trained_with(rows):
    sae = fit("topk", rows, **SMALL, progress=False)
    assert sae.reorder(torch.arange(16).flip(0)).provenance == {}
