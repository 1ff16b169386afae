"""Every unit of the SAEs that are compared: partners, splits, and whether it is found again."""

import json
from itertools import pairwise

import pytest
import torch

from osae import metrics, results
from osae.metrics.reproducibility import SAME, support_of
from osae.results.codec import from_json
from osae.results.comparison import Comparison
from osae.results.units import UnitTable
from osae.studies.compare import compare
from tests.studies.checks import check
from tests.studies.saes import make_sae, noise


def directions(units, width, seed):
    """Return rows of length one."""
    return torch.nn.functional.normalize(noise(units, width, seed), dim=1)


def table(*args, **options) -> UnitTable:
    """Return the units of a comparison without chance levels, once it has passed every check."""
    units = check(compare(*args, chance_draws=0, **options)).units
    assert units is not None
    return units


def test_units_that_every_sae_has_are_found_and_others_are_not():
    common = directions(20, 64, 0)
    saes = [torch.cat([common, directions(10, 64, seed)])[torch.randperm(30)] for seed in (1, 2, 3)]
    units = table(saes)
    for sae, atoms in zip(units.saes, saes, strict=True):
        shared = (atoms @ common.T).amax(1) > 0.999
        assert torch.equal(torch.tensor(sae.measures["reproducibility"]) == 1, shared)
        assert torch.equal(torch.tensor(sae.measures["reproducibility"]) == 0, ~shared)
        assert sae.counted == tuple(place for place in range(3) if place != sae.sae)
    assert len(units.irreproducible()) == 30
    assert len(units) == 90


def test_partners_are_those_of_the_definition():
    a, b = noise(30, 16, 0), noise(24, 16, 1)
    cosines = metrics.cosine(a, b)
    (first, second) = table([a, b]).saes
    ahead, back = first.partners[0], second.partners[0]
    assert ahead.nearest == tuple(cosines.argmax(1).tolist())
    assert ahead.sae == 1
    assert ahead.nearest_cosine == pytest.approx(cosines.amax(1).tolist(), abs=1e-5)
    assert back.nearest == tuple(cosines.argmax(0).tolist())
    assert back.sae == 0
    assert ahead.mutual == tuple(back.nearest[j] == i for i, j in enumerate(ahead.nearest))
    best = metrics.match(cosines)
    assert [unit for unit in ahead.matched if unit is not None] == best.right.tolist()
    assert sum(unit is None for unit in ahead.matched) == 6


@pytest.mark.parametrize("absolute", [False, True])
def test_blocks_of_neighbours_agree_with_the_matrix_of_all_pairs(monkeypatch, absolute):
    from osae.metrics import neighbours

    monkeypatch.setattr(neighbours, "_BLOCK", 7 * 23)
    a, b = noise(40, 8, 0), noise(23, 8, 1)
    cosines = metrics.cosine(a, b, absolute=absolute)
    ahead, back = metrics.find_neighbours(a, b, absolute=absolute)
    for found, matrix in ((ahead, cosines), (back, cosines.T)):
        two = matrix.topk(2, dim=1)
        assert torch.equal(found.nearest, two.indices[:, 0])
        torch.testing.assert_close(found.cosine, two.values[:, 0], atol=1e-6, rtol=0)
        torch.testing.assert_close(found.second, two.values[:, 1], atol=1e-6, rtol=0)
    own = metrics.cosine(a, a, absolute=absolute).fill_diagonal_(-1)
    torch.testing.assert_close(metrics.nearest_inside(a, absolute=absolute), own.amax(1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("cells", [7, 64])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_map_of_cosines_has_the_largest_of_each_cell(monkeypatch, absolute, cells):
    from osae.metrics import neighbours

    monkeypatch.setattr(neighbours, "_BLOCK", 5 * 23)  # blocks and cells begin at different rows
    a, b = noise(40, 8, 0), noise(23, 8, 1)
    b[3] = 0  # a unit without a direction
    cosines = metrics.cosine(a, b.index_fill(0, torch.tensor([3]), 1.0), absolute=absolute)
    cosines[:, 3] = 0
    edges = [[size * i // min(size, cells) for i in range(min(size, cells) + 1)] for size in (40, 23)]
    expected = [
        [cosines[top:bottom, left:right].max() for left, right in pairwise(edges[1])]
        for top, bottom in pairwise(edges[0])
    ]
    cosines = metrics.CosineMap(len(a), len(b), cells)
    metrics.find_neighbours(a, b, absolute=absolute, cosines=cosines)
    found = cosines.largest
    torch.testing.assert_close(found, torch.tensor(expected).float(), atol=1e-6, rtol=0)
    if cells == 64:
        assert found.shape == (40, 23)


def test_a_unit_that_is_split_is_found_although_the_matching_misses_it():
    whole, others = directions(1, 64, 0), directions(40, 64, 1)
    parts = torch.nn.functional.normalize(whole + 0.2 * directions(2, 64, 2), dim=1)
    one, several = torch.cat([whole, others, directions(1, 64, 3)]), torch.cat([parts, others])
    units = table([one, several])
    lost = [part for part in (0, 1) if units.saes[1].partners[0].matched[part] != 0]
    assert len(lost) == 1
    part = units.of(1, lost[0])
    assert part.measures["matched_cosine"] < 0.5 < 0.95 < part.measures["nearest_cosine"]
    both = [units.of(1, place).measures for place in (0, 1)]  # only one of them is the nearest of the whole
    assert [each["reproducibility"] for each in both] == [1, 1]
    assert sorted(each["mutual"] for each in both) == [0, 1]
    (split,) = units.splits
    assert (split.sae, split.unit, split.other, set(split.units)) == (0, 0, 1, {0, 1})
    assert split.explained > max(split.cosines) ** 2
    assert part.merges == (split,)
    assert units.of(0, 0).splits == (split,)
    row = {(record["sae"], record["unit"]): record for record in units.records()}[part.name, part.unit]
    assert row["merges_into"].startswith(units.saes[0].name)
    assert row["splits_into"] == ""


def test_the_level_of_found_units_is_that_of_different_ones():
    # all units are alike: a shared direction makes different units' cosines about 0.96
    shared = 5 * directions(1, 64, 0)
    a, b = shared + directions(200, 64, 1), shared + directions(200, 64, 2)
    (first, _) = table([a, b]).saes
    assert min(first.partners[0].level) > 0.95 > SAME
    assert sum(first.measures["reproducibility"]) <= 20  # 5 % of 200, give or take
    assert sum(table([a, a.flip(0)]).saes[0].measures["reproducibility"]) == 200


def test_units_that_point_the_same_way_but_fire_elsewhere_are_not_found():
    atoms = torch.eye(20, 24)
    rows = atoms[torch.randint(20, (600,), generator=torch.Generator().manual_seed(0))]
    ours, theirs = make_sae(atoms), make_sae(atoms)
    with torch.no_grad():  # units 0 to 9 keep their direction and fire on what others fired on
        theirs.encoder[:10] = atoms[:10].roll(1, 0)
    units = table([ours, theirs], data=rows)
    found = units.saes[0].partners[0].found
    assert not any(found[:10])
    assert all(found[10:])
    dead = make_sae(atoms)
    with torch.no_grad():
        dead.encoder_bias[3] = -1e6
    assert not table([ours, dead], data=rows).saes[0].partners[0].found[3]


def test_numbers_on_activations_are_those_of_the_definitions(shards):
    rows = torch.cat(list(shards.batches(10_000)))
    saes = [make_sae(noise(20, 24, seed)) for seed in (0, 1)]
    units = table(saes, data=shards)
    codes = [sae.encode(rows) for sae in saes]
    first, partners = units.saes[0], units.saes[0].partners[0]
    norm = float(rows.double().square().sum(1).mean())
    energy = metrics.explained_energy(*codes[0], saes[0].decoder, rows) / norm
    assert first.measures["energy"] == pytest.approx(energy.tolist(), rel=1e-4)
    frequency = metrics.frequency(*codes[0], 20)
    assert first.measures["frequency"] == pytest.approx(frequency.tolist(), rel=1e-4)
    order = metrics.greedy_order(*codes[0], saes[0].decoder, rows)
    assert [first.measures["place"][unit] for unit in order.tolist()] == list(range(20))
    reconstructed = metrics.mse(saes[0](rows).reconstruction.detach(), rows) * rows.shape[1]
    assert sum(first.measures["gain"]) == pytest.approx(1 - reconstructed / norm, abs=1e-3)
    dense = [code.dense(20) for code in codes]
    all_pairs = metrics.activation_similarity(*dense)
    expected = [float(all_pairs[unit, near]) for unit, near in enumerate(partners.nearest)]
    assert partners.correlation == pytest.approx(expected, abs=1e-4)


def test_units_are_also_matched_by_their_activations(shards):
    rows = torch.cat(list(shards.batches(10_000)))
    saes = [make_sae(noise(units, 24, seed)) for units, seed in ((20, 0), (16, 1), (20, 2))]
    result = check(compare(saes, data=shards, chance_draws=0))
    dense = [sae.encode(rows).dense(len(sae.decoder)) for sae in saes]
    best = metrics.match(metrics.activation_similarity(dense[0], dense[1]))
    kept = result.pairs[0].stream_matching
    assert kept is not None
    assert kept.optimal
    assert sum(each for *_, each in kept.pairs) == pytest.approx(float(best.similarity.sum()), abs=1e-4)
    first, second = result.units.saes[:2]
    ahead, back = first.partners[0], second.partners[0]
    assert [(i, j) for i, j in enumerate(ahead.stream_matched) if j is not None] == [
        (i, j) for i, j, _ in kept.pairs
    ]
    assert all(ahead.stream_matched[j] == i for i, j in enumerate(back.stream_matched))
    both = [each.stream_correlation[0] for each in first.partners]
    known = [each for each in both if each is not None]
    assert first.measures["matched_correlation"][0] == pytest.approx(sum(known) / len(known), abs=1e-5)
    without = compare(saes, chance_draws=0)
    assert without.pairs[0].stream_matching is None
    assert "matched_correlation" not in without.units.saes[0].measures


def test_a_table_survives_json_csv_and_pandas(tmp_path, shards):
    result = compare([make_sae(noise(20, 24, seed)) for seed in range(3)], data=shards, chance_draws=0)
    assert result.units is not None
    results.write_json(result, tmp_path / "c.json")
    read = results.read(tmp_path / "c.json")
    assert isinstance(read, Comparison)
    assert read.units == result.units
    older = {
        key: value for key, value in json.loads((tmp_path / "c.json").read_text()).items() if key != "units"
    }
    assert from_json(Comparison, older).units is None
    frame = result.units.to_pandas()
    assert len(frame) == 60
    assert frame["reproducibility"].between(0, 1).all()
    assert result.units.to_csv().splitlines()[0].startswith("sae,unit,energy,reproducibility")


def test_units_that_are_dropped_are_left_out(shards):
    atoms = noise(20, 24, 0)
    atoms[4] = 0
    kept = table([atoms, noise(20, 24, 1)])
    assert kept.of(0, 4).measures["reproducibility"] == 0
    assert kept.of(0, 4).partners[0].cosine == 0
    dropped = table([atoms, noise(20, 24, 1)], dead="drop")
    assert dropped.saes[0].unit == tuple(unit for unit in range(20) if unit != 4)
    with pytest.raises(ValueError, match=r"unit 4 of .* is not among"):
        dropped.of(0, 4)
    assert dropped.of(0, 5).partners == kept.of(0, 5).partners


def test_support_is_a_half_at_the_level_and_one_for_the_same_unit():
    level = torch.tensor([SAME, 0.5, 0.97])
    torch.testing.assert_close(support_of(level, level, None), torch.full((3,), 0.5).double())
    assert support_of(torch.ones(3), level, None).tolist() == [1, 1, 1]
    assert support_of(torch.tensor([0.0, -0.9, 0.0]), level, None).tolist() == [0, 0, 0]
    cosine = torch.linspace(0, 1, 11)
    bar = torch.full((11,), 0.8)
    odds = (cosine**2 / (1 - cosine**2)) / (0.8**2 / (1 - 0.8**2))
    torch.testing.assert_close(support_of(cosine, bar, None)[:-1], (odds / (1 + odds)).double()[:-1])
    fires = torch.tensor([0.5, -0.5, 0.0]).double()
    assert support_of(torch.ones(3), level, fires).tolist() == [0.5, 0, 0]
    assert support_of(torch.ones(1), torch.ones(1), None).tolist() == [0]  # a level that nothing exceeds


def test_support_of_a_unit_is_the_mean_over_the_other_saes(shards):
    units = table([make_sae(noise(20, 24, seed)) for seed in range(3)], data=shards)
    for sae in units.saes:
        each = [
            support_of(
                *(torch.tensor(numbers) for numbers in (one.nearest_cosine, one.level, one.correlation))
            )
            for one in sae.partners
        ]
        assert sae.measures["support"] == pytest.approx(torch.stack(each).mean(0).tolist(), abs=1e-5)


def test_two_runs_tell_how_often_a_third_finds_units():
    # a distribution of shares without a form would leave open what two of two mean: it is off by 0.06 here
    shares = torch.distributions.Beta(0.4, 1.0)
    torch.manual_seed(0)
    found = (torch.rand(3, 20_000) < shares.sample(torch.Size([20_000]))).long()
    counts = found[:2].sum(0)
    expected = metrics.expected_share(counts, 2)
    for count in range(3):
        same = counts == count
        assert float(expected[same][0]) == pytest.approx(float(found[2][same].double().mean()), abs=0.025)
    few = metrics.expected_share(torch.tensor([2, 2, 2]), 2)
    assert 0.6 < float(few[0]) < 0.98  # three units promise less than many
    assert float(metrics.expected_share(torch.full((3000,), 2), 2)[0]) > 0.99


def test_units_of_saes_that_count_for_each_other_are_judged_together():
    common = torch.eye(12, 40)
    saes = [torch.cat([common, torch.eye(40)[12 + 4 * run : 16 + 4 * run]]) for run in range(4)]
    saes[0][:6] = torch.eye(40)[30:36]  # the first SAE has few units that the others have
    units = table(saes)
    counts = [torch.tensor(sae.measures["reproducibility"]).mul(3).round().long() for sae in units.saes]
    together = metrics.expected_share(torch.cat(counts), 3).split(16)
    for sae, expected in zip(units.saes, together, strict=True):
        assert sae.measures["expected"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert "expected" not in table(saes[:2]).saes[0].measures  # one other run shows no spread


def test_what_to_expect_of_further_runs_lies_between_the_count_and_the_mean():
    generator = torch.Generator().manual_seed(0)
    share = torch.where(torch.rand(20_000, generator=generator) < 0.4, 0.95, 0.1)
    found = (torch.rand(4, 20_000, generator=generator) < share).long()
    expected = metrics.expected_share(found[:3].sum(0), 3)
    error = 0.0
    for count in range(4):
        same = found[:3].sum(0) == count
        error += float((expected[same] - found[3][same]).sum().abs()) / 20_000
    assert error < 0.06  # two kinds of units, which no beta distribution fits
    raw = float((found[:3].double().mean(0) - found[3]).square().mean())
    assert float((expected - found[3]).square().mean()) < raw
    assert metrics.expected_share(torch.full((5,), 2), 2)[0] < 1
    with pytest.raises(ValueError, match="at least 2"):
        metrics.expected_share(torch.tensor([1]), 1)


def test_encoders_are_compared_at_the_nearest_atoms(tmp_path):
    decoder, order = directions(12, 16, 0), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    a, b = make_sae(decoder), make_sae(decoder[order])
    with torch.no_grad():
        a.encoder.copy_(noise(12, 16, 1))
        b.encoder.copy_(noise(12, 16, 2))
    (first, _) = table([a, b]).saes
    nearest = order.argsort()
    assert first.partners[0].nearest == tuple(nearest.tolist())
    expected = torch.nn.functional.cosine_similarity(a.encoder, b.encoder[nearest])
    assert first.partners[0].encoder_cosine == pytest.approx(expected.tolist(), abs=1e-5)
