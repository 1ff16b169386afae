"""How consistent SAEs are, whoever trained them: every pair measured, beside its chance level.

Shapes: K, Ka, Kb units, d width.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from math import isfinite, prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics, passes
from osae.interop import Loaded
from osae.interop.bare import Orientation
from osae.metrics.assignment import prepare_matching
from osae.progress import Progress, Steps
from osae.results.base import Interval
from osae.results.comparison import (
    ChanceLevel,
    ComparedSAE,
    Comparison,
    ComparisonOptions,
    MatchingResult,
    PairResult,
    PrefixResult,
    PrefixSummary,
    Summary,
)
from osae.results.subject import Reconstruction
from osae.studies.pairs import PAIR_MEASURES, PREFIX_MEASURES, PairView, PrefixView
from osae.studies.subjects import (
    BATCH,
    Data,
    DataLike,
    Subject,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    open_rows,
    open_subjects,
    own_provenance,
    subject_fields,
)

_HELD_AT_ONCE = 2 * 1024**3  # bytes of correlations, of as many pairs as fit; one pair in any case
_CHANCE_UNITS = 1024  # units drawn for a chance level by default, in 1 to 8 draws

Couple = tuple[int, int]
On = Literal["decoder", "encoder"]
Dead = Literal["keep", "drop"]


def compare(
    subjects: Subject | Sequence[Subject],
    *,
    data: DataLike | None = None,
    prefixes: Sequence[int] | None = None,
    absolute: bool = False,
    on: On = "decoder",
    dead: Dead = "keep",
    chance_draws: int | None = None,
    orientation: Orientation | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return how consistent every pair of the SAEs is, and all pairs together.

    Args:
        subjects: SAEs as paths, `SAE`s, loaded files, or decoders as torch tensors or numpy arrays; a run
            folder stands for all SAEs that it finished.
        data: activations, as a path, `Shards` or a matrix (rows, width); they add measures of what units do.
        prefixes: prefix lengths; None takes powers of two.
        absolute: match and measure by the absolute value of the cosine.
        on: compare the rows of the decoder or of the encoder.
        dead: "drop" leaves out units without a direction, and units that never fire on the data, before
            anything is measured; with "keep", a zero row has cosine 0 with every other row.
        chance_draws: pairs of random dictionaries for each chance level; None chooses, 0 leaves them out.
        orientation: where the atoms of bare decoders are, in "rows" or in "columns".
        progress: called with (done, total, text) after each step.
    """
    _check_options(on, dead, chance_draws)
    loaded = open_subjects(subjects, orientation)
    rows = [_rows_of(one, on) for one in loaded]
    _check_subjects(loaded, rows)
    _check_prefixes(prefixes, rows)
    options = ComparisonOptions(
        prefixes="auto" if prefixes is None else tuple(prefixes),
        absolute=absolute,
        on=on,
        dead=dead,
        chance_draws="auto" if chance_draws is None else chance_draws,
    )
    steps = Steps(progress)
    activations = None if data is None else open_rows(data)
    seen = None if activations is None else _observe(loaded, rows, activations, dead, steps)
    sides = [_side(one, None if seen is None else seen.fired[i], dead) for i, one in enumerate(rows)]
    pairs = _measure_pairs(sides, options, seen, steps)
    saes = tuple(_describe(one, sides[i], seen, i) for i, one in enumerate(loaded))
    return Comparison(
        options=options,
        provenance=describe_run(),
        activations=None if activations is None else describe_rows(activations),
        saes=saes,
        pairs=pairs,
        means=_summarise(pairs),
        groups=_group_means(saes, pairs),
    )


# --- checks -----------------------------------------------------------------------------------------


def _check_options(on: str, dead: str, chance_draws: int | None) -> None:
    """Raise `ValueError` if an option has no meaning, before anything is read."""
    if on not in ("decoder", "encoder"):
        raise ValueError(f"on={on!r}: give 'decoder' or 'encoder'.")
    if dead not in ("keep", "drop"):
        raise ValueError(f"dead={dead!r}: give 'keep' or 'drop'.")
    if chance_draws is not None and chance_draws < 0:
        raise ValueError(f"chance_draws={chance_draws}: give 0 for none, or a number of draws.")


def _check_subjects(loaded: Sequence[Loaded], rows: Sequence[Tensor]) -> None:
    """Raise `ValueError` unless there are at least two SAEs, all of the same width."""
    if len(loaded) < 2:
        found = f"{loaded[0].path} is a single SAE" if loaded else "no SAE was given"
        raise ValueError(f"{found}: give at least two to compare.")
    for one, matrix in zip(loaded, rows, strict=True):
        if matrix.shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"{one.path} has width {matrix.shape[1]} and {loaded[0].path} has {rows[0].shape[1]}: "
                "compare SAEs of the same activations."
            )


def _check_prefixes(prefixes: Sequence[int] | None, rows: Sequence[Tensor]) -> None:
    """Raise `ValueError` if no SAE has as many units as a prefix."""
    longest = max(map(len, rows))
    for length in prefixes or ():
        if not 1 <= length <= longest:
            raise ValueError(f"prefix length {length}: give 1 to {longest}, the number of units.")


# --- the units that take part -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows of one SAE that take part, and the numbers of their units; `zero` have no direction."""

    rows: Float[Tensor, "n d"]
    units: Int[Tensor, "n"]
    zero: tuple[int, ...]


def _rows_of(one: Loaded, on: str) -> Float[Tensor, "K d"]:
    """Return the directions that are compared, one row per unit."""
    rows = one.decoder if on == "decoder" else one.encoder
    if rows is None:
        raise ValueError(f"{one.path} has no encoder: compare decoders.")
    return rows


def _side(rows: Float[Tensor, "K d"], fired: Bool[Tensor, "K"] | None, dead: str) -> _Side:
    kept = _select(rows, fired, dead)
    zero = (rows == 0).all(1).nonzero().flatten().tolist()
    return _Side(rows[kept], kept.nonzero().flatten(), tuple(zero))


def _select(rows: Float[Tensor, "K d"], fired: Bool[Tensor, "K"] | None, dead: str) -> Bool[Tensor, "K"]:
    """Return which units take part."""
    if dead == "keep":
        return torch.ones(len(rows), dtype=torch.bool)
    kept = (rows != 0).any(1) if fired is None else (rows != 0).any(1) & fired
    if not bool(kept.any()):
        raise ValueError(f"all {len(rows)} units of an SAE are dead: keep dead units to compare it.")
    return kept


def _add_directions(a: Float[Tensor, "Ka d"], b: Float[Tensor, "Kb d"]) -> tuple[Tensor, Tensor]:
    """Return the rows, with zero rows turned to a dimension of their own side: cosine 0 with all others."""
    zero_a, zero_b = ((side == 0).all(1, keepdim=True) for side in (a, b))
    if not bool(zero_a.any() or zero_b.any()):
        return a, b
    no_a, no_b = torch.zeros_like(a[:, :1]), torch.zeros_like(b[:, :1])
    return torch.cat([a, zero_a.to(a.dtype), no_a], 1), torch.cat([b, no_b, zero_b.to(b.dtype)], 1)


# --- pairs ------------------------------------------------------------------------------------------


def _measure_pairs(
    sides: Sequence[_Side], options: ComparisonOptions, seen: "_Seen | None", steps: Steps
) -> tuple[PairResult, ...]:
    couples = list(combinations(range(len(sides)), 2))
    lengths = {couple: _choose_lengths(options.prefixes, sides, couple) for couple in couples}
    steps.total += sum(1 + len(chosen) for chosen in lengths.values())
    streams = {} if seen is None else seen.streams
    shapes = set(_shapes(sides, lengths))
    chance = _Chance(sides[0].rows.shape[1], options, shapes)
    prepare_matching(*max(shapes, key=prod))
    with _one_torch_thread(), chance:
        return tuple(
            _measure_pair(sides, couple, lengths[couple], chance, streams.get(couple), steps)
            for couple in couples
        )


def _shapes(sides: Sequence[_Side], lengths: Mapping[Couple, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of units that are matched with each other."""
    for couple, chosen in lengths.items():
        a, b = (len(sides[i].units) for i in couple)
        yield a, b
        for length in chosen:
            yield min(length, a), min(length, b)


def _choose_lengths(prefixes: Sequence[int] | str, sides: Sequence[_Side], couple: Couple) -> list[int]:
    """Return the prefix lengths of a pair: those asked for that an SAE of it reaches, or the usual ones."""
    a, b = (len(sides[i].units) for i in couple)
    if isinstance(prefixes, str):  # "auto"
        return list(metrics.default_prefixes(min(a, b)))
    return sorted({length for length in prefixes if length <= max(a, b)})


def _measure_pair(
    sides: Sequence[_Side],
    couple: Couple,
    lengths: Sequence[int],
    chance: "_Chance",
    stream: metrics.Matching | None,
    steps: Steps,
) -> PairResult:
    left, right = sides[couple[0]], sides[couple[1]]
    a, b = _add_directions(left.rows, right.rows)
    full = metrics.match_atoms(a, b, absolute=chance.absolute)
    steps(f"{couple[0]} and {couple[1]} matched")
    prefixes = []
    for length in lengths:
        prefixes.append(_measure_prefix(a, b, length, full, chance))
        steps(f"{couple[0]} and {couple[1]}, first {length}")
    view = PairView(a, b, full, stream)
    return PairResult(
        *couple,
        chance=chance(len(a), len(b)),
        prefixes=tuple(prefixes),
        matching=_describe_matching(full, left, right),
        measures=_compute(PAIR_MEASURES, view),
    )


def _measure_prefix(
    a: Tensor, b: Tensor, length: int, full: metrics.Matching, chance: "_Chance"
) -> PrefixResult:
    first, second = a[:length], b[:length]
    whole = len(first) == len(a) and len(second) == len(b)
    own = full if whole else metrics.match_atoms(first, second, absolute=chance.absolute)
    view = PrefixView(length, first, second, own, full)
    return PrefixResult(length, chance(len(first), len(second)), _compute(PREFIX_MEASURES, view))


def _compute(registry: Mapping[str, Callable[[Any], float | None]], view: Any) -> dict[str, float | None]:
    """Return every measure of the registry; a number that does not exist is None."""
    return {key: _number(function(view)) for key, function in registry.items()}


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _describe_matching(full: metrics.Matching, left: _Side, right: _Side) -> MatchingResult:
    matched = (left.units[full.left], right.units[full.right], full.similarity)
    pairs = tuple(zip(*(part.tolist() for part in matched), strict=True))
    return MatchingResult(full.optimal, full.gap, pairs)


class _Chance:
    """The chance level by numbers of units, each computed once; None if no draws are asked for.

    Within a `with` block the levels of the given shapes are computed by a second thread, small ones first,
    while the first thread matches the SAEs.
    """

    def __init__(self, width: int, options: ComparisonOptions, shapes: Iterable[tuple[int, int]]):
        self.width, self.absolute = width, options.absolute
        self.draws = None if options.chance_draws == "auto" else options.chance_draws
        ordered = sorted({(min(shape), max(shape)) for shape in shapes}) if self.draws != 0 else []
        self._coming: dict[tuple[int, int], Future[ChanceLevel]] = {shape: Future() for shape in ordered}
        self._wanted = True

    def __enter__(self) -> "_Chance":
        # a daemon, so that an interrupted command ends at once
        threading.Thread(target=self._work, name="osae-chance", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._wanted = False

    def __call__(self, units_a: int, units_b: int) -> ChanceLevel | None:
        shape = min(units_a, units_b), max(units_a, units_b)
        return None if self.draws == 0 else self._coming[shape].result()

    def _work(self) -> None:
        for shape, future in self._coming.items():
            if not self._wanted:
                return
            try:
                future.set_result(self._draw(*shape))
            except Exception as error:
                future.set_exception(error)

    def _draw(self, small: int, large: int) -> ChanceLevel:
        # at width 512 the standard error is then below 0.001 from 64 units on: more units have less spread
        draws = min(8, max(1, _CHANCE_UNITS // large)) if self.draws is None else self.draws
        level = metrics.chance_level(small, large, self.width, draws=draws, absolute=self.absolute)
        return ChanceLevel(
            stability=level.stability,
            stability_std=_number(level.stability_std),
            orderedness=level.orderedness,
            orderedness_std=level.orderedness_std,
            draws=level.draws,
        )


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Give torch one thread within the block: its share of a matching is too small to be divided.

    The large products are numpy's, which keeps its threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- what the activations show ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a pass over the activations shows of each SAE, and the matching of each pair by activations."""

    fired: dict[int, Bool[Tensor, "K"]] = field(default_factory=dict)
    reconstructed: dict[int, metrics.ReconstructionResult] = field(default_factory=dict)
    streams: dict[Couple, metrics.Matching] = field(default_factory=dict)


@torch.no_grad()
def _observe(
    loaded: Sequence[Loaded],
    rows: Sequence[Tensor],
    data: Data,
    dead: str,
    steps: Steps,
) -> _Seen:
    """Return what one pass over the activations shows, for as many pairs as fit into memory at a time."""
    saes = [check_runnable(one, data) for one in loaded]
    seen = _Seen()
    groups = list(_group(combinations(range(len(loaded)), 2), [one.units for one in loaded]))
    steps.total += len(groups) * count_batches(data)
    for group in groups:
        involved = {i: saes[i] for i in sorted({i for couple in group for i in couple})}
        sums = {i: metrics.Reconstruction(loaded[i].units) for i in involved if i not in seen.fired}
        streams = {(i, j): metrics.StreamCorrelation(loaded[i].units, loaded[j].units) for i, j in group}
        for x, codes in passes.encode_batches(involved, steps.each(data.batches(BATCH), "activations")):
            for i, each in sums.items():
                each.update(x, saes[i].decode(codes[i], x), *codes[i])
            for (i, j), stream in streams.items():
                stream.update(*codes[i], *codes[j])
        for i, each in sums.items():
            seen.fired[i], seen.reconstructed[i] = each.fired, each.result()
        for (i, j), stream in streams.items():
            left, right = (_select(rows[end], seen.fired[end], dead) for end in (i, j))
            seen.streams[i, j] = metrics.match(stream.similarity()[left][:, right])
    return seen


def _group(couples: Iterable[Couple], units: Sequence[int]) -> Iterator[list[Couple]]:
    """Yield the pairs in groups whose correlations, in double precision, fit into memory together."""
    group, held = [], 0
    for i, j in couples:
        size = 8 * units[i] * units[j]
        if group and held + size > _HELD_AT_ONCE:
            yield group
            group, held = [], 0
        group.append((i, j))
        held += size
    yield group


# --- what the result says ---------------------------------------------------------------------------


def _describe(one: Loaded, side: _Side, seen: _Seen | None, index: int) -> ComparedSAE:
    dead, reconstruction = None, None
    if seen is not None:
        dead = tuple((~seen.fired[index]).nonzero().flatten().tolist())
        found = seen.reconstructed[index]
        measures = {"mse": found.mse, "explained_variance": _number(found.explained_variance), "l0": found.l0}
        reconstruction = Reconstruction(found.samples, measures | {"dead": found.dead_share})
    return ComparedSAE(
        **subject_fields(one),
        compared=len(side.units),
        zero_units=side.zero,
        dead_units=dead,
        reconstruction=reconstruction,
        recipe=_recipe_name(one),
    )


def _recipe_name(one: Loaded) -> str | None:
    recipe = own_provenance(one).get("recipe")
    name = recipe.get("name") if isinstance(recipe, Mapping) else None
    return name if isinstance(name, str) and name.isprintable() and len(name) <= 60 else None


def _group_means(saes: Sequence[ComparedSAE], pairs: Sequence[PairResult]) -> tuple[Summary, ...]:
    """Return the means over the pairs within each recipe, if there are SAEs of several recipes."""
    recipes = dict.fromkeys(sae.recipe for sae in saes)
    if len(recipes) < 2:
        return ()
    inside = {
        name: [pair for pair in pairs if saes[pair.a].recipe == saes[pair.b].recipe == name]
        for name in recipes
        if name is not None
    }
    return tuple(_summarise(found, recipe=name) for name, found in inside.items() if found)


def _summarise(pairs: Sequence[PairResult], *, recipe: str | None = None) -> Summary:
    """Return means over the pairs, with intervals from a bootstrap over the SAEs."""
    lengths = sorted({prefix.length for pair in pairs for prefix in pair.prefixes})
    return Summary(
        pairs=len(pairs),
        prefixes=tuple(_summarise_prefix(pairs, length) for length in lengths),
        recipe=recipe,
        measures={key: _interval((pair, pair.measures[key]) for pair in pairs) for key in PAIR_MEASURES},
    )


def _summarise_prefix(pairs: Sequence[PairResult], length: int) -> PrefixSummary:
    at = [(pair, prefix) for pair in pairs for prefix in pair.prefixes if prefix.length == length]
    intervals = {
        key: _interval((pair, prefix.measures[key]) for pair, prefix in at) for key in PREFIX_MEASURES
    }
    return PrefixSummary(length, intervals)


def _interval(values: Iterable[tuple[PairResult, float | None]]) -> Interval | None:
    """Return mean, spread and interval over pairs; None without values. A single pair has no spread."""
    known = {(pair.a, pair.b): value for pair, value in values if value is not None}
    if not known:
        return None
    if len(known) == 1:
        return Interval(next(iter(known.values())))
    found = metrics.pair_interval(known)
    return Interval(found.mean, found.std, found.low, found.high)
