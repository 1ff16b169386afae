"""What a page says about a result besides its tables: title, figures and provenance, by type of result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_never

from osae.measures import MISSING, measures_of
from osae.report.plots import Plot, plot_dots, plot_lines, plot_matchings, plot_prefixes
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
)
from osae.results.base import Activations, Provenance
from osae.results.codec import to_json
from osae.results.comparison import PairResult
from osae.results.experiment import Claim, Figure
from osae.results.subject import SubjectInfo

PANELS = 8  # pairs drawn one by one; of more, the means are drawn
Curves = dict[str, dict[str, dict[str, list[Any]]]]


@dataclass(frozen=True)
class About:
    """What a page says about a result; text in which `backticks` mark code.

    `facts` is the provenance by name, `notes` are sentences below the titles of tables; `figures` are plots,
    or files of images, beside which there may be their plots.
    """

    title: str
    facts: Mapping[str, str]
    figures: Sequence[Figure | Plot] = ()
    claims: Sequence[Claim] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def describe(result: AnyResult, folder: Path) -> About:
    """Return what a page says about the result; figures that the result names are in `folder`."""
    match result:
        case ExperimentResult():
            return _experiment(result, folder)
        case Comparison():
            facts = _provenance(result.provenance, result.saes, result.activations, to_json(result.options))
            return About(f"Comparison of {_count(result.saes)}", facts, _comparison_plots(result))
        case Contexts():
            facts = _provenance(result.provenance, (result.sae,), result.activations, to_json(result.options))
            return About(f"Contexts of {result.name}", facts)
        case Evaluation():
            facts = _provenance(result.provenance, result.saes, result.activations, to_json(result.options))
            facts = {"Model": _model(result)} | facts
            return About(f"Evaluation of {_count(result.saes)}", facts, _evaluation_plots(result))
        case Stitching():
            saes = (result.small, result.large)
            return About("Stitching of two SAEs", _provenance(result.provenance, saes, result.activations))
        case Ordering():
            facts = _provenance(result.provenance, (result.source,), result.activations)
            return About(f"Units ordered by {result.by}", facts)
        case Pruning():
            facts = _provenance(result.provenance, (result.source,), result.activations)
            return About("An SAE of the units that are found again", facts)
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
        "Training": f"{result.training_seconds:,.0f} s in all" if result.training_seconds else "",
        "Commit": result.commit or "",
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
    """Return where the numbers come from, by name; what is not known is empty."""
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


def _count(saes: Sequence[SubjectInfo]) -> str:
    return f"{len(saes)} SAE{'s' if len(saes) > 1 else ''}"


# --- figures ----------------------------------------------------------------------------------------


def _comparison_plots(result: Comparison) -> list[Plot]:
    """Return the measures of the prefixes, the places of matched units, and frequency against agreement."""
    keys = [entry.key for entry in measures_of("prefix") if entry.chance]
    found = [
        plot_prefixes(
            _prefix_curves(result, keys),
            title="Consistency of the prefixes",
            caption="Each measure of the first units, re-matched at every length.",
            chance=_chance_curves(result, keys),
        )
    ]
    shown = [pair for pair in result.pairs if pair.matching.pairs][:PANELS]
    if shown:
        of = (
            f"; the first {len(shown)} of {len(result.pairs)} pairs" if len(shown) < len(result.pairs) else ""
        )
        found.append(
            plot_matchings(
                [_panel(result, pair, keys) for pair in shown],
                title="Position of each unit in the other SAE",
                x_label="place in the first SAE",
                y_label="place in the second SAE",
                caption=f"One dot per pair of matched units, coloured by cosine{of}.",
            )
        )
    return [*found, *_unit_plots(result)]


def _unit_plots(result: Comparison) -> list[Plot]:
    """Return how often units fire against how well they are found again, where both are known."""
    panels = {}
    for sae in result.units.saes if result.units else ():
        frequency, cosine = (sae.measures.get(key) for key in ("frequency", "nearest_cosine"))
        if frequency and cosine:
            known = [
                (x, y)
                for x, y in zip(frequency, cosine, strict=True)
                if x is not None and x > 0 and y is not None
            ]
            panels[sae.name] = tuple(zip(*known, strict=True)) if known else ((), ())
    if not panels:
        return []
    return [
        plot_dots(
            panels,
            title="Frequency against reproducibility",
            caption="Each unit by how often it fires and its cosine with the nearest unit of the other SAEs.",
            x_label="share of samples in which the unit fires",
            y_label="cosine with the nearest unit",
            log_x=True,
        )
    ]


def _panel(result: Comparison, pair: PairResult, keys: Iterable[str]) -> dict[str, Any]:
    left, right, similarity = zip(*pair.matching.pairs, strict=True)
    return {
        "title": result.pair_name(pair),
        "left": left,
        "right": right,
        "similarity": similarity,
        "units": max(*left, *right) + 1,
        **{key: pair.measures.get(key) for key in keys},
    }


def _prefix_curves(result: Comparison, keys: Iterable[str]) -> Curves:
    """Return for each measure a line per pair, or, if there are many, one line of their means."""
    if len(result.pairs) <= PANELS:
        return {
            key: {result.pair_name(pair): _curve(pair.prefixes, key) for pair in result.pairs} for key in keys
        }
    means = [(group.recipe or "mean of pairs", group) for group in result.groups or (result.means,)]
    return {key: {name: _mean_curve(group.prefixes, key) for name, group in means} for key in keys}


def _curve(prefixes: Iterable[Any], key: str) -> dict[str, list[Any]]:
    found = [(prefix.length, prefix.measures.get(key)) for prefix in prefixes]
    return {"prefix": [length for length, _ in found], "mean": [value for _, value in found]}


def _mean_curve(prefixes: Iterable[Any], key: str) -> dict[str, list[Any]]:
    found = [(prefix.length, prefix.measures.get(key)) for prefix in prefixes]
    ends = {end: [value and getattr(value, end) for _, value in found] for end in ("mean", "low", "high")}
    return {"prefix": [length for length, _ in found], **ends}


def _chance_curves(result: Comparison, keys: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Return the chance level of each measure by prefix length, where it is known."""
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
    """Return what the first units reconstruct and how often units fire."""
    named = list(zip(result.names, result.saes, strict=True))
    curves = {
        entry.key: {name: _curve(sae.prefixes, entry.key) for name, sae in named}
        for entry in measures_of("curve")
    }
    return [
        plot_prefixes(
            curves,
            title="Reconstruction by the first units",
            caption="What the first units of each SAE reconstruct by themselves, in the order they have.",
        ),
        plot_lines(
            dict(map(_frequencies, result.names, result.saes)),
            title="How often units fire",
            caption="Share of each SAE's units by how often they fire, without dead units.",
            x_label="log10 of the share of samples in which a unit fires",
            y_label="share of units",
        ),
    ]


def _frequencies(name: str, sae: Any) -> tuple[str, tuple[list[float], list[float]]]:
    """Return the share of the units in the middle of each bin."""
    middles = [(low + high) / 2 for low, high in pairwise(sae.frequencies.edges)]
    return name, (middles, [units / sae.units for units in sae.frequencies.units])
