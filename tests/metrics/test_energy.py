"""Orders of units: the same greedy order however the overlaps of units are stored."""

import resource
import time
import tracemalloc

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


@pytest.mark.parametrize(("summed", "block"), [(0, 256), (8192, 256), (8192, 7)])
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_order_is_that_of_the_definition_for_few_units_and_for_many(summed, block, seed, monkeypatch):
    monkeypatch.setattr(energy, "SUMMED_UNITS", summed)
    monkeypatch.setattr(energy, "_BLOCK_ROWS", block)
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


@pytest.mark.parametrize(("rows", "k"), [(80, 6), (600, 6), (600, 40), (600, 100)])
def test_sums_of_overlaps_take_the_same_memory_for_any_codes(rows, k):
    """One matrix, so that it can be foreseen: peaks of numpy, which reports to tracemalloc."""
    values, units, decoder, x = draw(rows, 600, 8, k)
    greedy_order(values, units, decoder, x)  # compiles
    tracemalloc.start()
    activity = Coactivity(decoder)
    activity.update(values, units, x)
    activity.greedy_order()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    matrix, dense = 8 * 600**2, 8 * 600 * rows if k >= 600 / 8 else 0
    assert matrix < peak < 1.6 * matrix + 2 * dense  # blocks of overlaps are large beside so few units


def test_asking_for_the_order_again_changes_nothing_and_a_later_batch_is_refused():
    values, units, decoder, x = draw(200, 60, 16, 6)
    activity = Coactivity(decoder)
    activity.update(values, units, x)
    order, gains = activity.greedy_gains()
    again, same = activity.greedy_gains()
    assert torch.equal(again, order)
    assert torch.equal(same, gains)
    with pytest.raises(ValueError, match="add all batches before that"):
        activity.update(values, units, x)
    assert activity.samples == len(x)
    assert torch.equal(activity.greedy_gains()[1], gains)


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


@pytest.mark.parametrize("block", [256, 7])
def test_full_codes_give_the_same_order(block, monkeypatch):
    """During a warm-up of k, codes are too full for sums over pairs of entries."""
    problem = draw(300, 60, 16, 20)
    expected = greedy_order(*problem)
    monkeypatch.setattr(energy, "_DENSE_UNITS", 2)
    monkeypatch.setattr(energy, "_BLOCK_ROWS", block)
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
