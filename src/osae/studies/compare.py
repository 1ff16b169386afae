"""Measure how consistent SAEs from any library are: every pair, with chance levels.

Shapes: K, Ka, Kb units, d width.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite, prod
from typing import Any, NamedTuple, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics, passes
from osae.defaults import Chance, Dead, On
from osae.devices import map_in_threads, single_thread
from osae.interop import Loaded, SAELike
from osae.interop.ancestry import find_recipe
from osae.interop.bare import Orientation
from osae.metrics.assignment import prepare_matching
from osae.metrics.consistency import check_lengths
from osae.metrics.reproducibility import SAME
from osae.progress import Progress, Steps
from osae.results.base import Interval, labels
from osae.results.comparison import (
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
from osae.results.units import UnitTable
from osae.studies.activity import Activity, ActivityRecorder
from osae.studies.chance import ChanceLevels
from osae.studies.pairs import PAIR_MEASURES, PREFIX_MEASURES, PairView, PrefixView
from osae.studies.subjects import (
    BATCH,
    Data,
    DataLike,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    open_rows,
    open_subjects,
    subject_fields,
)
from osae.studies.units import UnitSide, score_units

_STREAM_ENTRIES = 2**27  # active units of all codes kept for correlations: 1 GB
_CELLS = 64  # along each side of the map of all cosines
_NULL_TOLERANCE = 0.01  # tolerance for the matching of unrelated activations, below the best

Couple = tuple[int, int]


def compare(
    *subjects: SAELike | Sequence[SAELike],
    data: DataLike | None = None,
    prefixes: Sequence[int] | None = None,
    absolute: bool = False,
    on: On = "decoder",
    dead: Dead = "keep",
    chance: Chance = "fitted",
    chance_draws: int | None = None,
    same: float = SAME,
    orientation: Orientation | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the consistency of every pair of SAEs, and of all pairs together.

    Args:
        subjects: two or more SAEs, as separate arguments or as a list: paths, `SAE`s, loaded files, or
            decoders as torch tensors or numpy arrays; a run folder means all of its finished SAEs.
        data: activations, as a path, `Shards` or a matrix (rows, width); they add measures of how units fire.
        prefixes: prefix lengths; None for powers of two.
        absolute: match and measure by the absolute value of the cosine.
        on: compare the rows of the decoder or of the encoder.
        dead: "drop" leaves out units without a direction, and units that never fire on the data, before
            anything is measured; with "keep", a zero row has cosine 0 with every other row.
        chance: draw chance levels with the mean and covariance of all atoms compared ("fitted", with the
            isotropic level as a second number), or "isotropic" only.
        chance_draws: pairs of random dictionaries for each chance level; None to choose by size, 0 for none.
        same: least cosine of two units that count as the same; a unit is found again in another SAE if the
            nearest one there is that near, nearer than different units are, and fires with it (see
            `osae.metrics.reproducibility`).
        orientation: where the atoms of bare decoders are, in "rows" or in "columns".
        progress: called with (done, total, text) after each step.
    """
    options = ComparisonOptions(
        prefixes="auto" if prefixes is None else tuple(map(int, prefixes)),
        absolute=absolute,
        on=on,
        dead=dead,
        chance=chance,
        chance_draws="auto" if chance_draws is None else chance_draws,
        same=same,
    )
    _check_options(options)
    given = subjects[0] if len(subjects) == 1 else cast(Sequence[SAELike], subjects)
    loaded = open_subjects(given, orientation)
    return _compare(loaded, options, None if data is None else open_rows(data), Steps(progress))


def _compare(
    loaded: Sequence[Loaded], options: ComparisonOptions, activations: Data | None, steps: Steps
) -> Comparison:
    rows = [_rows_of(one, options.on) for one in loaded]
    _check_subjects(loaded, rows)
    if not isinstance(options.prefixes, str):
        check_lengths(options.prefixes, max(map(len, rows)))
    seen = None if activations is None else _observe(loaded, activations, steps)
    sides = [_side(one, None if seen is None else seen.fired[i], options.dead) for i, one in enumerate(rows)]
    saes = tuple(_describe(one, sides[i], seen, i) for i, one in enumerate(loaded))
    lengths = _choose_all_lengths(options.prefixes, sides)
    shapes = set(_shapes(sides, lengths))
    chance, threads = _chance_levels(sides, shapes, options), torch.get_num_threads()
    with single_thread(), chance:
        prepare_matching(*max(shapes, key=prod))
        measured = _measure_pairs(sides, lengths, options, seen, steps, threads)
        maps = {
            (a, b): metrics.CosineMap(len(sides[a].units), len(sides[b].units), _CELLS) for a, b in lengths
        }
        found = [one.pair for one in measured]
        units = _score_units(loaded, saes, sides, found, options, seen, steps, maps, threads)
        pairs = tuple(_add_levels(one, sides, chance, maps) for one in measured)  # drawn meanwhile
    return Comparison(
        options=options,
        provenance=describe_run(),
        activations=None if activations is None else describe_rows(activations),
        saes=saes,
        pairs=pairs,
        means=_summarise(() if _count_recipes(saes) > 1 else pairs),
        groups=_group_means(saes, pairs),
        units=units,
    )


# --- checks -----------------------------------------------------------------------------------------


def _check_options(options: ComparisonOptions) -> None:
    """Raise `ValueError` if an option is invalid, before anything is read."""
    for name, known in (("on", get_args(On)), ("dead", get_args(Dead)), ("chance", get_args(Chance))):
        if (given := getattr(options, name)) not in known:
            raise ValueError(f"{name}={given!r}: give {' or '.join(map(repr, known))}.")
    if options.same is not None and not 0 <= options.same < 1:
        raise ValueError(f"same={options.same}: give a cosine from 0 to below 1.")
    draws = options.chance_draws
    if not isinstance(draws, str) and draws < 0:
        raise ValueError(f"chance_draws={draws}: give 0 for no chance levels, or a positive number of draws.")


def _check_subjects(loaded: Sequence[Loaded], rows: Sequence[Tensor]) -> None:
    """Raise `ValueError` unless there are at least two SAEs, all of the same width."""
    if len(loaded) < 2:
        found = f"{loaded[0].path} is the only SAE given" if loaded else "no SAE was given"
        raise ValueError(f"{found}: give at least two to compare.")
    for one, matrix in zip(loaded, rows, strict=True):
        if matrix.shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"{one.path} has width {matrix.shape[1]} and {loaded[0].path} has {rows[0].shape[1]}: "
                "compare SAEs trained on the same activations."
            )


# --- the units that are compared --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows of one SAE that are compared, and the numbers of their units.

    `zero` rows have no direction.
    """

    rows: Float[Tensor, "n d"]
    units: Int[Tensor, "n"]
    zero: tuple[int, ...]


def _rows_of(one: Loaded, on: str) -> Float[Tensor, "K d"]:
    """Return the directions to compare, one row per unit."""
    rows = one.decoder if on == "decoder" else one.encoder
    if rows is None:
        raise ValueError(f"{one.path} has no encoder: compare decoders.")
    return rows


def _side(rows: Float[Tensor, "K d"], fired: Bool[Tensor, "K"] | None, dead: str) -> _Side:
    kept = _select(rows, fired, dead)
    zero = (rows == 0).all(1).nonzero().flatten().tolist()
    return _Side(rows[kept], kept.nonzero().flatten(), tuple(zero))


def _select(rows: Float[Tensor, "K d"], fired: Bool[Tensor, "K"] | None, dead: str) -> Bool[Tensor, "K"]:
    """Return the units to compare."""
    if dead == "keep":
        return torch.ones(len(rows), dtype=torch.bool)
    kept = (rows != 0).any(1) if fired is None else (rows != 0).any(1) & fired
    if not bool(kept.any()):
        raise ValueError(f"all {len(rows)} units of an SAE are dead: keep dead units to compare it.")
    return kept


def _add_directions(a: Float[Tensor, "Ka d"], b: Float[Tensor, "Kb d"]) -> tuple[Tensor, Tensor]:
    """Return the rows with zero rows moved to an extra dimension per side, where their cosines are 0."""
    zero_a, zero_b = ((side == 0).all(1, keepdim=True) for side in (a, b))
    if not bool(zero_a.any() or zero_b.any()):
        return a, b
    no_a, no_b = torch.zeros_like(a[:, :1]), torch.zeros_like(b[:, :1])
    return torch.cat([a, zero_a.to(a.dtype), no_a], 1), torch.cat([b, no_b, zero_b.to(b.dtype)], 1)


# --- pairs ------------------------------------------------------------------------------------------


Lengths = Mapping[Couple, Sequence[int]]
Maps = Mapping[Couple, metrics.CosineMap]


def _choose_all_lengths(prefixes: Sequence[int] | str, sides: Sequence[_Side]) -> Lengths:
    """Return the prefix lengths of every pair."""
    return {couple: _choose_lengths(prefixes, sides, couple) for couple in combinations(range(len(sides)), 2)}


def _chance_levels(
    sides: Sequence[_Side], shapes: Collection[tuple[int, int]], options: ComparisonOptions
) -> ChanceLevels:
    return ChanceLevels(
        [side.rows for side in sides],
        shapes,
        kind=options.chance or "isotropic",
        draws=None if options.chance_draws == "auto" else options.chance_draws,
        absolute=options.absolute,
    )


class _Measured(NamedTuple):
    """A pair without its chance levels; `null` is the stability by activations if these are unrelated."""

    pair: PairResult
    null: float | None


def _measure_pairs(
    sides: Sequence[_Side],
    lengths: Lengths,
    options: ComparisonOptions,
    seen: "_Seen | None",
    steps: Steps,
    threads: int,
) -> list[_Measured]:
    """Return all pairs, without their chance levels."""
    steps.total += sum(2 + len(chosen) + (seen is not None) for chosen in lengths.values())

    def measure(couple: Couple) -> _Measured:
        return _measure_pair(sides, couple, lengths[couple], options, seen, steps)

    return map_in_threads(measure, lengths, threads)


def _add_levels(measured: _Measured, sides: Sequence[_Side], chance: ChanceLevels, maps: Maps) -> PairResult:
    """Return the pair with its map of cosines and its chance levels, waiting until these are drawn."""
    pair = measured.pair
    a, b = (len(sides[i].units) for i in (pair.a, pair.b))
    level = chance(a, b)
    prefixes = (replace(one, chance=chance(min(one.length, a), min(one.length, b))) for one in pair.prefixes)
    return replace(
        pair,
        chance=level and replace(level, stream_stability=measured.null),
        prefixes=tuple(prefixes),
        cosines=_list_cosines(maps[pair.a, pair.b]),
    )


def _shapes(sides: Sequence[_Side], lengths: Lengths) -> Iterator[tuple[int, int]]:
    """Yield the numbers of units that are matched with each other."""
    for couple, chosen in lengths.items():
        a, b = (len(sides[i].units) for i in couple)
        yield a, b
        for length in chosen:
            yield min(length, a), min(length, b)


def _choose_lengths(prefixes: Sequence[int] | str, sides: Sequence[_Side], couple: Couple) -> list[int]:
    """Return the prefix lengths of a pair: the requested ones that one of its SAEs reaches, or defaults."""
    a, b = (len(sides[i].units) for i in couple)
    if isinstance(prefixes, str):  # "auto"
        return list(metrics.default_prefixes(min(a, b)))
    return sorted({length for length in prefixes if length <= max(a, b)})


def _measure_pair(
    sides: Sequence[_Side],
    couple: Couple,
    lengths: Sequence[int],
    options: ComparisonOptions,
    seen: "_Seen | None",
    steps: Steps,
) -> _Measured:
    left, right = sides[couple[0]], sides[couple[1]]
    a, b = _add_directions(left.rows, right.rows)
    full = metrics.match_atoms(a, b, absolute=options.absolute)
    steps(f"{couple[0]} and {couple[1]} matched")
    prefixes: list[PrefixResult] = []
    for length in lengths:
        prefixes.append(_measure_prefix(a, b, length, full, absolute=options.absolute))
        steps(f"{couple[0]} and {couple[1]}, first {length}")
    stream, null = (None, None) if seen is None else _match_streams(seen, sides, couple)
    if seen is not None:
        steps(f"{couple[0]} and {couple[1]}, activations")
    pair = PairResult(
        *couple,
        chance=None,
        prefixes=tuple(prefixes),
        matching=_describe_matching(full, left, right),
        stream_matching=None if stream is None else _describe_matching(stream, left, right),
        measures=_compute(PAIR_MEASURES, PairView(a, b, full, stream)),
    )
    return _Measured(pair, null)


def _measure_prefix(
    a: Tensor, b: Tensor, length: int, full: metrics.Matching, *, absolute: bool
) -> PrefixResult:
    first, second = a[:length], b[:length]
    whole = len(first) == len(a) and len(second) == len(b)
    own = full if whole else metrics.match_atoms(first, second, absolute=absolute)
    view = PrefixView(length, first, second, own, full)
    return PrefixResult(length, None, _compute(PREFIX_MEASURES, view))


def _compute(registry: Mapping[str, Callable[[Any], float | None]], view: Any) -> dict[str, float | None]:
    """Return every registered measure; missing numbers are None."""
    return {key: _number(function(view)) for key, function in registry.items()}


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _describe_matching(full: metrics.Matching, left: _Side, right: _Side) -> MatchingResult:
    matched = (left.units[full.left], right.units[full.right], full.similarity)
    pairs = tuple(zip(*(part.tolist() for part in matched), strict=True))
    return MatchingResult(full.optimal, full.gap, pairs)


def _list_cosines(cosines: metrics.CosineMap) -> tuple[tuple[float, ...], ...]:
    rounded = (cosines.largest.double() * 1000).round() / 1000
    return tuple(tuple(row) for row in rounded.tolist())


# --- activations ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a pass over the activations yields for each SAE: firing units, reconstruction, codes, shares."""

    fired: list[Bool[Tensor, "K"]]
    reconstructed: list[metrics.ReconstructionResult]
    streams: list[metrics.Stream]
    activities: list[Activity]


@single_thread()  # sums over batches; large products use all threads
@torch.no_grad()
def _observe(loaded: Sequence[Loaded], data: Data, steps: Steps) -> _Seen:
    """Return the results of one pass over the activations.

    The codes of the first rows, as many as fit into memory, are kept for correlations.
    """
    saes = dict(enumerate(check_runnable(one, data) for one in loaded))
    steps.total += count_batches(data)
    watched = [ActivityRecorder(sae) for sae in saes.values()]
    sums = [metrics.Reconstruction(one.units) for one in loaded]
    entries = 0
    for x, codes in passes.encode_batches(saes, steps.each(data.batches(BATCH), "activations")):
        kept = entries < _STREAM_ENTRIES
        for i, code in codes.items():
            sums[i].update(x, passes.decode(saes[i], code, x), *code)
            watched[i].update(code, x, kept=kept)
            entries += int((code.values != 0).sum()) if kept else 0
    activities = [each.activity() for each in watched]
    return _Seen(
        [each.fired for each in sums],
        [each.result() for each in sums],
        [each.stream for each in activities],
        activities,
    )


def _match_streams(seen: _Seen, sides: Sequence[_Side], couple: Couple) -> tuple[metrics.Matching, float]:
    """Return the matching by activations, and the stability that remains when one side is shifted.

    Shifted by half of the rows, samples no longer correspond, while each unit keeps its own statistics.
    """
    a, b = (_select_units(seen.streams[i], sides[i]) for i in couple)
    shifted = metrics.match_streams(a, b.shift(b.samples // 2), tolerance=_NULL_TOLERANCE)
    return metrics.match_streams(a, b), float(shifted.similarity.mean())


def _select_units(stream: metrics.Stream, side: _Side) -> metrics.Stream:
    """Return the stream of the units that are compared."""
    if len(side.units) == stream.total:
        return stream
    kept = torch.zeros(stream.total, dtype=torch.bool)
    kept[side.units] = True
    return stream.select(kept)


def _score_units(
    loaded: Sequence[Loaded],
    saes: Sequence[ComparedSAE],
    sides: Sequence[_Side],
    pairs: Sequence[PairResult],
    options: ComparisonOptions,
    seen: _Seen | None,
    steps: Steps,
    maps: Maps,
    threads: int,
) -> UnitTable:
    """Return every unit with its matches in the other SAEs."""
    names = labels([sae.path for sae in saes])
    found = []
    for i, (one, side) in enumerate(zip(loaded, sides, strict=True)):
        encoder = one.encoder if options.on == "decoder" else None
        if encoder is not None and len(encoder) != one.units:  # the matrices of a damaged file
            encoder = None
        found.append(
            UnitSide(
                name=names[i],
                recipe=saes[i].recipe,
                rows=side.rows,
                units=side.units,
                encoder=None if encoder is None else encoder[side.units],
                activity=None if seen is None else seen.activities[i].select(side.units),
            )
        )
    same = SAME if options.same is None else options.same
    table = score_units(
        found, pairs, same=same, absolute=options.absolute, steps=steps, cosines=maps, threads=threads
    )
    return table if options.chance_draws != 0 else table.without("reproducibility_chance")


# --- the result -------------------------------------------------------------------------------------


def _describe(one: Loaded, side: _Side, seen: _Seen | None, index: int) -> ComparedSAE:
    dead, reconstruction = None, None
    if seen is not None:
        dead = tuple((~seen.fired[index]).nonzero().flatten().tolist())
        found = seen.reconstructed[index]
        reconstruction = Reconstruction(found.samples, found.measures())
    return ComparedSAE(
        **subject_fields(one),
        compared=len(side.units),
        zero_units=side.zero,
        dead_units=dead,
        reconstruction=reconstruction,
        recipe=_recipe_name(one),
    )


def _recipe_name(one: Loaded) -> str | None:
    """Return the name of the recipe, and what was done to the units afterwards, such as "topk, reordered"."""
    found = find_recipe(one.format, one.metadata)
    name = found.recipe.get("name")
    if not isinstance(name, str) or not name.isprintable() or len(name) > 60:
        return None
    return ", ".join([name, *found.changes])


def _group_means(saes: Sequence[ComparedSAE], pairs: Sequence[PairResult]) -> tuple[Summary, ...]:
    """Return the means over the pairs within each recipe, if there are SAEs of several recipes."""
    if _count_recipes(saes) < 2:
        return ()
    inside = {
        name: [pair for pair in pairs if saes[pair.a].recipe == saes[pair.b].recipe == name]
        for name in dict.fromkeys(sae.recipe for sae in saes)
        if name is not None
    }
    return tuple(_summarise(found, recipe=name) for name, found in inside.items() if found)


def _count_recipes(saes: Sequence[ComparedSAE]) -> int:
    return len({sae.recipe for sae in saes})


def _summarise(pairs: Sequence[PairResult], *, recipe: str | None = None) -> Summary:
    """Return means over the pairs, with intervals that account for pairs sharing an SAE."""
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
    """Return mean, standard deviation and interval over pairs.

    None without values. A single pair has only a mean.
    """
    known = {(pair.a, pair.b): value for pair, value in values if value is not None}
    return metrics.pair_interval(known) if known else None
