"""Worlds: exact sampling without replacement, and what a seed decides."""

import itertools

import pytest
import torch

from osae.data.worlds import PCAWorld, SparseWorld


def test_supports_are_exact_draws_without_replacement():
    """Chances of every support of 2 out of 4, by enumeration of the draws in sequence."""
    world = SparseWorld(width=5, units=4, active=2, zipf=1.3, samples=60_000)
    pi = torch.arange(1, 5, dtype=torch.float64) ** -1.3
    pi /= pi.sum()
    expected = {
        pair: float(sum(pi[a] * pi[b] / (1 - pi[a]) for a, b in itertools.permutations(pair)))
        for pair in itertools.combinations(range(4), 2)
    }
    supports = world.draw().code.units
    for pair, chance in expected.items():
        share = float((supports == torch.tensor(pair)).all(1).double().mean())
        assert abs(share - chance) < 5 * (chance * (1 - chance) / 60_000) ** 0.5


def test_samples_are_the_codes_times_the_dictionary():
    world = SparseWorld(width=12, units=20, active=3, samples=500)
    x, code = world.draw()
    atoms = world.dictionary()
    expected = torch.stack(
        [sum(v * atoms[u] for v, u in zip(vs, us, strict=True)) for vs, us in zip(*code, strict=True)]
    )
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(atoms.norm(dim=1), torch.ones(20))
    assert bool((code.values >= 0).all())
    assert all(len(set(row)) == 3 for row in code.units.tolist())


def test_values_are_half_normal_or_normal_as_asked():
    positive = SparseWorld(samples=40_000).draw().code.values
    signed = SparseWorld(samples=40_000, positive=False).draw().code.values
    assert float(positive.mean()) == pytest.approx((2 / torch.pi) ** 0.5, abs=0.01)
    assert float(signed.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(signed.var()) == pytest.approx(1.0, abs=0.02)


def test_strengths_scale_the_atoms_values():
    strengths = (1.0, 10.0, 100.0)
    code = SparseWorld(4, 3, 1, 0.0, 30_000, strengths=strengths).draw().code
    for unit, strength in enumerate(strengths):
        found = float(code.values[code.units == unit].square().mean().sqrt())
        assert found == pytest.approx(strength, rel=0.03)


def test_the_seed_decides_the_world_and_the_split_its_samples():
    a, b = SparseWorld(samples=100, seed=1), SparseWorld(samples=100, seed=2)
    assert torch.equal(a.dictionary(), SparseWorld(samples=7, seed=1).dictionary())
    assert not torch.equal(a.dictionary(), b.dictionary())
    assert torch.equal(a.draw().x, a.draw().x)
    assert not torch.equal(a.draw("train").x, a.draw("test").x)


def test_pca_world_has_the_spectrum_it_says():
    world = PCAWorld(width=6, units=3, ratio=0.5, samples=100_000)
    atoms = world.dictionary()
    torch.testing.assert_close(atoms @ atoms.T, torch.eye(3), atol=1e-5, rtol=0)
    x, code = world.draw()
    variances = (x @ atoms.T).var(0)
    torch.testing.assert_close(variances, torch.tensor([1.0, 0.5, 0.25]), rtol=0.03, atol=0)
    torch.testing.assert_close(x @ atoms.T, code.values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("world", [SparseWorld(4, 4, 1, samples=9), PCAWorld(4, 2, samples=9)], ids=str)
def test_splits_are_three_and_a_typo_is_refused(world):
    drawn = [world.draw(split).x for split in ("train", "validation", "test")]
    assert all(not torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    with pytest.raises(ValueError, match="split='typo': give one of train, validation, test"):
        world.draw("typo")
    with pytest.raises(ValueError, match="samples=0: give at least 1"):
        world.draw("train", 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"active": 0}, "ask for 1 to 100"),
        ({"active": 101}, "ask for 1 to 100"),
        ({"samples": 0}, "at least 1"),
        ({"strengths": (1.0,)}, "1 strengths for 100 atoms"),
        ({"strengths": (float("nan"),) * 100}, "strengths contain NaN"),
        ({"zipf": float("nan")}, "zipf=nan"),
        ({"zipf": float("inf")}, "zipf=inf"),
        ({"zipf": -1.0}, "zipf=-1"),
    ],
)
def test_impossible_worlds_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        SparseWorld(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"units": 21}, {"units": 0}, {"samples": 0}]
    + [{"ratio": ratio} for ratio in (float("nan"), float("inf"), 0.0, -0.5, 1.5)],
    ids=str,
)
def test_impossible_pca_worlds_are_refused(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=f"{name}="):
        PCAWorld(**fields)
