"""Measure the SAEs of a method: against the truth, against each other, and on held-out data."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osae import metrics
from osae.config import to_json
from osae.data.worlds import Samples, SparseWorld, World
from osae.devices import single_thread
from osae.experiments.chance import chance_levels
from osae.experiments.published import TABLE_1
from osae.experiments.worlds.training import Group
from osae.metrics.statistics import pairs_interval, runs_interval
from osae.model import SAE, Output
from osae.results.base import Interval
from osae.results.experiment import MethodRow

EVALUATION_ROWS = 20_000
SHIFTS = 8  # of activations, for their chance level


@dataclass(frozen=True)
class Truth:
    """The true dictionary of a world, and held-out samples with their true codes."""

    dictionary: Tensor
    test: Samples


def measure_rows(groups: Sequence[Group], world: SparseWorld) -> tuple[MethodRow, ...]:
    """Return one row per method, next to the published row on the paper's world."""
    truth = Truth(world.dictionary(), world.draw("test", EVALUATION_ROWS))
    as_published = replace(world, seed=0) == SparseWorld()
    return tuple(
        MethodRow(
            group.method,
            paper=TABLE_1.get(group.method) if as_published else None,
            recipe=to_json(group.recipe),
            measures={"seconds": group.seconds, **measure_saes(group.saes, truth)},
        )
        for group in groups
    )


MeasureOne = Callable[[SAE, Output, Truth], dict[str, float]]


@single_thread()  # the last bits of sums depend on the number of threads
@torch.no_grad()
def measure_saes(
    saes: Mapping[int, SAE], truth: Truth, measure_one: "MeasureOne | None" = None
) -> dict[str, Interval]:
    """Return the measures of one method's SAEs (by seed), each with its 95 % interval over seeds.

    `measure_one` measures a single SAE; by default `against_truth` does.
    """
    measure_one = measure_one or against_truth
    outputs = {seed: sae(truth.test.x) for seed, sae in saes.items()}
    single = {seed: measure_one(sae, outputs[seed], truth) for seed, sae in saes.items()}
    result = {
        name: runs_interval({seed: values[name] for seed, values in single.items()})
        for name in next(iter(single.values()))
    }
    if len(saes) == 1:
        return result
    codes = {seed: outputs[seed].code.dense(sae.config.units) for seed, sae in saes.items()}
    pairs = {
        (a, b): _against_each_other(saes[a].decoder, saes[b].decoder, codes[a], codes[b])
        for a, b in itertools.combinations(saes, 2)
    }
    names = next(iter(pairs.values()))
    return result | {
        f"{name}_pairs": pairs_interval({pair: values[name] for pair, values in pairs.items()})
        for name in names
    }


def against_truth(sae: SAE, output: Output, truth: Truth) -> dict[str, float]:
    """Return one SAE's measures on the held-out samples and against the true dictionary."""
    x, true_code = truth.test
    reconstruction, code = output
    units = sae.config.units
    agreement = _against_each_other(
        sae.decoder, truth.dictionary, code.dense(units), true_code.dense(len(truth.dictionary))
    )
    measured = metrics.measure_reconstruction(x, reconstruction, *code, units).measures()
    return (
        {f"{name}_truth": value for name, value in agreement.items()}
        | {key: value for key, value in measured.items() if value is not None}
        | {"fifr": metrics.fifr(truth.dictionary, true_code, sae.decoder, code)}
    )


def _against_each_other(a: Tensor, b: Tensor, code_a: Tensor, code_b: Tensor) -> dict[str, float]:
    """Return the agreement of two dictionaries, in their atoms and in their activations (dense codes)."""
    atoms = metrics.consistency(a, b)
    stream = metrics.consistency_from(metrics.match(metrics.activation_similarity(code_a, code_b)))
    return {
        "stability": atoms.stability,
        "orderedness": atoms.orderedness,
        "stream_stability": stream.stability,
        "stream_orderedness": stream.orderedness,
    }


@torch.no_grad()
def stream_chance(groups: Sequence[Group], x: Tensor) -> dict[str, float]:
    """Return how well activations agree after those of one seed are shifted against the other's.

    Each result is the mean over methods, using the first two seeds of each, and over several shifts. Units
    that fire as often as each other remain a little more similar, so the orderedness of methods with an order
    is above zero.
    """
    found = []
    for group in groups:
        if len(group.saes) > 1:
            one, other = (sae.encode_dense(x) for sae in list(group.saes.values())[:2])
            for shift in range(1, SHIFTS + 1):
                moved = other.roll(len(x) * shift // (SHIFTS + 1), 0)
                similarity = metrics.activation_similarity(one, moved)
                found.append(metrics.consistency_from(metrics.match(similarity)))
    if not found:
        return {}
    return {
        "stream_stability": sum(one.stability for one in found) / len(found),
        "stream_orderedness": sum(one.orderedness for one in found) / len(found),
    }


def list_decoders(groups: Sequence[Group]) -> list[Tensor]:
    """Return the decoders of all SAEs."""
    return [sae.decoder for group in groups for sae in group.saes.values()]


def measure_chance(groups: Sequence[Group], world: World) -> dict[str, float]:
    """Return the chance levels of atoms and of activations."""
    return chance_levels(list_decoders(groups)) | stream_chance(groups, world.draw("test", EVALUATION_ROWS).x)
