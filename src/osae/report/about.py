"""What a page shows about a result besides its tables: title, figures and provenance, by type of result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_never

from osae.measures import AGREEMENT, MISSING, measures_of
from osae.report.plots import Plot, plot_binned, plot_dots, plot_lines, plot_matchings, plot_prefixes
from osae.report.text import describe_seeds, describe_world
from osae.results import (
    AnyResult,
    Comparison,
    Contexts,
    Evaluation,
    ExperimentResult,
    Ordering,
    Pruning,
    Stitching,
    Sweep,
)
from osae.results.base import Activations, Provenance, count
from osae.results.codec import to_json
from osae.results.comparison import PairResult
from osae.results.experiment import Claim, Figure
from osae.results.subject import SubjectInfo

PANELS = 8  # pairs drawn individually; for more pairs, only means are drawn
Curves = dict[str, dict[str, dict[str, list[Any]]]]


@dataclass(frozen=True)
class About:
    """What a page shows about a result, as text in which `backticks` mark code.

    `facts` is the provenance by name, `notes` are sentences below the titles of tables; `figures` are plots
    or image files, which may have a plot stored next to them.
    """

    title: str
    facts: Mapping[str, str]
    figures: Sequence[Figure | Plot] = ()
    claims: Sequence[Claim] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def describe(result: AnyResult, folder: Path) -> About:
    """Return what a page shows about the result; its figures are in `folder`."""
    match result:
        case ExperimentResult():
            return _experiment(result, folder)
        case Comparison():
            facts = _provenance(result.provenance, result.saes, result.activations, to_json(result.options))
            return About(f"Comparison of {count(len(result.saes), 'SAE')}", facts, _comparison_plots(result))
        case Contexts():
            facts = _provenance(result.provenance, (result.sae,), result.activations, to_json(result.options))
            return About(f"Contexts of {result.name}", facts)
        case Evaluation():
            facts = _provenance(result.provenance, result.saes, result.activations, to_json(result.options))
            facts = {"Model": _model(result)} | facts
            return About(f"Evaluation of {count(len(result.saes), 'SAE')}", facts, _evaluation_plots(result))
        case Stitching():
            saes = (result.small, result.large)
            facts = _provenance(result.provenance, saes, result.activations)
            return About("Stitching of two SAEs", facts, _stitching_plots(result))
        case Ordering():
            facts = _provenance(result.provenance, (result.source,), result.activations)
            return About(f"Units ordered by {result.by}", facts, _ordering_plots(result))
        case Pruning():
            facts = _provenance(result.provenance, (result.source,), result.activations)
            return About("An SAE pruned to the units that are found again", facts)
        case Sweep():
            return About(
                f"Sweep of {count(len(result.runs), 'run')}", _provenance(result.provenance, (), None)
            )
        case _:
            assert_never(result)


def _experiment(result: ExperimentResult, folder: Path) -> About:
    worlds = {
        section.title: f"World: {describe_world(section.world)}"
        for section in result.sections
        if section.world and section.world != result.world
    }
    facts = {
        "Command": result.command and f"`{result.command}`",
        "World": describe_world(result.world),
        "Seeds": describe_seeds(result.seeds),
        "Time": f"{result.seconds:,.0f} s" if result.seconds else "",
        "Training": f"{result.training_seconds:,.0f} s in total" if result.training_seconds else "",
        "Commit": result.commit or "",
        "Trained at": ", ".join(result.training_commits or ()),
        "Versions": _versions(result.versions),
    }
    found = [replace(figure, file=str(folder / figure.file)) for figure in result.figures]
    return About(result.title or result.experiment, facts, found, result.claims, worlds)


# --- provenance -------------------------------------------------------------------------------------


def _provenance(
    provenance: Provenance,
    saes: Sequence[SubjectInfo],
    activations: Activations | None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the provenance of the numbers, by name; unknown values are empty."""
    facts = {
        f"SAE {place}": f"{sae.path} · {sae.format} · sha256 {sae.sha256[:16]} · {sae.sparsifier or MISSING}"
        for place, sae in enumerate(saes)
    }
    if activations:
        of = f"{activations.rows:,} rows, sha256 {activations.sha256[:16]}"
        facts["Activations"] = f"{activations.path}: {of}"
    command = provenance.command
    return facts | {
        "Options": describe_world({key: value for key, value in (options or {}).items() if value != []}),
        "Command": f"`{command}`" if command else "",
        "Date": provenance.date or "",
        "Versions": _versions(provenance.versions),
    }


def _model(result: Evaluation) -> str:
    found = result.cross_entropy
    if found is None:
        return ""
    name = " ".join(part for part in (found.model.name, found.model.revision) if part)
    return f"{name}: {found.tokens:,} tokens in {found.contexts:,} contexts"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


# --- figures ----------------------------------------------------------------------------------------


def _comparison_plots(result: Comparison) -> list[Plot]:
    """Return the measures by prefix, the positions of matched units, and frequency against agreement."""
    found = [
        plot_prefixes(
            _prefix_curves(result, AGREEMENT),
            title="Consistency by prefix",
            caption="Each measure for the first units, re-matched at every length.",
            chance=_chance_curves(result, AGREEMENT),
            thin=list(map(result.pair_name, result.pairs_across())),
        )
    ]
    return [*found, *_pair_plots(result), *_unit_plots(result)]


def _pair_plots(result: Comparison) -> list[Plot]:
    """Return, for each pair, the positions of matched units and, if available, the cosines of all units."""
    shown = [pair for pair in result.pairs if pair.matching.pairs or pair.cosines][:PANELS]
    if not shown:
        return []
    labels = {"x_label": "position in the first SAE", "y_label": "position in the second SAE"}
    panels = []
    for pair in shown:
        made: list[Plot] = []
        if pair.matching.pairs:
            made.append(plot_matchings([_panel(pair)], title="", **labels))
        if pair.cosines:
            across, up = (result.saes[place].compared for place in (pair.a, pair.b))
            cosines = {"all units": (tuple(zip(*pair.cosines, strict=True)), up, across)}
            made.append(plot_binned(cosines, title="", color_label="cosine", **labels))
        panels += [replace(panel, group=result.pair_name(pair)) for plot in made for panel in plot.panels]
    of = f" The first {len(shown)} of {len(result.pairs)} pairs." if len(shown) < len(result.pairs) else ""
    caption = (
        "Matched units: a dot for each pair, coloured by cosine. All units: the cosine of every unit of one "
        "SAE with every unit of the other; in large dictionaries, a cell shows the largest cosine among its "
        "units. SAEs that agree in their order show a diagonal."
    )
    return [Plot("Units of one SAE in the other", caption + of, tuple(panels))]


def _unit_plots(result: Comparison) -> list[Plot]:
    """Return how often units fire against how well they are found again, if both are known."""
    panels = {}
    for sae in result.units.saes if result.units else ():
        frequency, support = (sae.measures.get(key) for key in ("frequency", "support"))
        if frequency and support:
            known = [
                (x, y)
                for x, y in zip(frequency, support, strict=True)
                if x is not None and x > 0 and y is not None
            ]
            panels[sae.name] = tuple(zip(*known, strict=True)) if known else ((), ())
    if not panels:
        return []
    return [
        plot_dots(
            panels,
            title="Frequency against reproducibility",
            caption="Each unit, by how often it fires and how strongly the other SAEs support it: support is "
            "a graded form of reproducibility, and is 1 if all of them have exactly the same unit.",
            x_label="share of samples in which the unit fires",
            y_label="support",
            log_x=True,
        )
    ]


def _panel(pair: PairResult) -> dict[str, Any]:
    left, right, similarity = zip(*pair.matching.pairs, strict=True)
    return {
        "title": "matched units",
        "left": left,
        "right": right,
        "similarity": similarity,
        "units": max(*left, *right) + 1,
        **{key: pair.measures.get(key) for key in AGREEMENT},
    }


def _prefix_curves(result: Comparison, keys: Iterable[str]) -> Curves:
    """Return, for each measure, a line for each recipe and each pair across recipes, or for each pair.

    If there are many pairs, only means are drawn.
    """
    across, means = result.pairs_across(), result.shown_means()
    named = [(group.recipe or "mean of pairs", group) for group in means]
    pairs = across if across else result.pairs
    if len(pairs) > PANELS and named:
        pairs = []
    elif not across:
        named = []
    return {
        key: {name: _mean_curve(group.prefixes, key) for name, group in named}
        | {result.pair_name(pair): _curve(pair.prefixes, key) for pair in pairs}
        for key in keys
    }


def _curve(prefixes: Iterable[Any], key: str) -> dict[str, list[Any]]:
    found = [(prefix.length, prefix.measures.get(key)) for prefix in prefixes]
    return {"prefix": [length for length, _ in found], "mean": [value for _, value in found]}


def _mean_curve(prefixes: Iterable[Any], key: str) -> dict[str, list[Any]]:
    found = [(prefix.length, prefix.measures.get(key)) for prefix in prefixes]
    ends = {end: [value and getattr(value, end) for _, value in found] for end in ("mean", "low", "high")}
    return {"prefix": [length for length, _ in found], **ends}


def _chance_curves(result: Comparison, keys: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Return the chance level of each measure by prefix length, if known."""
    levels = {
        prefix.length: prefix.chance for pair in result.pairs for prefix in pair.prefixes if prefix.chance
    }
    known = {key: {n: getattr(level, key, None) for n, level in sorted(levels.items())} for key in keys}
    return {
        key: {"prefix": list(by_length), "mean": list(by_length.values())}
        for key, by_length in known.items()
        if by_length and None not in by_length.values()
    }


def _evaluation_plots(result: Evaluation) -> list[Plot]:
    """Return plots of what the first units reconstruct and of how often units fire."""
    named = list(zip(result.names, result.saes, strict=True))
    curves = {
        entry.key: {name: _curve(sae.prefixes, entry.key) for name, sae in named}
        for entry in measures_of("curve")
    }
    return [
        plot_prefixes(
            curves,
            title="Reconstruction by the first units",
            caption="What the first units of each SAE reconstruct on their own, in the order of the SAE.",
        ),
        plot_lines(
            dict(map(_frequencies, result.names, result.saes)),
            title="How often units fire",
            caption="Share of each SAE's units by how often they fire, without dead units.",
            x_label="share of samples in which a unit fires",
            y_label="share of units",
            log_x=True,
        ),
    ]


def _stitching_plots(result: Stitching) -> list[Plot]:
    """Return a plot of the effect of each unit on the error of the smaller SAE, by how often it fires."""
    known = [
        (frequency, -100 * change / result.error)
        for frequency, change in zip(result.frequency, result.change, strict=True)
        if frequency > 0 and result.error > 0
    ]
    if not known:
        return []
    frequencies, shares = zip(*known, strict=True)
    return [
        plot_dots(
            {"": (frequencies, shares)},
            title="What each unit of the larger SAE adds",
            caption="Units above zero lower the error of the smaller SAE: they are novel. Units below zero "
            "are already covered by it.",
            x_label="share of samples in which the unit fires",
            y_label="% of the error removed",
            log_x=True,
        )
    ]


def _ordering_plots(result: Ordering) -> list[Plot]:
    """Return a plot of the units' old and new positions."""
    places = {"": (result.order, range(len(result.order)))}
    return [
        plot_dots(
            places,
            title="Positions of the units before and after",
            caption="Units on the diagonal have kept their position.",
            x_label="original position",
            y_label=f"position by {result.by}",
        )
    ]


def _frequencies(name: str, sae: Any) -> tuple[str, tuple[list[float], list[float]]]:
    """Return the share of the units in the middle of each bin."""
    middles = [10 ** ((low + high) / 2) for low, high in pairwise(sae.frequencies.edges)]
    return name, (middles, [units / sae.units for units in sae.frequencies.units])
