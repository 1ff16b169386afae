"""How consistent SAEs are, whoever trained them: every pair measured, beside its chance level.

Shapes: K, Ka, Kb units, d width, B samples in a batch.

The result is a plain dict: docs/compare-json.md says what its fields are, schemas/compare.schema.json checks
them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics
from osae.data.shards import Shards, is_shards
from osae.interop import Loaded, load
from osae.interop.bare import Orientation
from osae.model import SAE
from osae.versions import versions

SCHEMA = 1
ABOVE = (0.5, 0.7, 0.9)  # cosines above which the share of matched units is given
BATCH = 1024  # activations encoded at once: the pre-activations of 65,536 units then take 256 MB
MEASURES = ("stability", "orderedness", "stability_of_full", "orderedness_of_full")

_HELD_AT_ONCE = 2 * 1024**3  # bytes of correlations, of as many pairs as fit; one pair in any case
_ONE_DRAW_FROM = 4096  # above so many units, one draw of random dictionaries says enough

Couple = tuple[int, int]
Progress = Callable[[int, int, str], None]
SAELike = Loaded | Path | str


def compare(
    saes: Sequence[SAELike],
    *,
    prefixes: Sequence[int] | None = None,
    absolute: bool = False,
    on: Literal["decoder", "encoder"] = "decoder",
    dead: Literal["keep", "drop"] = "keep",
    activations: Shards | Path | str | None = None,
    chance_draws: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What there is to say about every pair of the SAEs and about all pairs together, as a plain dict.

    With `dead="drop"`, units without a direction (zero rows), and units that never speak on the activations,
    are left out before anything is measured; with "keep" a zero row has cosine 0 with every other. `prefixes`
    are chosen unless given. `chance_draws` pairs of random dictionaries give each chance level: None chooses,
    0 leaves it out. `progress(done, total, text)` is called after each step.
    """
    _check_choices(saes, on, dead, chance_draws)
    loaded = [one if isinstance(one, Loaded) else opened(one) for one in saes]
    rows = [_rows(one, on) for one in loaded]
    _check_widths(loaded, rows)
    shards = Shards(activations) if isinstance(activations, Path | str) else activations
    couples = list(combinations(range(len(loaded)), 2))
    chance = _Chance(rows[0].shape[1], absolute, chance_draws)
    steps = _Steps(progress)

    watched = None if shards is None else _watch(loaded, rows, shards, couples, dead, steps)
    sides = [_side(one, None if watched is None else watched.spoke[i], dead) for i, one in enumerate(rows)]
    lengths = {couple: _lengths(prefixes, sides, couple) for couple in couples}
    steps.total += sum(1 + len(chosen) for chosen in lengths.values())
    with _one_torch_thread():
        pairs = [_pair(sides, couple, lengths[couple], chance, steps) for couple in couples]
    for couple, pair in zip(couples, pairs, strict=True):
        pair["stream"] = None if watched is None else watched.streams[couple]
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "options": {
            "prefixes": "auto" if prefixes is None else list(prefixes),
            "absolute": absolute,
            "on": on,
            "dead": dead,
            "chance_draws": "auto" if chance_draws is None else chance_draws,
        },
        "provenance": {"versions": versions()},
        "activations": None if shards is None else shards.provenance(),
        "saes": [_about(one, sides[i], watched, i) for i, one in enumerate(loaded)],
        "pairs": pairs,
        "summary": _summary(pairs),
    }


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """One thread for torch, whose share of a matching is small: waiting for others would take longer.

    The large products are numpy's, which keeps its threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Steps:
    """Counts steps for the progress; `total` grows as more becomes known."""

    progress: Progress | None
    total: int = 0
    done: int = 0

    def __call__(self, text: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done), text)


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows of one SAE that take part, `units` their numbers; `zero` the units without a direction."""

    rows: Float[Tensor, "n d"]
    units: Int[Tensor, "n"]
    zero: list[int]


def _check_choices(saes: Sequence[SAELike], on: str, dead: str, chance_draws: int | None) -> None:
    if isinstance(saes, str | Path) or len(saes) < 2:
        raise ValueError("one SAE is nothing to compare: give at least two.")
    if on not in ("decoder", "encoder"):
        raise ValueError(f"on={on!r}: give 'decoder' or 'encoder'.")
    if dead not in ("keep", "drop"):
        raise ValueError(f"dead={dead!r}: give 'keep' or 'drop'.")
    if chance_draws is not None and chance_draws < 0:
        raise ValueError(f"chance_draws={chance_draws}: give 0 for none, or a number of draws.")


def _check_widths(loaded: Sequence[Loaded], rows: Sequence[Tensor]) -> None:
    for one, matrix in zip(loaded, rows, strict=True):
        if matrix.shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"{one.path} has width {matrix.shape[1]} and {loaded[0].path} has {rows[0].shape[1]}: "
                "compare SAEs of the same activations."
            )


def _rows(one: Loaded, on: str) -> Float[Tensor, "K d"]:
    """The directions that are compared, one row per unit."""
    rows = one.decoder if on == "decoder" else one.encoder
    if rows is None:
        raise ValueError(f"{one.path} has no encoder: compare decoders.")
    return rows


def _side(rows: Float[Tensor, "K d"], spoke: Bool[Tensor, "K"] | None, dead: str) -> _Side:
    kept = _kept(rows, spoke, dead)
    zero = (rows == 0).all(1).nonzero().flatten().tolist()
    return _Side(rows[kept], kept.nonzero().flatten(), zero)


def _kept(rows: Float[Tensor, "K d"], spoke: Bool[Tensor, "K"] | None, dead: str) -> Bool[Tensor, "K"]:
    """Which units take part."""
    if dead == "keep":
        return torch.ones(len(rows), dtype=torch.bool)
    kept = (rows != 0).any(1) if spoke is None else (rows != 0).any(1) & spoke
    if not bool(kept.any()):
        raise ValueError(f"all {len(rows)} units of an SAE are dead: nothing is left to compare, keep them.")
    return kept


def _lengths(prefixes: Sequence[int] | None, sides: Sequence[_Side], couple: Couple) -> list[int]:
    """The prefix lengths of a pair: the given ones that one of its SAEs reaches, or the usual ones."""
    a, b = (len(sides[i].units) for i in couple)
    if prefixes is None:
        return list(metrics.default_prefixes(min(a, b)))
    longest = max(len(side.units) for side in sides)
    for length in prefixes:
        if not 1 <= length <= longest:
            raise ValueError(f"prefix length {length}: give 1 to {longest}, the number of units.")
    return sorted({length for length in prefixes if length <= max(a, b)})


def _pair(
    sides: Sequence[_Side], couple: Couple, lengths: Sequence[int], chance: "_Chance", steps: _Steps
) -> dict[str, Any]:
    """All measures of one pair that need no activations."""
    left, right = sides[couple[0]], sides[couple[1]]
    a, b = _with_directions(left.rows, right.rows)
    name = f"{couple[0]} and {couple[1]}"
    whole = metrics.consistency(a, b, absolute=chance.absolute)
    level = chance(len(a), len(b))
    steps(f"{name} matched")
    full = whole.matching
    found = []
    for length in lengths:
        (prefix,) = metrics.prefix_consistency(a, b, [length], absolute=chance.absolute, full=full)
        numbers = {key: _number(getattr(prefix, key)) for key in MEASURES}
        found.append(
            {"length": length, **numbers, "chance": chance(min(length, len(a)), min(length, len(b)))}
        )
        steps(f"{name}, first {length}")
    partners = zip(
        left.units[full.left].tolist(),
        right.units[full.right].tolist(),
        full.similarity.tolist(),
        strict=True,
    )
    return {
        "a": couple[0],
        "b": couple[1],
        "stability": whole.stability,
        "orderedness": whole.orderedness,
        "chance": level,
        "above": {str(least): float((full.similarity > least).double().mean()) for least in ABOVE},
        "prefixes": found,
        "matching": {"optimal": full.optimal, "gap": full.gap, "pairs": [list(pair) for pair in partners]},
    }


def _with_directions(a: Float[Tensor, "Ka d"], b: Float[Tensor, "Kb d"]) -> tuple[Tensor, Tensor]:
    """The same rows, zero rows turned towards a dimension of their own side: cosine 0 with all others."""
    zero_a, zero_b = ((side == 0).all(1, keepdim=True) for side in (a, b))
    if not bool(zero_a.any() or zero_b.any()):
        return a, b
    no_a, no_b = torch.zeros_like(a[:, :1]), torch.zeros_like(b[:, :1])
    return torch.cat([a, zero_a.to(a.dtype), no_a], 1), torch.cat([b, no_b, zero_b.to(b.dtype)], 1)


class _Chance:
    """The chance level by numbers of units, each computed once; None if no draws are asked for."""

    def __init__(self, width: int, absolute: bool, draws: int | None):
        self.width, self.absolute, self.draws = width, absolute, draws
        self._known: dict[tuple[int, int], dict[str, Any]] = {}

    def __call__(self, units_a: int, units_b: int) -> dict[str, Any] | None:
        if self.draws == 0:
            return None
        shape = min(units_a, units_b), max(units_a, units_b)
        if shape not in self._known:
            draws = 1 if self.draws is None and shape[1] > _ONE_DRAW_FROM else self.draws
            level = metrics.chance_level(*shape, self.width, draws=draws, absolute=self.absolute)
            self._known[shape] = {key: _number(value) for key, value in level._asdict().items()}
        return self._known[shape]


@dataclass(frozen=True, eq=False)
class _Watched:
    """What the activations show: who spoke and how well each SAE rebuilds, and the pairs' streams."""

    spoke: dict[int, Bool[Tensor, "K"]]
    rebuilt: dict[int, metrics.ReconstructionResult]
    streams: dict[Couple, dict[str, Any]]


@torch.no_grad()
def _watch(
    loaded: Sequence[Loaded],
    rows: Sequence[Tensor],
    shards: Shards,
    couples: Sequence[Couple],
    dead: str,
    steps: _Steps,
) -> _Watched:
    """One pass over the activations for as many pairs as fit into memory; as many passes as that takes."""
    saes = [runnable(one, shards) for one in loaded]
    watched = _Watched({}, {}, {})
    groups = list(_groups(couples, [one.units for one in loaded]))
    steps.total += len(groups) * -(-shards.rows // BATCH)
    for group in groups:
        involved = sorted({i for couple in group for i in couple})
        rebuilding = {i: metrics.Reconstruction(loaded[i].units) for i in involved if i not in watched.spoke}
        streams = {(i, j): metrics.StreamCorrelation(loaded[i].units, loaded[j].units) for i, j in group}
        for x in shards.batches(BATCH):
            codes = {i: saes[i].encode(x) for i in involved}
            for i, measure in rebuilding.items():
                measure.update(x, saes[i].decode(codes[i]), *codes[i])
            for (i, j), stream in streams.items():
                stream.update(*codes[i], *codes[j])
            steps("activations")
        for i, measure in rebuilding.items():
            watched.spoke[i], watched.rebuilt[i] = measure.spoke, measure.result()
        for (i, j), stream in streams.items():
            left, right = (_kept(rows[end], watched.spoke[end], dead) for end in (i, j))
            both = metrics.consistency_from(metrics.match(stream.similarity()[left][:, right]))
            watched.streams[i, j] = {"stability": both.stability, "orderedness": both.orderedness}
    return watched


def _groups(couples: Sequence[Couple], units: Sequence[int]) -> Iterator[list[Couple]]:
    """The pairs in groups whose correlations, in double precision, fit into memory together."""
    group, held = [], 0
    for i, j in couples:
        size = 8 * units[i] * units[j]
        if group and held + size > _HELD_AT_ONCE:
            yield group
            group, held = [], 0
        group.append((i, j))
        held += size
    yield group


def opened(path: Path | str, *, orientation: Orientation | None = None) -> Loaded:
    """The SAE at the path; refused if activations lie there, which would pass for a bare decoder."""
    if is_shards(path):
        raise ValueError(f"{path} holds activations: name an SAE here.")
    return load(path, orientation=orientation)


def runnable(one: Loaded, shards: Shards) -> SAE:
    """The SAE itself, refused if it cannot be run on these activations."""
    if one.sae is None:
        raise ValueError(f"{one.path} cannot be run on activations: {one.notes[0]}")
    if one.sae.config.width != shards.width:
        raise ValueError(
            f"{one.path} has width {one.sae.config.width}, and {shards.path} has {shards.width}: give the "
            "activations that it was trained on."
        )
    return one.sae


def about(one: Loaded) -> dict[str, Any]:
    """Which SAE this is."""
    return {
        "path": one.path,
        "format": one.format,
        "sha256": one.sha256,
        "units": one.units,
        "width": one.width,
        "sparsifier": None if one.sae is None else str(one.sae.config.sparsifier),
        "notes": one.notes,
    }


def _about(one: Loaded, side: _Side, watched: _Watched | None, index: int) -> dict[str, Any]:
    """Which SAE this is, which of its units are dead, and how well it rebuilds the activations."""
    dead, rebuilt = None, None
    if watched is not None:
        dead = (~watched.spoke[index]).nonzero().flatten().tolist()
        numbers = watched.rebuilt[index]._asdict()
        rebuilt = {key: _number(numbers[key]) for key in ("mse", "explained_variance", "l0", "samples")}
    return about(one) | {
        "compared": len(side.units),
        "zero_units": side.zero,
        "dead_units": dead,
        "reconstruction": rebuilt,
    }


def _summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the pairs, with intervals from a bootstrap over the SAEs."""
    lengths = sorted({prefix["length"] for pair in pairs for prefix in pair["prefixes"]})
    at = {
        length: [
            (pair, prefix) for pair in pairs for prefix in pair["prefixes"] if prefix["length"] == length
        ]
        for length in lengths
    }
    return {
        "pairs": len(pairs),
        "stability": _interval((pair, pair["stability"]) for pair in pairs),
        "orderedness": _interval((pair, pair["orderedness"]) for pair in pairs),
        "above": {key: _interval((pair, pair["above"][key]) for pair in pairs) for key in map(str, ABOVE)},
        "stream_stability": _interval((p, p["stream"] and p["stream"]["stability"]) for p in pairs),
        "stream_orderedness": _interval((p, p["stream"] and p["stream"]["orderedness"]) for p in pairs),
        "prefixes": [
            {"length": length}
            | {key: _interval((pair, prefix[key]) for pair, prefix in at[length]) for key in MEASURES}
            for length in lengths
        ],
    }


def _interval(values: Iterable[tuple[dict[str, Any], float | None]]) -> dict[str, float | None] | None:
    """Mean, spread and interval over pairs; None without values. One pair alone has no spread."""
    known = {(pair["a"], pair["b"]): value for pair, value in values if value is not None}
    if not known:
        return None
    if len(known) == 1:
        return {"mean": next(iter(known.values())), "std": None, "low": None, "high": None}
    return metrics.pair_interval(known)._asdict()


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
