"""How consistent SAEs are, whoever trained them: every pair measured, beside its chance level.

Shapes: K, Ka, Kb units, d width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite, prod
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae import metrics, passes
from osae.devices import single_thread
from osae.interop import Loaded, SAELike
from osae.interop.bare import Orientation
from osae.metrics.assignment import prepare_matching
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
    own_provenance,
    subject_fields,
)
from osae.studies.units import UnitSide, score_units

_STREAM_ENTRIES = 2**27  # active units of all codes that are kept to correlate them: 1 GB
_NULL_TOLERANCE = 0.01  # how far below the best a matching of unrelated activations may be

Couple = tuple[int, int]
On = Literal["decoder", "encoder"]
Dead = Literal["keep", "drop"]
Chance = Literal["fitted", "isotropic"]


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
    """Return how consistent every pair of the SAEs is, and all pairs together.

    Args:
        subjects: two SAEs or more, one by one or as a list: paths, `SAE`s, loaded files, or decoders as torch
            tensors or numpy arrays; a run folder means all of its finished SAEs.
        data: activations, as a path, `Shards` or a matrix (rows, width); they add measures of what units do.
        prefixes: prefix lengths; None takes powers of two.
        absolute: match and measure by the absolute value of the cosine.
        on: compare the rows of the decoder or of the encoder.
        dead: "drop" leaves out units without a direction, and units that never fire on the data, before
            anything is measured; with "keep", a zero row has cosine 0 with every other row.
        chance: draw chance levels with the mean and covariance of all atoms that are compared ("fitted",
            with the isotropic level as a second number), or "isotropic" only.
        chance_draws: pairs of random dictionaries for each chance level; None chooses, 0 leaves them out.
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
    _check_prefixes(options.prefixes, rows)
    seen = None if activations is None else _observe(loaded, activations, steps)
    sides = [_side(one, None if seen is None else seen.fired[i], options.dead) for i, one in enumerate(rows)]
    pairs = _measure_pairs(sides, options, seen, steps)
    saes = tuple(_describe(one, sides[i], seen, i) for i, one in enumerate(loaded))
    units = _score_units(loaded, saes, sides, pairs, options, seen, steps)
    return Comparison(
        options=options,
        provenance=describe_run(),
        activations=None if activations is None else describe_rows(activations),
        saes=saes,
        pairs=pairs,
        means=_summarise(pairs),
        groups=_group_means(saes, pairs),
        units=units,
    )


# --- checks -----------------------------------------------------------------------------------------


def _check_options(options: ComparisonOptions) -> None:
    """Raise `ValueError` if an option has no meaning, before anything is read."""
    for name, known in (("on", get_args(On)), ("dead", get_args(Dead)), ("chance", get_args(Chance))):
        if (given := getattr(options, name)) not in known:
            raise ValueError(f"{name}={given!r}: give {' or '.join(map(repr, known))}.")
    if options.same is not None and not 0 <= options.same < 1:
        raise ValueError(f"same={options.same}: give a cosine from 0 to below 1.")
    draws = options.chance_draws
    if not isinstance(draws, str) and draws < 0:
        raise ValueError(f"chance_draws={draws}: give 0 for none, or a number of draws.")


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


def _check_prefixes(prefixes: Sequence[int] | str, rows: Sequence[Tensor]) -> None:
    """Raise `ValueError` if no SAE has as many units as a prefix."""
    longest = max(map(len, rows))
    for length in () if isinstance(prefixes, str) else prefixes:
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
    steps.total += sum(2 + len(chosen) + (seen is not None) for chosen in lengths.values())
    shapes = set(_shapes(sides, lengths))
    chance = ChanceLevels(
        [side.rows for side in sides],
        shapes,
        kind=options.chance or "isotropic",
        draws=None if options.chance_draws == "auto" else options.chance_draws,
        absolute=options.absolute,
    )
    with single_thread(), chance:
        prepare_matching(*max(shapes, key=prod))
        return tuple(_measure_pair(sides, couple, lengths[couple], chance, seen, steps) for couple in couples)


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
    chance: ChanceLevels,
    seen: "_Seen | None",
    steps: Steps,
) -> PairResult:
    left, right = sides[couple[0]], sides[couple[1]]
    a, b = _add_directions(left.rows, right.rows)
    full = metrics.match_atoms(a, b, absolute=chance.absolute)
    steps(f"{couple[0]} and {couple[1]} matched")
    prefixes: list[PrefixResult] = []
    for length in lengths:
        prefixes.append(_measure_prefix(a, b, length, full, absolute=chance.absolute))
        steps(f"{couple[0]} and {couple[1]}, first {length}")
    stream, null = (None, None) if seen is None else _match_streams(seen, sides, couple)
    if seen is not None:
        steps(f"{couple[0]} and {couple[1]}, activations")
    view = PairView(a, b, full, stream)
    level = chance(len(a), len(b))
    return PairResult(
        *couple,
        chance=level and replace(level, stream_stability=null),
        prefixes=tuple(  # levels last: they are being drawn meanwhile
            replace(one, chance=chance(min(one.length, len(a)), min(one.length, len(b)))) for one in prefixes
        ),
        matching=_describe_matching(full, left, right),
        measures=_compute(PAIR_MEASURES, view),
    )


def _measure_prefix(
    a: Tensor, b: Tensor, length: int, full: metrics.Matching, *, absolute: bool
) -> PrefixResult:
    first, second = a[:length], b[:length]
    whole = len(first) == len(a) and len(second) == len(b)
    own = full if whole else metrics.match_atoms(first, second, absolute=absolute)
    view = PrefixView(length, first, second, own, full)
    return PrefixResult(length, None, _compute(PREFIX_MEASURES, view))


def _compute(registry: Mapping[str, Callable[[Any], float | None]], view: Any) -> dict[str, float | None]:
    """Return every measure of the registry; a number that does not exist is None."""
    return {key: _number(function(view)) for key, function in registry.items()}


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _describe_matching(full: metrics.Matching, left: _Side, right: _Side) -> MatchingResult:
    matched = (left.units[full.left], right.units[full.right], full.similarity)
    pairs = tuple(zip(*(part.tolist() for part in matched), strict=True))
    return MatchingResult(full.optimal, full.gap, pairs)


# --- what the activations show ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a pass over the activations shows of each SAE: units that fire, reconstruction, codes, shares."""

    fired: list[Bool[Tensor, "K"]]
    reconstructed: list[metrics.ReconstructionResult]
    streams: list[metrics.Stream]
    activities: list[Activity]


@torch.no_grad()
def _observe(loaded: Sequence[Loaded], data: Data, steps: Steps) -> _Seen:
    """Return what one pass over the activations shows.

    The codes of the first rows are kept, as many as fit into memory, to correlate them.
    """
    saes = dict(enumerate(check_runnable(one, data) for one in loaded))
    steps.total += count_batches(data)
    watched = [ActivityRecorder(sae) for sae in saes.values()]
    sums = [metrics.Reconstruction(one.units) for one in loaded]
    entries = 0
    for x, codes in passes.encode_batches(saes, steps.each(data.batches(BATCH), "activations")):
        kept = entries < _STREAM_ENTRIES
        for i, code in codes.items():
            sums[i].update(x, saes[i].decode(code, x), *code)
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
    """Return the matching by activations, and the stability that is left when one side is shifted.

    Half way round, samples have nothing to do with each other, while each unit keeps its own statistics.
    """
    a, b = (_select_units(seen.streams[i], sides[i]) for i in couple)
    shifted = metrics.match_streams(a, b.shift(b.samples // 2), tolerance=_NULL_TOLERANCE)
    return metrics.match_streams(a, b), float(shifted.similarity.mean())


def _select_units(stream: metrics.Stream, side: _Side) -> metrics.Stream:
    """Return the stream of the units that take part."""
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
) -> UnitTable:
    """Return every unit with its partners in the other SAEs."""
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
    table = score_units(found, pairs, same=same, absolute=options.absolute, steps=steps)
    return table if options.chance_draws != 0 else table.without("reproducibility_chance")


# --- what the result says ---------------------------------------------------------------------------


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
    """Return means over the pairs, with intervals that allow for pairs that share an SAE."""
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
    return metrics.pair_interval(known) if known else None
