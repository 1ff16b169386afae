"""The unit browser's data: a list of all units with their scores, and contexts in pieces.

Does not need torch.

Shapes: K units, n contexts of each, W tokens in a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osae.context_files import ContextFiles
from osae.measures import Measure, keys_of, measure
from osae.report.packing import Pieces
from osae.results import Comparison
from osae.results.base import labels
from osae.results.units import Partners, SAEUnits

PER_PIECE = 128  # units whose contexts are loaded at once
LISTED = 8  # tokens by which the search finds a unit
LEVELS = 35  # shades of an activation, each written as one character


@dataclass(frozen=True, eq=False)
class Browser:
    """What the unit browser loads first, and the pieces it loads when a unit is opened."""

    index: Mapping[str, Any]
    pieces: Pieces


def make_browser(comparison: Comparison | None, contexts: Sequence[ContextFiles]) -> Browser | None:
    """Return the browser for the SAEs that were compared or have contexts; None without units."""
    subjects = _list_saes(comparison, contexts)
    if not subjects:
        return None
    vocabulary = _Vocabulary([one.contexts for one in subjects if one.contexts])
    splits = comparison.units.splits if comparison and comparison.units else ()
    index = {
        "saes": [one.describe(vocabulary) for one in subjects],
        "splits": [vars(split) for split in splits],
        "vocabulary": vocabulary.texts,
    }
    return Browser(index, _cut(subjects, vocabulary))


def _list_saes(comparison: Comparison | None, contexts: Sequence[ContextFiles]) -> list["_Subject"]:
    """Return the SAEs that were compared, in their order, then those of which contexts alone are known."""
    known = {one.about.sae.sha256: one for one in contexts}
    compared = [] if comparison is None else _list_compared(comparison, known)
    others = [] if comparison is None else comparison.saes
    alone = [one for digest, one in known.items() if digest not in {sae.sha256 for sae in others}]
    names = labels([*(sae.path for sae in others), *(one.about.sae.path for one in alone)])[len(others) :]
    return [
        *compared,
        *(_Subject(name, one.about.sae.units, one) for name, one in zip(names, alone, strict=True)),
    ]


def _list_compared(comparison: Comparison, known: Mapping[str, ContextFiles]) -> list["_Subject"]:
    tables = comparison.units.saes if comparison.units else [None] * len(comparison.saes)
    return [
        _Subject(name, sae.units, known.get(sae.sha256), table, _matched(comparison, place))
        for place, (name, sae, table) in enumerate(
            zip(comparison.names, comparison.saes, tables, strict=True)
        )
    ]


def _matched(comparison: Comparison, place: int) -> dict[int, dict[int, tuple[int, float]]]:
    """Return each unit's match in the other SAEs, for files without a table of units."""
    found: dict[int, dict[int, tuple[int, float]]] = {}
    for pair in comparison.pairs if comparison.units is None else ():
        if place == pair.a:
            found[pair.b] = {left: (right, cosine) for left, right, cosine in pair.matching.pairs}
        elif place == pair.b:
            found[pair.a] = {right: (left, cosine) for left, right, cosine in pair.matching.pairs}
    return found


# --- the list ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Subject:
    """One SAE: its scores and matches from a comparison, and its contexts, if known."""

    name: str
    units: int
    contexts: ContextFiles | None
    table: SAEUnits | None = None
    matched: Mapping[int, Mapping[int, tuple[int, float]]] | None = None

    def describe(self, vocabulary: "_Vocabulary") -> dict[str, Any]:
        """Return the data for the browser's list."""
        unit = list(self.table.unit) if self.table else list(range(self.units))
        scores = self._scores(unit)
        return {
            "name": self.name,
            "total": self.units,
            "unit": unit,
            "columns": [_column(measure(key)) for key in scores],
            "scores": scores,
            "partners": self._partners(unit),
            "tokens": self._tokens(unit, vocabulary),
            "contexts": self.contexts is not None,
            "text": None if self.contexts is None else self.contexts.about.activations.sha256[:16],
            "before": 0 if self.contexts is None else self.contexts.about.options.before,
            "per_piece": PER_PIECE,
        }

    def _tokens(self, unit: Sequence[int], vocabulary: "_Vocabulary") -> list[list[int]] | None:
        """Return the tokens with which a unit is listed and found."""
        if self.contexts is None:
            return None
        numbers = vocabulary.numbers(self.contexts, self.contexts.arrays["heavy"][unit][:, :LISTED])
        return [[number for number in row if number >= 0] for row in numbers.tolist()]

    def _scores(self, unit: Sequence[int]) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        if self.table:
            ordered = [key for key in keys_of("unit_score") if key in self.table.measures]
            found = {key: _round(self.table.measures[key]) for key in ordered}
            found = {key: values for key, values in found.items() if any(v is not None for v in values)}
        elif self.matched:
            found = {"matched_cosine": _round([self._mean_cosine(number) for number in unit])}
        if self.contexts:
            arrays, rows = self.contexts.arrays, self.contexts.about.activations.rows
            fired = arrays["fired"][unit]
            own = {
                "frequency": fired / rows,
                "mean_activation": arrays["mass"][unit] / np.maximum(fired, 1),
                "largest": arrays["largest"][unit],
            }
            found |= {key: _round(values.tolist()) for key, values in own.items() if key not in found}
        return found

    def _mean_cosine(self, number: int) -> float | None:
        """Return the mean cosine of a unit with its matches."""
        cosines = [by_unit[number][1] for by_unit in (self.matched or {}).values() if number in by_unit]
        return sum(cosines) / len(cosines) if cosines else None

    def _partners(self, unit: Sequence[int]) -> list[dict[str, Any]]:
        if self.table:
            return [_describe_partners(each) for each in self.table.partners]
        nothing = (None, 0.0)
        return [
            {
                "sae": other,
                "unit": [by_unit.get(number, nothing)[0] for number in unit],
                "cosine": [round(by_unit.get(number, nothing)[1], 4) for number in unit],
            }
            for other, by_unit in (self.matched or {}).items()
        ]


def _describe_partners(partners: Partners) -> dict[str, Any]:
    return {
        "sae": partners.sae,
        "unit": list(partners.nearest),
        "cosine": _round(partners.nearest_cosine),
        "found": list(map(int, partners.found)),
        "correlation": None if partners.correlation is None else _round(partners.correlation),
    }


def _column(entry: Measure) -> dict[str, Any]:
    return {"key": entry.key, "title": entry.title, "meaning": entry.meaning} | {
        "format": entry.format,
        "digits": entry.digits,
    }


def _round(values: Sequence[float | None]) -> list[float | None]:
    """Return the numbers with five significant digits, which take half of the space."""
    return [None if value is None or value != value else float(f"{value:.5g}") for value in values]


class _Vocabulary:
    """The texts of the tokens in all contexts, each stored once, by number."""

    def __init__(self, contexts: Sequence[ContextFiles]):
        self._place: dict[str, int] = {}
        self._tables = {id(one): self._number(one) for one in contexts}

    def _number(self, one: ContextFiles) -> np.ndarray:
        """Return the number of each token id; -1, for no token, is kept."""
        ids = one.arrays["token_ids"]
        table = np.full(int(ids.max(initial=-1)) + 2, -1, np.int64)
        texts = [one.about.tokens.get(str(number), f"#{number}") for number in ids.tolist()]
        table[ids] = [self._place.setdefault(text, len(self._place)) for text in texts]
        return table

    @property
    def texts(self) -> list[str]:
        """The text of each number."""
        return list(self._place)

    def numbers(self, one: ContextFiles, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of token ids."""
        return self._tables[id(one)][ids]


# --- the pieces -------------------------------------------------------------------------------------


def _cut(subjects: Sequence[_Subject], vocabulary: _Vocabulary) -> Iterator[tuple[str, Any]]:
    """Yield the contexts of all units, a few units at a time."""
    for place, one in enumerate(subjects):
        if one.contexts is None:
            continue
        for number, start in enumerate(range(0, one.units, PER_PIECE)):
            stop = min(start + PER_PIECE, one.units)
            yield f"units-{place}-{number}", _describe_units(one.contexts, vocabulary, start, stop)


def _describe_units(
    one: ContextFiles, vocabulary: _Vocabulary, start: int, stop: int
) -> list[dict[str, Any]]:
    """Return contexts, tokens, positions and logit lens of units `start` to `stop` (excluded)."""
    options, arrays = one.about.options, {key: array[start:stop] for key, array in one.arrays.items()}
    kinds = np.repeat([0, 1, 2], [options.top, options.bins, options.random]).tolist()
    tokens = vocabulary.numbers(one, arrays["tokens"]).tolist()
    levels = _shade(arrays["activations"].astype(np.float32), arrays["largest"])
    numbers = [arrays[key].tolist() for key in ("strengths", "documents", "positions")]
    heavy, positions = _describe_tokens(one, vocabulary, arrays), _share_positions(one, arrays)
    lens = _describe_lens(one, vocabulary, arrays)
    found = []
    for unit in range(stop - start):
        strengths, documents, places = (column[unit] for column in numbers)
        held = [
            [kinds[i], float(f"{strength:.4g}"), documents[i], places[i], tokens[unit][i], levels[unit][i]]
            for i, strength in enumerate(strengths)
            if strength > 0
        ]
        about = {"contexts": held, "tokens": heavy[unit], "positions": positions[unit]}
        found.append(about | ({"lens": lens[unit]} if lens else {}))
    return found


def _shade(values: np.ndarray, largest: np.ndarray) -> list[list[str]]:
    """Return the activations of each window as one character each, 0 to z; active tokens are at least 1."""
    share = values / np.maximum(largest, 1e-30)[:, None, None]
    levels = np.where(values > 0, np.clip(np.rint(share * LEVELS), 1, LEVELS), 0).astype(np.uint8)
    letters = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", np.uint8)[levels]
    return [[row.tobytes().decode("ascii") for row in unit] for unit in letters]


def _describe_tokens(
    one: ContextFiles, vocabulary: _Vocabulary, arrays: Mapping[str, np.ndarray]
) -> list[Any]:
    """Return, for each unit, its tokens with counts of its firing, its shares, and their total counts."""
    ids = arrays["heavy"]
    totals = np.zeros(int(one.arrays["token_ids"].max(initial=-1)) + 2, np.int64)
    totals[one.arrays["token_ids"]] = one.arrays["token_totals"]
    share = arrays["heavy_mass"] / np.maximum(arrays["mass"], 1e-30)[:, None]
    columns = (vocabulary.numbers(one, ids), arrays["heavy_counts"], share.round(4), totals[ids])
    return [
        [
            list(entry)
            for entry in zip(*(column[unit].tolist() for column in columns), strict=True)
            if entry[0] >= 0
        ]
        for unit in range(len(ids))
    ]


def _share_positions(one: ContextFiles, arrays: Mapping[str, np.ndarray]) -> list[list[float]]:
    """Return the share of the tokens in each part of a context on which the unit fires."""
    share = arrays["position_counts"] / np.maximum(one.arrays["position_totals"], 1)
    return [[float(f"{value:.3g}") for value in row] for row in share.tolist()]


def _describe_lens(one: ContextFiles, vocabulary: _Vocabulary, arrays: Mapping[str, np.ndarray]) -> list[Any]:
    if "promoted" not in one.arrays:
        return []
    ends = (vocabulary.numbers(one, arrays[key]).tolist() for key in ("promoted", "suppressed"))
    return [list(both) for both in zip(*ends, strict=True)]
