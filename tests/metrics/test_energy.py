"""Orders of units: the same greedy order however the overlaps of units are stored."""

import resource
import time

import pytest
import torch

from osae.metrics import Coactivity, energy, greedy_order


def draw(samples, units, width, k, seed=0, padding=0.2):
    g = torch.Generator().manual_seed(seed)
    decoder = torch.nn.functional.normalize(torch.randn(units, width, generator=g), dim=-1)
    places = torch.rand(samples, units, generator=g).argsort(-1)[:, :k]
    values = torch.rand(samples, k, generator=g) * (torch.rand(samples, k, generator=g) > padding)
    x = (values.unsqueeze(-1) * decoder[places]).sum(1) + 0.1 * torch.randn(samples, width, generator=g)
    return values, places, decoder, x


def order_by_definition(values, units, decoder, x):
    """Return each unit that lowers the error most after those before it, from residuals."""
    code = torch.zeros(len(x), len(decoder), dtype=torch.float64).scatter_add(1, units, values.double())
    atoms, residual, left, order = decoder.double(), x.double(), list(range(len(decoder))), []
    while left:
        errors = [float((residual - code[:, [j]] * atoms[j]).square().sum()) for j in left]
        order.append(left.pop(min(range(len(left)), key=errors.__getitem__)))
        residual = residual - code[:, [order[-1]]] * atoms[order[-1]]
    return order


@pytest.mark.parametrize("summed", [0, 8192])
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_order_is_that_of_the_definition_for_few_units_and_for_many(summed, seed, monkeypatch):
    monkeypatch.setattr(energy, "SUMMED_UNITS", summed)
    problem = draw(80, 30, 12, 5, seed)
    assert greedy_order(*problem).tolist() == order_by_definition(*problem)


def test_batches_of_any_width_give_the_same_order(monkeypatch):
    values, units, decoder, x = draw(200, 60, 16, 6)
    expected = greedy_order(values, units, decoder, x)
    monkeypatch.setattr(energy, "SUMMED_UNITS", 0)
    monkeypatch.setattr(energy, "_ATOMS", 1000)  # several blocks of samples
    activity = Coactivity(decoder)
    for rows in (slice(0, 50), slice(50, 50), slice(50, 51), slice(51, 200)):
        wide = torch.nn.functional.pad(values[rows], (rows.start % 3, 2))  # padding in front and behind
        activity.update(wide, torch.nn.functional.pad(units[rows], (rows.start % 3, 2)), x[rows])
    assert torch.equal(activity.greedy_order(), expected)


def test_sums_of_pairs_are_the_same_bits_in_a_matrix_and_sparse(monkeypatch):
    values, units, decoder, x = draw(200, 60, 16, 6)
    found = []
    for most in (2048, 0):
        monkeypatch.setattr(energy, "_PAIRED_UNITS", most)
        activity = Coactivity(decoder)
        for rows in (slice(0, 130), slice(130, 200)):
            activity.update(values[rows], units[rows], x[rows])
        found.append(activity.greedy_gains())
    for in_matrix, sparse in zip(*found, strict=True):
        assert torch.equal(in_matrix, sparse)


def test_decoders_in_single_precision_are_summed_as_exactly_as_in_double():
    values, units, decoder, x = draw(80, 30, 12, 5)
    single, double = Coactivity(decoder), Coactivity(decoder.double())
    assert single._decoder.dtype == "float32"  # a copy in double precision would take gigabytes
    for activity in (single, double):
        activity.update(values, units, x)
    torch.testing.assert_close(single.energy(), double.energy(), rtol=1e-13, atol=0)


def test_dead_units_keep_their_order_among_many(monkeypatch):
    monkeypatch.setattr(energy, "SUMMED_UNITS", 0)
    values, units, decoder, _ = draw(50, 40, 8, 3)
    units = units % 10
    values *= torch.nn.functional.pad(units[:, 1:] != units[:, :-1], (1, 0), value=True)
    order = greedy_order(values.clamp(max=0.01), units, decoder, decoder[units[:, 0]])
    assert [unit for unit in order.tolist() if unit >= 10] == list(range(10, 40))


def test_too_many_overlaps_are_estimated_from_the_first_samples(monkeypatch):
    """Twice the same samples are as good as once, with or without room for the second half."""
    values, units, decoder, x = draw(100, 50, 12, 5)
    twice = [torch.cat([part, part]) for part in (values, units, x)]
    expected = greedy_order(values, units, decoder, x)
    monkeypatch.setattr(energy, "SUMMED_UNITS", 0)
    for most in (100 * 25, 10**9):
        monkeypatch.setattr(energy, "MOST_OVERLAPS", most)
        activity = Coactivity(decoder)
        activity.update(*twice)
        assert torch.equal(activity.greedy_order(), expected)
        stored = sum(overlaps.size for _, overlaps in activity._overlaps._batches)  # pyright: ignore
        assert stored == min(most, 200 * 25)


def test_full_codes_give_the_same_order(monkeypatch):
    """During a warm-up of k, codes are too full for sums over pairs of entries."""
    problem = draw(300, 60, 16, 20)
    expected = greedy_order(*problem)
    monkeypatch.setattr(energy, "_DENSE_UNITS", 2)
    dense = Coactivity(problem[2])
    for rows in (slice(0, 100), slice(100, 200), slice(200, 300)):
        monkeypatch.setattr(energy, "_DENSE_SHARE", 1.0 if rows.start == 100 else 0.1)  # and some are sparse
        dense.update(problem[0][rows], problem[1][rows], problem[3][rows])
    assert torch.equal(dense.greedy_order(), expected)


@pytest.mark.slow
def test_sixty_five_thousand_units_are_sorted_in_a_minute_and_four_gigabytes():
    """Twenty thousand samples of width 2304 with 80 active units; CPU time, as the machine may be busy."""
    units, width, k = 65_536, 2304, 80
    g = torch.Generator().manual_seed(0)
    decoder = torch.nn.functional.normalize(torch.randn(units, width, generator=g), dim=-1)
    began, activity = time.process_time(), Coactivity(decoder)
    drawing = 0.0
    for samples in (8192, 8192, 3616):
        before = time.process_time()
        places = (torch.rand(samples, k, generator=g).pow(3) * units).long()
        values, x = torch.rand(samples, k, generator=g), torch.randn(samples, width, generator=g)
        drawing += time.process_time() - before
        activity.update(values, places, x)
    assert sorted(activity.greedy_order().tolist()) == list(range(units))
    assert time.process_time() - began - drawing < 2 * 60  # on two cores
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4e6  # kilobytes, all of the process
