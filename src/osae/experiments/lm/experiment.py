"""The language-model part of the paper, from the options to every table, curve and figure.

Every method is trained on two texts, with several seeds, from each kind of start. An SAE that is
already in the folder is not trained again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osae.data.shards import Shards
from osae.experiments.claims import add_claims
from osae.experiments.lm.activations import TextShards, collect_activations
from osae.experiments.lm.figures import draw_figures
from osae.experiments.lm.measuring import (
    chance_curves,
    measure_crossings,
    measure_row,
    measure_seeds,
    measure_training,
)
from osae.experiments.lm.mixing import mix_texts, split_for_seeds
from osae.experiments.lm.options import ActivationOptions, LMOptions
from osae.experiments.lm.plan import Plan, count_text_rows, make_plan
from osae.experiments.lm.shelf import Shelf, choose_rates, try_rates
from osae.experiments.lm.stitching import measure_stitching
from osae.experiments.options import ENOUGH_SEEDS
from osae.measures import AGREEMENT
from osae.progress import Progress
from osae.results.experiment import Section
from osae.results.lm import Curve, LMResult, MethodCurves, Place

SHOWN_LENGTHS = (64, 256, 1024)


def run(options: LMOptions, progress: Progress) -> LMResult:
    """Return the results of the experiment on the activations that the options name."""
    plan = make_plan(options)
    texts = prepare_texts(options, progress)
    if options.own_documents:
        texts = split_for_seeds(texts, plan.seeds, options.out / "activations", progress)
    return run_plan(replace(plan, texts=texts), progress)


def prepare_texts(options: ActivationOptions, progress: Progress) -> dict[str, TextShards]:
    """Return the activations of the texts, or of their mixtures."""
    texts = collect_activations(options, count_text_rows(options), progress)
    if options.mix is None:
        return texts
    if len(texts) < 2:
        raise ValueError(f"--mix needs two texts, but there is only {', '.join(texts)}: give another.")
    return mix_texts(texts, options.mix, options.out / "activations", progress)


def run_plan(plan: Plan, progress: Progress) -> LMResult:
    """Return every table and curve of the language-model part."""
    trials = try_rates(plan, progress)
    shelf = Shelf(plan, choose_rates(plan, trials))
    shelf.train(progress)
    chance = chance_curves(shelf)
    curves: list[MethodCurves] = []
    sections: list[Section] = []
    for count, place in enumerate(shelf.places, 1):
        progress(count, len(shelf.places), f"measuring {place.title}")
        section, found = _measure_place(place, shelf, chance)
        sections.append(section)
        curves += found
    progressions = tuple(measure_training(shelf))
    enough = plan.seeds >= ENOUGH_SEEDS
    result = LMResult(
        experiment="lm",
        title="Language model: consistency across seeds and texts",
        world=describe_plan(plan),
        seeds=tuple(range(plan.seeds)),
        columns=_choose_columns(plan),
        sections=tuple(sections),
        groups=plan.groups,
        curves=tuple(curves),
        crossings=tuple(measure_crossings(shelf)),
        progressions=progressions,
        own_starts=tuple(MethodCurves(one.place, one.method, one.moments[-1].start) for one in progressions),
        chance_curves=chance,
        stitching=measure_stitching(shelf, progress),
        trials=tuple(trials),
        rates=shelf.rates,
        notes=() if enough else (_too_few(plan.seeds),),
    )
    result = add_claims(result, conclusive=enough)
    return replace(result, figures=tuple(draw_figures(result, plan.out)))


def _measure_place(
    place: Place, shelf: Shelf, chance: Mapping[str, Curve]
) -> tuple[Section, list[MethodCurves]]:
    """Return the table of a place, with the chance level at every prefix length, and its curves."""
    x = shelf.plan.texts[place.text].test_rows()
    rows, curves = [], []
    for method in shelf.methods:
        group = shelf.group(place, method)
        curves.append(MethodCurves(place, method, measure_seeds(group, shelf.plan)))
        rows.append(measure_row(method, shelf.recipe(place, method), group, curves[-1].curves, x))
    return Section(place.title, tuple(rows), chance=_chance_levels(chance)), curves


def _chance_levels(chance: Mapping[str, Curve]) -> dict[str, float]:
    """Return the levels of whole dictionaries, and of stability at every prefix length."""
    stability = chance["stability"]
    levels = {key: curve.mean[-1] for key, curve in chance.items()}
    return levels | {
        f"stability_{n}": level for n, level in zip(stability.prefix, stability.mean, strict=True)
    }


def _choose_columns(plan: Plan) -> tuple[str, ...]:
    """Return the measures that the tables show."""
    shown = [length for length in plan.lengths if length in SHOWN_LENGTHS]
    lengths = dict.fromkeys([*shown, plan.units])
    return ("explained_variance", "dead", *(f"{measure}_{n}" for measure in AGREEMENT for n in lengths))


def _too_few(seeds: int) -> str:
    return f"{seeds} seeds form only one pair, too few for verdicts: use {ENOUGH_SEEDS} or more."


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return the data and the sizes, without paths."""
    texts = {}
    for name, text in plan.texts.items():
        manifest = Shards(text.train).manifest
        model, about = manifest.get("model", {}), manifest.get("text", {})
        texts[name] = {
            "model": str(model.get("name", "")).rsplit("/", 1)[-1],
            "layer": model.get("layer"),
            "rows": Shards(text.train).rows,
            "held_out_rows": Shards(text.held_out).rows,
            **({"mixture": manifest["mixture"]} if "mixture" in manifest else {}),
            **({"rows_by_seed": [Shards(path).rows for path in text.by_seed]} if text.by_seed else {}),
            "files": [file["file"] for file in about.get("files", [])] or about.get("dataset", ""),
        }
    sizes = {"units": plan.units, "k": plan.k, "tokens": plan.tokens, "batch": plan.batch}
    return {"kind": "activations", **sizes, "texts": texts}
