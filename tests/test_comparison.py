"""Comparisons against the measures they are made of, and roles of units in worlds with known answers."""

import json
import math
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

import osae
from osae import comparison, metrics, roles
from osae.comparison import compare
from osae.data.shards import Shards, write_shards
from osae.data.worlds import SparseWorld
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.sparsify import JumpReLU, TopK

SCHEMA = json.loads((files("osae") / "schemas/compare.schema.json").read_text())
DOCS = Path(__file__).parent.parent / "docs" / "compare-json.md"
WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=600)


def valid(result):
    """The result, after the schema has found nothing wrong, and JSON has held it without loss."""
    jsonschema.Draft202012Validator(SCHEMA).validate(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


@torch.no_grad()
def saved(folder, atoms, sparsifier=None):
    """An SAE with these atoms, encoder equal to decoder, in a folder."""
    units, width = atoms.shape
    sae = SAE(SAEConfig(width, units, sparsifier or TopK(min(2, units))))
    sae.decoder.copy_(atoms)
    sae.encoder.copy_(atoms)
    sae.save(folder)
    return folder


def noise(units, width, seed):
    return torch.randn(units, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "activations", [WORLD.draw("test").x], rows_per_shard=250)


def test_permuted_copies_have_stability_one_and_give_the_permutation_back(tmp_path):
    atoms, order = WORLD.dictionary(), torch.randperm(20, generator=torch.Generator().manual_seed(1))
    a, b = saved(tmp_path / "a", atoms), saved(tmp_path / "b", atoms[order])
    result = valid(osae.compare([a, b]))
    (pair,) = result["pairs"]
    assert pair["stability"] == pytest.approx(1.0)
    assert [[i, j] for i, j, _ in pair["matching"]["pairs"]] == [
        [i, int(j)] for i, j in enumerate(order.argsort())
    ]
    places = torch.arange(20)
    assert pair["orderedness"] == pytest.approx(metrics.rank_correlation(places, order.argsort()))
    assert pair["matching"]["optimal"]
    assert pair["above"] == {"0.5": 1.0, "0.7": 1.0, "0.9": 1.0}
    assert pair["stream"] is None
    assert result["summary"]["stability"] == {
        "mean": pair["stability"],
        "std": None,
        "low": None,
        "high": None,
    }
    assert result["saes"][1]["path"] == str(b)
    assert result["saes"][1]["sha256"] == load(b).sha256


@pytest.mark.parametrize("absolute", [False, True])
def test_numbers_are_those_of_the_measures(tmp_path, absolute):
    atoms = [noise(40, 12, seed) for seed in range(3)] + [noise(25, 12, 9)]
    paths = [tmp_path / f"{place}.npy" for place in range(4)]
    for path, matrix in zip(paths, atoms, strict=True):
        np.save(path, matrix.numpy())
    seen = []
    result = valid(compare(paths, absolute=absolute, progress=lambda *words: seen.append(words)))
    assert [pair["a"] for pair in result["pairs"]] == [i for i, _ in combinations(range(4), 2)]
    for pair in result["pairs"]:
        a, b = atoms[pair["a"]], atoms[pair["b"]]
        whole = metrics.consistency(a, b, absolute=absolute)
        assert pair["stability"] == whole.stability
        assert pair["orderedness"] == whole.orderedness
        assert pair["above"]["0.5"] == pytest.approx(float((whole.matching.similarity > 0.5).double().mean()))
        level = metrics.chance_level(*sorted((len(a), len(b))), 12, absolute=absolute)
        assert pair["chance"]["stability"] == level.stability
        expected = metrics.prefix_consistency(a, b, absolute=absolute)
        assert [prefix["length"] for prefix in pair["prefixes"]] == [prefix.length for prefix in expected]
        for ours, theirs in zip(pair["prefixes"], expected, strict=True):
            assert all(ours[key] == getattr(theirs, key) for key in comparison.MEASURES)
            level = metrics.chance_level(ours["length"], ours["length"], 12, absolute=absolute)
            if ours["length"] < 25:
                assert ours["chance"]["stability"] == level.stability
    values = {(pair["a"], pair["b"]): pair["stability"] for pair in result["pairs"]}
    assert result["summary"]["stability"] == metrics.pair_interval(values)._asdict()
    assert result["summary"]["pairs"] == 6
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_sizes_may_differ_and_prefixes_may_be_chosen(tmp_path):
    atoms = noise(30, 12, 0)
    a, b = saved(tmp_path / "a", atoms), saved(tmp_path / "b", atoms[10:22])
    result = valid(compare([a, b], prefixes=[20, 4, 4], chance_draws=0))
    (pair,) = result["pairs"]
    assert [[i, j] for i, j, _ in pair["matching"]["pairs"]] == [[i + 10, i] for i in range(12)]
    assert (pair["stability"], pair["orderedness"]) == pytest.approx((1.0, 1.0))
    assert [prefix["length"] for prefix in pair["prefixes"]] == [4, 20]
    first, second = pair["prefixes"]
    assert first["stability_of_full"] is None  # none of the first four has a partner
    assert second["stability_of_full"] == pytest.approx(1.0)
    assert pair["chance"] is None
    assert result["summary"]["prefixes"][0]["stability_of_full"] is None
    with pytest.raises(ValueError, match="prefix length 31: give 1 to 30"):
        compare([a, b], prefixes=[31])


def test_zero_rows_count_as_nothing_or_are_left_out(tmp_path):
    atoms = noise(12, 30, 0)
    atoms[3] = atoms[7] = 0
    other = noise(12, 30, 0)
    other[5] = 0
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(paths[0], atoms.numpy())
    np.save(paths[1], other.numpy())
    loaded = [load(path, orientation="rows") for path in paths]
    kept = valid(compare(loaded, prefixes=[4, 12]))
    assert [sae["zero_units"] for sae in kept["saes"]] == [[3, 7], [5]]
    assert kept["pairs"][0]["stability"] == pytest.approx(
        float(metrics.match(_cosine_or_zero(atoms, other)).similarity.mean())
    )
    assert len(kept["pairs"][0]["matching"]["pairs"]) == 12
    dropped = valid(compare(loaded, dead="drop", prefixes=[4, 10]))
    (pair,) = dropped["pairs"]
    assert [sae["compared"] for sae in dropped["saes"]] == [10, 11]
    matched = {i: j for i, j, _ in pair["matching"]["pairs"]}
    assert set(matched) == set(range(12)) - {3, 7}
    assert all(matched[i] == i for i in set(matched) - {5})
    assert pair["prefixes"][0]["stability"] == pytest.approx(
        metrics.stability(atoms[[0, 1, 2, 4]], other[:4])
    )


def _cosine_or_zero(a, b):
    return torch.nn.functional.normalize(a.double()) @ torch.nn.functional.normalize(b.double()).T


def test_activations_add_streams_reconstruction_and_dead_units(tmp_path, shards):
    atoms = WORLD.dictionary()
    dead = torch.cat([atoms, noise(2, 24, 3)])
    a = saved(tmp_path / "a", atoms)
    loaded = load(saved(tmp_path / "b", dead, JumpReLU(threshold=0.4)))
    with torch.no_grad():
        loaded.sae.threshold[20:] = 1e6
    result = valid(compare([a, loaded, a], activations=shards, on="encoder"))
    assert result["saes"][0]["dead_units"] == []
    assert result["saes"][1]["dead_units"] == [20, 21]
    assert result["activations"]["rows"] == 600
    x = WORLD.draw("test").x
    codes = [sae.encode(x).dense(len(sae.decoder)).detach() for sae in (load(a).sae, loaded.sae)]
    assert result["pairs"][0]["stream"] == {
        "stability": pytest.approx(metrics.stream_stability(*codes)),
        "orderedness": pytest.approx(metrics.stream_orderedness(*codes)),
    }
    assert result["pairs"][1]["stream"]["stability"] == pytest.approx(1.0)
    assert result["saes"][0]["reconstruction"]["explained_variance"] == pytest.approx(
        metrics.explained_variance(x, load(a).sae(x).reconstruction.detach()), rel=1e-5
    )
    dropped = valid(compare([a, loaded], activations=shards.path, dead="drop"))
    assert dropped["saes"][1]["compared"] == 20
    assert dropped["pairs"][0]["stability"] == pytest.approx(1.0)


def test_streams_are_the_same_in_one_pass_and_in_many(tmp_path, shards, monkeypatch):
    paths = [saved(tmp_path / str(seed), noise(20, 24, seed)) for seed in range(4)]
    at_once = compare(paths, activations=shards, chance_draws=0)
    monkeypatch.setattr(comparison, "_HELD_AT_ONCE", 8 * 20 * 20 * 2)
    assert compare(paths, activations=shards, chance_draws=0) == at_once


def test_what_cannot_be_compared_is_refused(tmp_path, shards):
    a, wide = saved(tmp_path / "a", noise(20, 24, 0)), saved(tmp_path / "b", noise(20, 25, 0))
    np.save(tmp_path / "bare.npy", noise(30, 24, 0).numpy())
    zero = tmp_path / "zero.npy"
    np.save(zero, np.zeros((30, 24), dtype=np.float32))
    for saes, options, message in (
        ([a], {}, "at least two"),
        (str(a), {}, "at least two"),
        ([a, a], {"on": "both"}, "on='both'"),
        ([a, a], {"dead": "hide"}, "dead='hide'"),
        ([a, a], {"chance_draws": -1}, "chance_draws=-1"),
        ([a, wide], {}, "b has width 25 and .*a has 24"),
        ([a, tmp_path / "bare.npy"], {"on": "encoder"}, "has no encoder"),
        ([a, tmp_path / "bare.npy"], {"activations": shards}, "cannot be run on activations"),
        ([wide, wide], {"activations": shards}, "has width 25, and .* has 24"),
        ([a, zero], {"dead": "drop"}, "all 30 units of an SAE are dead"),
    ):
        with pytest.raises(ValueError, match=message):
            compare(saes, **options)


def _fields(schema, path):
    """The names of all fields in a schema, as the docs write them."""
    for part in schema.get("anyOf", []):
        yield from _fields(part, path)
    if "items" in schema:
        yield from _fields(schema["items"], f"{path}[]")
    for name, inner in schema.get("properties", {}).items():
        full = f"{path}.{name}" if path else name
        yield full
        yield from _fields(inner, full)


def test_docs_and_schema_name_the_same_fields():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    expected = set(_fields(SCHEMA, ""))
    for name, part in SCHEMA["$defs"].items():
        expected |= set(_fields(part, name))
    documented = {
        line.split("`")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `") and "`" in line
    }
    assert documented == expected


@pytest.mark.parametrize("by", ["gain", "energy", "frequency"])
def test_order_of_a_shuffled_sae_restores_it(tmp_path, shards, by):
    loaded = load(saved(tmp_path / "a", WORLD.dictionary()))
    canonical = roles.ordered(loaded, shards, by=by)
    shuffle = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    again = roles.ordered(load(saved(tmp_path / "b", canonical.sae.decoder[shuffle])), shards, by=by)
    if by != "frequency":  # units that speak equally often keep the order they have
        torch.testing.assert_close(again.sae.decoder, canonical.sae.decoder)
    assert again.provenance["order"]["by"] == by
    x = WORLD.draw("test").x
    torch.testing.assert_close(again.sae(x).reconstruction, loaded.sae(x).reconstruction)
    code = loaded.sae.encode(x)
    if by == "gain":
        expected = metrics.greedy_order(*code, loaded.decoder, x).tolist()
        assert canonical.order.tolist() == expected
    else:
        energy = metrics.explained_energy(*code, loaded.decoder, x)
        score = energy if by == "energy" else metrics.frequency(*code, 20)
        assert (score[canonical.order].diff() <= 1e-12).all()


def test_order_takes_the_bias_off(tmp_path, shards):
    x = shards.read(0, shards.rows)
    loaded = load(saved(tmp_path / "a", WORLD.dictionary()))
    plain = roles.ordered(loaded, shards).order
    with torch.no_grad():
        loaded.sae.decoder_bias.fill_(3.0)
    shifted = write_shards(tmp_path / "shifted", [x + 3.0])
    assert roles.ordered(loaded, shifted).order.tolist() == plain.tolist()
    with pytest.raises(ValueError, match="by='luck'"):
        roles.ordered(loaded, shards, by="luck")  # pyright: ignore[reportArgumentType]


def test_the_unit_that_is_missing_in_the_small_sae_is_the_novel_one(tmp_path, shards):
    # orthonormal atoms and exact codes, so that every other unit repeats what is there
    atoms, missing = torch.eye(24), 5
    x = torch.rand(500, 24, generator=torch.Generator().manual_seed(0)) + 0.1
    data = write_shards(tmp_path / "x", [x])
    large = load(saved(tmp_path / "large", atoms, JumpReLU(threshold=0.01)))
    rest = torch.cat([atoms[:missing], atoms[missing + 1 :]])
    small = load(saved(tmp_path / "small", rest, JumpReLU(threshold=0.01)))
    result = roles.stitch(small, large, data)
    assert [unit["unit"] for unit in result["most_novel"]] == [missing]
    assert result["most_novel"][0]["share_of_error"] == pytest.approx(1.0)
    assert result["most_novel"][0]["cosine"] == pytest.approx(0.0, abs=1e-6)
    assert (result["novel"], result["reconstruction"], result["unchanged"]) == pytest.approx(
        (1 / 24, 23 / 24, 0)
    )
    assert result["error"] == pytest.approx(float(x[:, missing].square().mean()), rel=1e-5)
    assert result["change"][missing] == pytest.approx(-result["error"])
    residual = x - small.sae(x).reconstruction.detach()
    expected = metrics.stitching(*large.sae.encode(x), large.decoder, residual)
    assert result["change"] == pytest.approx((expected.change / 500).tolist())
    assert all(math.isfinite(value) for value in result["frequency"])


def test_public_names():
    assert osae.load is load
    assert osae.compare is compare
    assert isinstance(Shards, type)
