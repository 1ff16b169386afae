"""What is collected of each unit equals the definition, however the contexts are divided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.metrics import ContextCollector, Entries, Window
from osae.metrics import contexts as module

UNITS, LENGTH, VOCABULARY = 5, 12, 20
WINDOW = Window(before=3, after=2)


def draw_entries(seed, contexts=30):
    """Entries of whole contexts of 12 tokens, with ties, and a unit that never fires."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(VOCABULARY, size=contexts * LENGTH)
    dense = generator.gamma(1.0, 2.0, (contexts * LENGTH, UNITS)).round(1).astype(np.float32)
    dense[generator.random(dense.shape) < 0.7] = 0
    dense[:, 3] = 0
    dense[:, 4] *= -1  # strength is what counts
    slots, units = dense.nonzero()
    starts = slots // LENGTH * LENGTH
    return Entries(slots, units, dense[slots, units], tokens[slots], starts, starts + LENGTH), dense, tokens


def collect(entries, cuts, **options):
    found = ContextCollector(UNITS, window=WINDOW, **options)
    context = entries.starts // LENGTH
    for low, high in zip([0, *cuts], [*cuts, 10**6], strict=True):
        found.update(entries.select((context >= low) & (context < high)), LENGTH)
    return found


def strongest_by_definition(dense, unit, count):
    """The strongest slot of each context, the strongest contexts first; of equal ones the first."""
    strengths = np.abs(dense[:, unit])
    contexts = [
        max(range(start, start + LENGTH), key=lambda slot: (strengths[slot], -slot))
        for start in range(0, len(dense), LENGTH)
    ]
    firing = [slot for slot in contexts if strengths[slot] > 0]
    return sorted(firing, key=lambda slot: (-strengths[slot], slot))[:count]


def window_by_definition(dense, unit, slot):
    start = slot // LENGTH * LENGTH
    around = range(slot - WINDOW.before, slot + WINDOW.after + 1)
    return [abs(float(dense[at, unit])) if start <= at < start + LENGTH else 0.0 for at in around]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 29), max_size=4))
def test_the_strongest_contexts_are_found_with_their_windows(seed, cuts):
    entries, dense, _ = draw_entries(seed)
    found = collect(entries, sorted(cuts), top=4)
    for unit in range(UNITS):
        expected = strongest_by_definition(dense, unit, 4)
        held = [slot for slot in found.top.slots[unit].tolist() if slot >= 0]
        assert held == expected
        for place, slot in enumerate(held):
            assert found.top.values[unit, place] == pytest.approx(abs(dense[slot, unit]))
            np.testing.assert_allclose(
                found.top.windows[unit, place], window_by_definition(dense, unit, slot), rtol=1e-3
            )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 29), min_size=1, max_size=4))
def test_what_is_kept_does_not_depend_on_how_contexts_are_divided(seed, cuts):
    entries, _, _ = draw_entries(seed)
    at_once, in_parts = collect(entries, []), collect(entries, sorted(cuts))
    for name, array in at_once.state().items():
        if "mass" in name:
            np.testing.assert_allclose(array, in_parts.state()[name], rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(array, in_parts.state()[name], err_msg=name)


def test_each_bin_of_the_range_has_one_of_its_own_entries_drawn_at_random():
    entries, dense, _ = draw_entries(1, contexts=200)
    found = collect(entries, [50, 120])
    for unit in (0, 1, 4):
        strengths = np.abs(dense[:, unit])
        top = np.floor(2 * np.log2(strengths.max()))
        with np.errstate(divide="ignore"):
            bins = np.clip(top - np.floor(2 * np.log2(strengths)), 0, module.BINS - 1)
        for place, slot in enumerate(found.range.slots[unit].tolist()):
            mine = np.flatnonzero((bins == place) & (strengths > 0))
            assert slot in mine if len(mine) else slot == -1
            if len(mine):
                drawn = module._draw(mine, np.full(len(mine), unit))
                assert slot == mine[drawn.argmin()]
    assert (found.range.slots[3] == -1).all()


def test_random_contexts_are_drawn_from_all_entries_alike():
    """Over many units with the same 40 entries, each entry is drawn about equally often."""
    units, entries = 4000, 40
    slots, unit = np.tile(np.arange(entries), units), np.repeat(np.arange(units), entries)
    values = np.ones(units * entries, np.float32)
    zeros = np.zeros_like(slots)
    found = ContextCollector(units, drawn=4, window=WINDOW)
    found.update(Entries(slots, unit, values, zeros, zeros, zeros + entries), entries)
    counts = np.bincount(found.drawn.slots.ravel(), minlength=entries)
    assert counts.sum() == 4 * units
    assert abs(counts - 400).max() < 5 * np.sqrt(400)


def test_tokens_and_positions_are_counted():
    entries, dense, tokens = draw_entries(2)
    found = collect(entries, [7, 20])
    for unit in range(UNITS):
        strengths = np.abs(dense[:, unit]).astype(float)
        mass = np.bincount(tokens, strengths, minlength=VOCABULARY)
        held = found.tokens.tokens[unit]
        for place, token in enumerate(held[held >= 0]):
            assert found.tokens.mass[unit, place] == pytest.approx(mass[token])
            assert found.tokens.counts[unit, place] == ((tokens == token) & (strengths > 0)).sum()
        assert (held >= 0).sum() == (mass > 0).sum()
        assert (np.diff(found.tokens.mass[unit]) <= 1e-9).all()
        part = (np.arange(len(dense)) % LENGTH) * module.POSITIONS // LENGTH
        expected = np.bincount(part[strengths > 0], minlength=module.POSITIONS)
        np.testing.assert_array_equal(found.positions[unit], expected)
        assert found.fired[unit] == (strengths > 0).sum()
        assert found.largest[unit] == pytest.approx(strengths.max())
    assert not found.slack.any()


def test_of_too_many_tokens_a_sum_misses_at_most_the_slack(monkeypatch):
    monkeypatch.setattr(module, "TOKENS", 6)
    entries, dense, tokens = draw_entries(3, contexts=100)
    found = collect(entries, [20, 40, 60, 80])
    for unit in (0, 1, 2):
        mass = np.bincount(tokens, np.abs(dense[:, unit]), minlength=VOCABULARY)
        for token, known in zip(found.tokens.tokens[unit], found.tokens.mass[unit], strict=True):
            assert known <= mass[token] + 1e-6
            assert mass[token] - known <= found.slack[unit] + 1e-6
        others = np.delete(mass, found.tokens.tokens[unit])
        assert others.max() <= found.slack[unit] + 1e-6


def test_a_state_continues_where_it_was_taken_and_another_shape_is_refused():
    entries, _, _ = draw_entries(4)
    context = entries.starts // LENGTH
    whole = collect(entries, [10])
    first = ContextCollector(UNITS, window=WINDOW)
    first.update(entries.select(context < 10), LENGTH)
    second = ContextCollector(UNITS, window=WINDOW)
    second.restore({name: array.copy() for name, array in first.state().items()})
    second.update(entries.select(context >= 10), LENGTH)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, second.state()[name], err_msg=name)
    with pytest.raises(ValueError, match="the wrong shape"):
        ContextCollector(UNITS, top=3, window=WINDOW).restore(first.state())
