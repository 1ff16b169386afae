"""Forests: rates, parents, exclusive siblings and correlation are as asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from osae.config import from_json, to_json
from osae.data.source import open_source
from osae.data.worlds import ForestWorld

FLAT = ForestWorld(8, 40, 3.0, samples=40_000)
TREES = ForestWorld(8, 84, 3.0, samples=60_000, roots=4)
CORRELATED = replace(TREES, correlation=0.6, topics=2, bias=2.0, noise=0.1)
WORLDS = pytest.mark.parametrize("world", [FLAT, TREES, CORRELATED], ids=["flat", "trees", "correlated"])


def find_firing(world: ForestWorld) -> torch.Tensor:
    return world.draw().code.dense(world.units) > 0


@WORLDS
def test_every_atom_fires_as_often_as_its_rate(world):
    rates = torch.from_numpy(world.trees().rates)
    share = find_firing(world).double().mean(0)
    errors = (share - rates).abs() / (rates * (1 - rates) / world.samples).sqrt()
    # a shared number makes samples no less independent: the error of a mean is that of coin tosses
    assert float(errors.max()) < 5
    assert float(rates.sum()) == pytest.approx(world.active, rel=1e-6)
    assert bool((rates[:-1] >= rates[1:]).all())


def test_rates_without_trees_follow_zipfs_law():
    ratios = FLAT.trees().rates / FLAT.trees().rates[0]
    np.testing.assert_allclose(ratios, np.arange(1, 41) ** -0.7, rtol=1e-6)


@WORLDS
def test_a_child_never_fires_without_its_parent(world):
    trees, fires = world.trees(), find_firing(world)
    children = np.flatnonzero(trees.parents >= 0)
    assert not bool((fires[:, children] & ~fires[:, trees.parents[children]]).any())
    assert len(children) == (world.units - world.roots if world.roots else 0)


def test_trees_have_the_shape_asked_for():
    trees = TREES.trees()
    assert np.bincount(trees.depths).tolist() == [4, 16, 64]
    assert set(np.bincount(trees.parents[trees.parents >= 0])) == {0, 4}
    assert bool((trees.parents < np.arange(84)).all())
    assert np.count_nonzero(replace(TREES, units=100).trees().parents < 0) == 4 + 16


@WORLDS
def test_exclusive_siblings_never_fire_together_and_others_do(world):
    trees, fires = world.trees(), find_firing(world).numpy()
    seen = []
    for parent in np.unique(trees.parents[trees.parents >= 0]):
        children = np.flatnonzero(trees.parents == parent)
        assert len(set(trees.exclusive[children])) == 1
        together = bool((fires[:, children].sum(1) > 1).any())
        assert together != trees.exclusive[children[0]]
        seen.append(together)
    assert seen.count(False) == round(0.5 * len(seen))


def test_atoms_of_a_topic_fire_together_as_the_correlation_says():
    world = ForestWorld(4, 8, 2.0, samples=200_000, correlation=0.6, topics=2)
    rates, topics, fires = world.trees().rates, world.assign_topics(), find_firing(world)
    assert len(set(topics.tolist())) == 2
    for a in range(8):
        for b in range(a):
            c = 0.6 if topics[a] == topics[b] else 0.0
            both = multivariate_normal([0, 0], [[1, c], [c, 1]]).cdf(norm.ppf([rates[a], rates[b]]))
            found = float((fires[:, a] & fires[:, b]).double().mean())
            assert abs(found - both) < 5 * (both / 200_000) ** 0.5


def test_samples_are_the_codes_times_the_atoms_plus_bias_and_noise():
    x, code = CORRELATED.draw("test", 20_000)
    rest = x - code.dense(84) @ CORRELATED.dictionary()
    assert float(CORRELATED.offset().norm()) == pytest.approx(2.0)
    torch.testing.assert_close(rest.mean(0), CORRELATED.offset(), atol=0.005, rtol=0)
    assert float(rest.std(0).mean()) == pytest.approx(0.1, rel=0.02)
    plain = FLAT.draw("test", 100)
    torch.testing.assert_close(plain.x, plain.code.dense(40) @ FLAT.dictionary())


def test_values_are_folded_normal_around_one():
    values = FLAT.draw().code.values
    active = values[values > 0]
    assert float(active.square().mean()) == pytest.approx(1 + FLAT.spread**2, rel=0.02)
    assert float(replace(FLAT, spread=0.0).draw("test", 9).code.values.max()) == 1.0


def test_units_of_a_code_ascend_and_padding_comes_last():
    values, units = TREES.draw("test", 500).code
    ascending = (units[:, 1:] > units[:, :-1]) | (values[:, 1:] == 0)
    assert bool(ascending.all())
    assert bool((values[:, 1:].gt(0) <= values[:, :-1].gt(0)).all())
    assert bool((units[values == 0] == 0).all())


@WORLDS
def test_a_seed_a_split_and_a_part_decide_the_samples(world):
    small = replace(world, samples=50)
    drawn = small.draw().x
    assert torch.equal(drawn, small.draw().x)
    for other in (small.draw("test"), replace(small, part=1).draw(), replace(small, seed=1).draw()):
        assert not torch.equal(drawn, other.x)
    assert torch.equal(small.dictionary(), replace(small, part=1).dictionary())
    assert from_json(to_json(small)) == small
    assert torch.equal(open_source(small).block(0), drawn)


def test_more_samples_than_a_chunk_are_all_different():
    x = ForestWorld(4, 6, 2.0, samples=20_001).draw().x
    assert x.shape == (20_001, 4)
    assert not torch.equal(x[:10_000], x[10_000:20_000])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"active": 0.0}, "active=0.0 of 256 atoms"),
        ({"active": 300.0}, "active=300.0 of 256 atoms"),
        ({"roots": 16, "active": 250.0}, "active=250 of 256 atoms in these trees: ask for at most"),
        ({"roots": -1}, "roots=-1: give at least 0"),
        ({"branching": 0}, "branching=0: give at least 1"),
        ({"topics": 0}, "topics=0"),
        ({"correlation": 1.0}, "correlation=1.0: give a number from 0 to below 1"),
        ({"exclusive": 1.5}, "exclusive=1.5: give a share from 0 to 1"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"zipf": float("inf")}, "zipf=inf"),
        ({"samples": 0}, "at least 1"),
    ],
    ids=str,
)
def test_impossible_forests_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        ForestWorld(**fields)


@pytest.mark.slow
def test_a_million_samples_of_2048_atoms_take_minutes():
    world = ForestWorld(256, 2048, 16.0, samples=1_000_000, roots=64)
    assert float((world.draw().code.values > 0).sum(1).float().mean()) == pytest.approx(16, rel=0.01)
