"""How far SAEs move from a random start: the same seed on two texts, by learning rate and AuxK.

The same seed starts with the same atoms on both texts. Units that hardly move then agree across texts without
having learned anything, so agreement is shown next to the share of units that are used at all.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from osae import metrics, passes
from osae.config import to_json
from osae.experiments.chance import chance_levels
from osae.experiments.claims import LM_START, add_claims
from osae.experiments.jobs import Job, train_all
from osae.experiments.lm.experiment import describe_plan, prepare_texts
from osae.experiments.lm.figures import draw_start
from osae.experiments.lm.options import START_RATES, StartOptions
from osae.experiments.lm.plan import Plan, plan_sizes
from osae.experiments.lm.start_claims import Condition
from osae.experiments.methods import NOISE
from osae.experiments.options import ENOUGH_SEEDS
from osae.measures import AGREEMENT
from osae.metrics.statistics import runs_interval
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import group_ends
from osae.results.base import Interval
from osae.results.experiment import ExperimentResult, MethodRow, Section

COLUMNS = (
    "orderedness_texts",
    "stability_texts",
    "orderedness_start",
    "stability_start",
    "explained_variance",
)
NOTE = (
    "SAEs start with the same atoms on both texts, so those that learned nothing would have an agreement of "
    "1 across texts. Unused units never fire on held-out text; groups are Matryoshka's."
)


def make_jobs(condition: Condition, plan: Plan, text: str) -> Iterator[Job]:
    """Yield the training runs of a condition on a text; a snapshot of their start is saved."""
    task = plan.task()
    for method, seed in itertools.product(plan.methods, range(plan.seeds)):
        made = plan.recipe(method, NOISE, condition.rate, task)
        made = made if condition.auxk else replace(made, revival=None)
        yield Job(made, seed, plan.source(text, seed), (0,), plan.device)


def find_root(condition: Condition, plan: Plan, text: str) -> Path:
    """Return the folder of the SAEs of a condition that are trained on a text."""
    return plan.out / "saes" / f"{condition.rate:g}{'' if condition.auxk else '-no-auxk'}" / text


def run(options: StartOptions, progress: Progress) -> ExperimentResult:
    """Return a table for each learning rate, with and without AuxK."""
    plan = replace(plan_sizes(options), texts=prepare_texts(options, progress))
    if len(plan.texts) < 2:
        raise ValueError(
            f"the study needs two texts, but there is only {', '.join(plan.texts)}: give another."
        )
    plan = replace(plan, texts=dict(itertools.islice(plan.texts.items(), 2)))
    rates = options.rates or (START_RATES[-1:] if options.quick else START_RATES)
    conditions = [Condition(rate, auxk) for rate in rates for auxk in (True, False)]
    _train_all(plan, conditions, progress)
    tables = {condition: _measure_condition(plan, condition) for condition in conditions}
    result = ExperimentResult(
        experiment=LM_START,
        title="From noise: how far SAEs leave their start",
        world=describe_plan(plan),
        seeds=tuple(range(plan.seeds)),
        columns=(*COLUMNS, *(f"unused_{end}" for end in _ends(plan))),
        sections=tuple(tables.values()),
        figures=tuple(draw_start(tables, _ends(plan), plan.out)),
        notes=(NOTE,),
    )
    return add_claims(result, conclusive=not options.quick and plan.seeds >= ENOUGH_SEEDS)


def _ends(plan: Plan) -> tuple[int, ...]:
    """Return where groups of units end."""
    return group_ends(plan.units, min(plan.groups, plan.units))


def _train_all(plan: Plan, conditions: list[Condition], progress: Progress) -> None:
    """Train the SAEs that do not exist yet."""
    total, count = len(conditions) * len(plan.texts) * len(plan.methods) * plan.seeds, 0
    for condition, text in itertools.product(conditions, plan.texts):
        jobs = list(make_jobs(condition, plan, text))
        for done in train_all(jobs, find_root(condition, plan, text), place=plan.where):
            count += 1
            progress(count, total, f"trained {done.job.name}, {text}, {condition.title}")


@torch.no_grad()
def _measure_condition(plan: Plan, condition: Condition) -> Section:
    """Return the table of one rate, with or without AuxK."""
    held_out = {text: shards.test_rows() for text, shards in plan.texts.items()}
    rows, decoders = [], []
    for method in plan.methods:
        by_text = {
            text: [
                (SAE.load(job.snapshot(root, 0)), SAE.load(job.folder(root)))
                for job in make_jobs(condition, plan, text)
                if job.recipe.name == method
            ]
            for text in plan.texts
            for root in (find_root(condition, plan, text),)
        }
        recipe = next(
            job.recipe
            for job in make_jobs(condition, plan, next(iter(plan.texts)))
            if job.recipe.name == method
        )
        rows.append(MethodRow(method, recipe=to_json(recipe), measures=_measure(by_text, held_out, plan)))
        decoders += [saes[0][1].decoder for saes in by_text.values()]
    return Section(condition.title, tuple(rows), chance=chance_levels(decoders), x=condition.rate)


def _measure(
    by_text: Mapping[str, list[tuple[SAE, SAE]]], held_out: Mapping[str, Tensor], plan: Plan
) -> dict[str, Interval]:
    """Return the measures of a method, over seeds; those of single SAEs are means over the texts."""
    seeds = range(plan.seeds)
    one, other = by_text.values()
    across = [metrics.consistency(one[seed][1].decoder, other[seed][1].decoder) for seed in seeds]
    own = {
        (text, seed): metrics.consistency(*(sae.decoder for sae in saes[seed]))
        for text, saes in by_text.items()
        for seed in seeds
    }
    single = {
        (text, seed): _run_sae(saes[seed][1], held_out[text], _ends(plan))
        for text, saes in by_text.items()
        for seed in seeds
    }

    def mean(number: Callable[[tuple[str, int]], float]) -> Interval:
        return runs_interval({seed: sum(number((text, seed)) for text in by_text) / 2 for seed in seeds})

    found = {}
    for key in AGREEMENT:
        found[f"{key}_texts"] = runs_interval({seed: getattr(across[seed], key) for seed in seeds})
        found[f"{key}_start"] = mean(lambda sae, key=key: getattr(own[sae], key))
    return found | {key: mean(lambda sae, key=key: single[sae][key]) for key in next(iter(single.values()))}


def _run_sae(sae: SAE, x: Tensor, ends: tuple[int, ...]) -> dict[str, float]:
    """Return an SAE's explained variance, and the share of unused units in each group."""
    sums = metrics.Reconstruction(sae.config.units)
    for batch, codes in passes.encode_batches({0: sae}, x.split(passes.ROWS)):
        sums.update(batch, sae.decode(codes[0], batch), *codes[0])
    result, inactive = sums.result(), ~sums.fired
    groups = itertools.pairwise((0, *ends))
    unused = {f"unused_{stop}": float(inactive[start:stop].double().mean()) for start, stop in groups}
    return {"explained_variance": result.explained_variance, "dead": result.dead_share, **unused}
