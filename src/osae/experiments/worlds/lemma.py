"""The paper's lemma and theorem on exact minimisers of small worlds; `docs/theory.md` has the proofs.

Nothing is trained. From the truth, where the full loss is zero, the nested loss is lowered by exact steps:
first with the true atoms and supports, codes free; then with everything free. On worlds of five atoms, every
order of them is tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import assert_never

import joblib
import numpy as np
import torch

from osae import metrics
from osae.config import to_json
from osae.experiments.claims import add_claims
from osae.experiments.worlds.figures import make_folder
from osae.experiments.worlds.identifiability import LEMMA_WORLD, WORLDS, identifiability_row
from osae.experiments.worlds.minimisers import (
    Point,
    Problem,
    atom_gradient,
    best_codes,
    code_gradient,
    descend,
    measure_losses,
)
from osae.experiments.worlds.options import LemmaOptions
from osae.experiments.worlds.theorem import SAME, TINY_WORLDS, measure_tiny_world
from osae.experiments.worlds.theory_claims import (
    FIXED_CODES,
    IDENTIFIABILITY,
    LEMMA,
    THEOREM,
    Case,
    Kind,
    TriedWeights,
)
from osae.experiments.worlds.truths import decorrelate_pairs, draw_truth
from osae.metrics.statistics import runs_interval
from osae.prefix import Fixed, Geometric, Uniform, prefix_weights
from osae.progress import Progress
from osae.results.experiment import ExperimentResult, Figure, MethodRow, Section

WEIGHTS: Mapping[TriedWeights, Fixed] = {
    TriedWeights.UNIFORM: Uniform(),
    TriedWeights.GEOMETRIC: Geometric(0.8),
}
ROUNDS, DRAWN_ROUNDS = 200, 10
LEMMA_COLUMNS = (
    "code_gradient",
    "atom_gradient",
    "nested_loss_truth",
    "nested_loss_codes",
    "nested_loss_free",
    "full_loss_codes",
    "full_loss_free",
    "leaves_truth",
)
THEOREM_COLUMNS = (
    "nested_loss_truth",
    "nested_loss_codes",
    "full_loss_codes",
    "best_order_frequency",
    "best_order_energy",
    "best_order_gain",
    "tied_orders",
    "swaps",
)
FIXED_COLUMNS = ("nested_loss_truth", "best_fixed_frequency", "best_fixed_energy", "best_fixed_gain")
NOTES = (
    "Losses are shares of the data's mean squared norm. Seeds are those of the worlds.",
    "The minimisers with everything free are local ones, found from the truth: the global ones have a nested "
    "loss that is at most as high.",
    f"Geometric p is proportional to 0.8^l. Samples of a lemma world: {LEMMA_WORLD.samples}.",
)


@dataclass(frozen=True)
class Descent:
    """The results for one world and one p, and the path from the truth to the minimiser."""

    measures: dict[str, float]
    path: list[dict[str, float]]


def run(options: LemmaOptions, progress: Progress) -> ExperimentResult:
    """Return a section each for the lemma, the theorem, and the properties of the worlds."""
    seeds = options.seed_list
    descents = {
        Case(kind, name): [partial(descend_from_truth, kind, weights, seed) for seed in seeds]
        for kind in Kind
        for name, weights in WEIGHTS.items()
    }
    searches = {
        tiny.case: [partial(measure_tiny_world, tiny, seed) for seed in seeds] for tiny in TINY_WORLDS
    }
    tasks = [task for group in (*descents.values(), *searches.values()) for task in group]
    done = iter(_work(tasks, options.workers, progress))
    found = {case: list(islice(done, len(seeds))) for case in (*descents, *searches)}
    lemma = [_row(str(case), [descent.measures for descent in found[case]]) for case in descents]
    theorem = [_row(str(case), found[case]) for case in searches]
    result = ExperimentResult(
        experiment="lemma",
        title="The lemma and the theorem, on exact minimisers",
        world=to_json(LEMMA_WORLD),
        seeds=seeds,
        sections=_sections(lemma, theorem),
        figures=(_draw_paths({case: found[case] for case in descents}, options.out),),
        notes=NOTES,
    )
    return add_claims(result, conclusive=True)  # losses are exact: one world is enough to refute a claim


def _work(tasks: Sequence[partial], workers: int, progress: Progress) -> Iterator:
    """Yield the result of each task, in order."""
    progress(0, len(tasks), "minimising")
    pool = joblib.Parallel(n_jobs=workers, prefer="threads", return_as="generator")
    for count, found in enumerate(pool(joblib.delayed(task)() for task in tasks), start=1):
        progress(count, len(tasks), "minimising")
        yield found


def descend_from_truth(kind: Kind, weights: Fixed, seed: int) -> Descent:
    """Return how both losses change on the way from the truth to a minimiser of the nested loss."""
    truth, signed = draw_kind(kind, seed)
    active = int((truth.codes != 0).sum(1).max())
    p = prefix_weights(weights, len(truth.atoms)).numpy()
    problem = Problem(truth.codes @ truth.atoms, p, active, signed)
    start = Point(truth.atoms, best_codes(problem, truth.atoms, allowed=truth.codes != 0))
    points = [truth, *descend(problem, start, ROUNDS)]
    losses = [measure_losses(problem, point) for point in points]
    first, codes, free = losses[0], losses[1], losses[-1]
    measures = {
        "nested_loss_truth": first.nested,
        "nested_loss_codes": codes.nested,
        "nested_loss_free": free.nested,
        "full_loss_codes": codes.full,
        "full_loss_free": free.full,
        "code_gradient": float(np.sqrt(np.square(code_gradient(problem, truth)).sum(1).mean())),
        "atom_gradient": float(np.linalg.norm(atom_gradient(problem, truth))),
        "leaves_truth": float(free.nested < first.nested - SAME and free.full > first.full + SAME),
        "stability_truth": metrics.stability(torch.tensor(points[-1].atoms), torch.tensor(truth.atoms)),
    }
    path = [{"nested_change": one.nested - first.nested, "full_loss": one.full} for one in losses]
    return Descent(measures, path)


def draw_kind(kind: Kind, seed: int) -> tuple[Point, bool]:
    """Return the truth of a world of this kind, and whether its codes have signs."""
    world = replace(LEMMA_WORLD, seed=seed)
    match kind:
        case Kind.GAUSSIAN:
            return draw_truth(world), False
        case Kind.ORTHONORMAL:
            return draw_truth(world, orthonormal=True), False
        case Kind.ONE_AT_A_TIME:
            return draw_truth(replace(world, active=1), orthonormal=True), False
        case Kind.SIGNED:
            half = draw_truth(replace(world, samples=world.samples // 2), orthonormal=True)
            return Point(half.atoms, decorrelate_pairs(half.codes)), True
        case _:
            assert_never(kind)


# --- tables and figures -----------------------------------------------------------------------------


def _row(name: str, worlds: Sequence[Mapping[str, float]]) -> MethodRow:
    """Return the mean of each measure over the worlds that have it."""
    keys = dict.fromkeys(key for measures in worlds for key in measures)
    values = {
        key: {seed: measures[key] for seed, measures in enumerate(worlds) if key in measures} for key in keys
    }
    return MethodRow(name, measures={key: runs_interval(found) for key, found in values.items()})


def _sections(lemma: Sequence[MethodRow], theorem: Sequence[MethodRow]) -> tuple[Section, ...]:
    worlds = [identifiability_row(name, world) for name, world in WORLDS.items()]
    tables: dict[str, tuple[Sequence[MethodRow], tuple[str, ...]]] = {
        LEMMA: (lemma, LEMMA_COLUMNS),
        THEOREM: (theorem, THEOREM_COLUMNS),
        FIXED_CODES: (theorem, FIXED_COLUMNS),
        IDENTIFIABILITY: (worlds, tuple(worlds[0].measures)),
    }
    return tuple(
        Section(title, tuple(_select(row, columns) for row in rows), columns=columns, head="World")
        for title, (rows, columns) in tables.items()
    )


def _select(row: MethodRow, columns: Sequence[str]) -> MethodRow:
    """Return the row restricted to the measures of a table."""
    return replace(row, measures={key: row.measures[key] for key in columns if key in row.measures})


def _draw_paths(descents: Mapping[Case, Sequence[Descent]], out: Path) -> Figure:
    """Draw both losses against the exact steps from the truth, for every kind of world with uniform p."""
    from osae.report import figures

    drawn = {case.kind: each for case, each in descents.items() if case.variant is TriedWeights.UNIFORM}
    sections = [
        Section(
            str(step),
            tuple(
                _row(kind, [one.path[min(step, len(one.path) - 1)] for one in each])
                for kind, each in drawn.items()
            ),
            x=float(step),
        )
        for step in range(DRAWN_ROUNDS + 1)
    ]
    file = make_folder(out) / "descent.png"
    figures.sweep(
        sections,
        ("nested_change", "full_loss"),
        out / file,
        title="From the truth to a minimiser of the nested loss",
        x_label="exact steps from the truth",
    )
    caption = (
        "Both losses while exact steps from the truth (step 0) lower the nested loss: first the codes on the "
        "true atoms and supports (step 1), then atoms, supports and codes. Uniform p; bands are 95 % "
        "intervals over worlds."
    )
    return Figure(file.as_posix(), caption)
