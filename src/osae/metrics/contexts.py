"""Where units fire: the contexts to show for each unit, its tokens and its positions, in one pass.

Shapes: E entries (a unit that fires on a token), K units, n contexts kept per unit, W tokens in a window.

Tokens are numbered ("slots") so that the tokens of one context are consecutive. Contexts are added whole.
Which contexts are kept depends neither on their order nor on how many are added at once. Memory depends on
the number of units, and on the number of entries added at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

BINS = 8  # bins of a unit's activation range: half an octave each, from the top; the last contains the rest
POSITIONS = 8  # number of equal parts of a context
TOKENS = 64  # candidates for the tokens that a unit fires on most
_PER_OCTAVE = 2
_EMPTY = -1


class Entries(NamedTuple):
    """Units that fire: where, how strongly, on which token, and where its context starts and stops."""

    slots: Int[np.ndarray, "E"]
    units: Int[np.ndarray, "E"]
    values: Float[np.ndarray, "E"]
    tokens: Int[np.ndarray, "E"]
    starts: Int[np.ndarray, "E"]
    stops: Int[np.ndarray, "E"]

    def select(self, chosen: np.ndarray) -> "Entries":
        """Return some of the entries, by mask or by index."""
        return Entries(*(part[chosen] for part in self))


@dataclass(frozen=True)
class Window:
    """The tokens of a context to keep before and after the token that a unit fires on."""

    before: int = 16
    after: int = 8

    @property
    def width(self) -> int:
        """The number of tokens, including the token that the unit fires on."""
        return self.before + 1 + self.after

    def slots(self, at: Int[np.ndarray, "E"]) -> Int[np.ndarray, "E W"]:
        """Return the slots of each window, including those outside the context."""
        return at[:, None] + np.arange(-self.before, self.after + 1)


class KeptContexts(NamedTuple):
    """Contexts kept for each unit: their slots (-1: none), strengths, and the unit's values in the window."""

    slots: Int[np.ndarray, "K n"]
    values: Float[np.ndarray, "K n"]
    windows: Float[np.ndarray, "K n W"]


class TokenTable(NamedTuple):
    """Tokens that each unit fires on (-1: none), with counts and total activations, largest total first."""

    tokens: Int[np.ndarray, "K n"]
    counts: Int[np.ndarray, "K n"]
    mass: Float[np.ndarray, "K n"]


class ContextCollector:
    """Collector of the contexts in which each of K units fires.

    It keeps the contexts with the strongest activations, one entry of each (`top`); an entry drawn at random
    from each bin of the unit's activation range (`BINS` of them); and entries drawn at random (`drawn`).
    `tokens` is exact if a unit fires on at most 64 different tokens. Otherwise, a token that is not in the
    table, or was temporarily dropped from it, lacks at most `slack` of its total.
    """

    def __init__(self, units: int, *, top: int = 12, drawn: int = 4, window: Window | None = None):
        if top < 1 or drawn < 0:
            raise ValueError(f"top={top}, drawn={drawn}: keep at least the top context.")
        self.units, self.window = units, window or Window()
        self.top, self.range, self.drawn = (self._make_shelf(count) for count in (top, BINS, drawn))
        self.fired = np.zeros(units, np.int64)
        self.mass = np.zeros(units, np.float64)
        self.largest = np.zeros(units, np.float32)
        self.positions = np.zeros((units, POSITIONS), np.int64)
        shape = (units, TOKENS)
        self.tokens = TokenTable(np.full(shape, _EMPTY), np.zeros(shape, np.int64), np.zeros(shape))
        self.slack = np.zeros(units, np.float64)

    def _make_shelf(self, count: int) -> KeptContexts:
        shape = (self.units, count)
        windows = np.zeros((*shape, self.window.width), np.float16)
        return KeptContexts(np.full(shape, _EMPTY), np.zeros(shape, np.float32), windows)

    def update(self, entries: Entries, longest: int) -> None:
        """Add the entries of whole contexts of at most `longest` tokens each."""
        if not len(entries.slots):
            return
        entries = entries._replace(values=np.abs(entries.values).astype(np.float32))
        units, values = entries.units.astype(np.int64), entries.values
        entries = entries._replace(units=units)
        self.fired += np.bincount(units, minlength=self.units)
        self.mass += np.bincount(units, values, minlength=self.units)
        np.maximum.at(self.largest, units, values)
        part = units * POSITIONS + (entries.slots - entries.starts) * POSITIONS // longest
        self.positions += np.bincount(part, minlength=self.units * POSITIONS).reshape(-1, POSITIONS)
        self.tokens = self._count_tokens(entries)
        self._keep_contexts(entries)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything collected so far, as arrays by name."""
        shelves = {"top": self.top, "range": self.range, "drawn": self.drawn, "token": self.tokens}
        found = {
            f"{name}_{key}": array for name, one in shelves.items() for key, array in one._asdict().items()
        }
        return found | {
            name: getattr(self, name) for name in ("fired", "mass", "largest", "positions", "slack")
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state; raise `ValueError` if it does not fit."""
        for name, array in self.state().items():
            held = state.get(name)
            if held is None or held.shape != array.shape or held.dtype != array.dtype:
                raise ValueError(f"{name!r} is missing or has the wrong shape.")
            array[...] = held

    # --- contexts -----------------------------------------------------------------------------------

    def _keep_contexts(self, entries: Entries) -> None:
        """Merge the entries into each shelf by its own rule."""
        lookup = _Lookup(entries, self.units)
        strong = entries.select(entries.values >= self.top.values[entries.units, -1])
        strong = _strongest_per_context(strong)
        self.top = self._merge(self.top, strong, lookup, _by_strength, bins=False)
        if self.drawn.slots.shape[1]:
            full = self.drawn.slots[:, -1] != _EMPTY
            limit = np.where(full, _draw(self.drawn.slots[:, -1], np.arange(self.units)), ~np.uint64(0))
            lucky = entries.select(_draw(entries.slots, entries.units) <= limit[entries.units])
            self.drawn = self._merge(self.drawn, lucky, lookup, _by_draw, bins=False)
        self.range = self._merge(self.range, self._spread(entries), lookup, _by_draw, bins=True)

    def _spread(self, entries: Entries) -> Entries:
        """Return the entries that may replace the entry kept in their bin."""
        held_units, held_places = np.nonzero(self.range.slots != _EMPTY)
        held_slots = self.range.slots[held_units, held_places]
        bins = self._bins(held_units, self.range.values[held_units, held_places])
        least = np.full((self.units, BINS), ~np.uint64(0))
        np.minimum.at(least, (held_units, bins), _draw(held_slots, held_units))
        own = self._bins(entries.units, entries.values)
        return entries.select(_draw(entries.slots, entries.units) <= least[entries.units, own])

    def _bins(self, units: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the bin of each value in its unit's range; edges are fixed, and bin 0 is the top one."""
        return np.clip(_octave(self.largest)[units] - _octave(values), 0, BINS - 1)

    def _merge(
        self, shelf: KeptContexts, entries: Entries, lookup: "_Lookup", rank, *, bins: bool
    ) -> KeptContexts:
        """Return the shelf with the best of its contexts and of the new entries; with `bins`, one per bin."""
        held_units, held_places = np.nonzero(shelf.slots != _EMPTY)
        units = np.concatenate([held_units, entries.units])
        slots = np.concatenate([shelf.slots[held_units, held_places], entries.slots])
        values = np.concatenate([shelf.values[held_units, held_places], entries.values])
        count = shelf.slots.shape[1]
        group = units * BINS + self._bins(units, values) if bins else units
        order = np.lexsort((slots, rank(slots, units, values), group))
        place = _rank_in_group(group[order])
        kept = place < (1 if bins else count)
        order, place = order[kept], place[kept]
        if bins:
            place = group[order] % BINS
        fresh = self._make_shelf(count)
        at = (units[order], place)
        fresh.slots[at], fresh.values[at] = slots[order], values[order]
        old = order < len(held_units)
        fresh.windows[at[0][old], at[1][old]] = shelf.windows[held_units[order[old]], held_places[order[old]]]
        new = entries.select(order[~old] - len(held_units))
        fresh.windows[at[0][~old], at[1][~old]] = lookup.windows(new, self.window)
        return fresh

    # --- tokens -------------------------------------------------------------------------------------

    def _count_tokens(self, entries: Entries) -> TokenTable:
        """Return the table with the entries added, and add any total that may have been lost to the slack."""
        held_units, held_places = np.nonzero(self.tokens.tokens != _EMPTY)
        held = (part[held_units, held_places] for part in self.tokens)
        added = (entries.tokens, np.ones(len(entries.units), np.int64), entries.values)
        tokens, counts, mass = (np.concatenate(both) for both in zip(held, added, strict=True))
        units = np.concatenate([held_units, entries.units])
        units, tokens, counts, mass = _sum_equal(units, tokens, counts, mass)
        order = np.lexsort((tokens, -mass, units))
        place = _rank_in_group(units[order])
        kept, dropped = order[place < TOKENS], order[place >= TOKENS]
        lost = np.zeros(self.units)
        np.maximum.at(lost, units[dropped], mass[dropped])
        self.slack += lost
        shape = self.tokens.tokens.shape
        table = TokenTable(np.full(shape, _EMPTY), np.zeros(shape, np.int64), np.zeros(shape))
        at = (units[kept], place[place < TOKENS])
        for part, new in zip(table, (tokens, counts, mass), strict=True):
            part[at] = new[kept]
        return table


class _Lookup:
    """The values of units at slots, indexed by both."""

    def __init__(self, entries: Entries, units: int):
        keys = entries.slots * units + entries.units
        order = np.argsort(keys)
        self.units, self.keys, self.values = units, keys[order], entries.values[order]

    def windows(self, entries: Entries, window: Window) -> Float[np.ndarray, "E W"]:
        """Return the values of each entry's unit in the window around it; zero outside the context."""
        if not len(entries.slots):
            return np.zeros((0, window.width), np.float16)
        slots = window.slots(entries.slots)
        inside = (slots >= entries.starts[:, None]) & (slots < entries.stops[:, None])
        keys = slots * self.units + entries.units[:, None]
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = inside & (self.keys[place] == keys)
        return np.where(found, self.values[place], 0).clip(max=65504).astype(np.float16)


def _strongest_per_context(entries: Entries) -> Entries:
    """Return the strongest entry of each unit and context; the first one in case of ties."""
    order = np.lexsort((entries.slots, -entries.values, entries.starts, entries.units))
    units, starts = entries.units[order], entries.starts[order]
    first = np.ones(len(order), bool)
    first[1:] = (units[1:] != units[:-1]) | (starts[1:] != starts[:-1])
    return entries.select(order[first])


def _by_strength(slots: np.ndarray, units: np.ndarray, values: np.ndarray) -> np.ndarray:
    return -values


def _by_draw(slots: np.ndarray, units: np.ndarray, values: np.ndarray) -> np.ndarray:
    return _draw(slots, units)


def _draw(slots: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return a random number for each entry that depends only on its slot and unit (SplitMix64)."""
    with np.errstate(over="ignore"):
        bits = slots.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += (units.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1342543DE82EF95)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _octave(values: np.ndarray) -> np.ndarray:
    """Return the index of the half octave that each value lies in."""
    with np.errstate(divide="ignore"):
        return np.floor(np.log2(values.astype(np.float64)) * _PER_OCTAVE).clip(-4000, 4000).astype(np.int64)


def _rank_in_group(groups: np.ndarray) -> np.ndarray:
    """Return the position of each item within its group; groups must be contiguous."""
    if not len(groups):
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))


def _sum_equal(
    units: np.ndarray, tokens: np.ndarray, counts: np.ndarray, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each pair of unit and token once, with the sums of its counts and masses."""
    keys = units * (int(tokens.max()) + 1) + tokens
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0]))
    first = order[starts]
    total = np.add.reduceat(mass[order].astype(np.float64), starts)
    return units[first], tokens[first], np.add.reduceat(counts[order], starts), total
