"""Measures for hard worlds in addition to those of the other worlds: MCC, F1, and the first units."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from osae import metrics
from osae.data.worlds import ForestWorld
from osae.experiments.worlds.measuring import Truth, against_truth, measure_saes
from osae.metrics.statistics import pairs_interval
from osae.model import SAE, Output
from osae.results.base import Interval
from osae.sparsify import Code

OFTEN = 1e-4  # a unit that fires more rarely has hardly been trained


def find_truth(world: ForestWorld, rows: int) -> Truth:
    """Return the true atoms and held-out samples of a world."""
    return Truth(world.dictionary(), world.draw("test", rows))


def measure_hard(saes: Mapping[int, SAE], truth: Truth) -> dict[str, Interval]:
    """Return all measures of one method's SAEs, by seed."""
    found = measure_saes(saes, truth, measure_one)
    if len(saes) < 2:
        return found
    firing = {seed: _find_firing(sae, truth.test.x) for seed, sae in saes.items()}
    pairs = {(a, b): metrics.stability(firing[a], firing[b]) for a, b in itertools.combinations(saes, 2)}
    return found | {"stability_firing_pairs": pairs_interval(pairs)}


@torch.no_grad()
def _find_firing(sae: SAE, x: Tensor) -> Tensor:
    """Return the atoms of the units that fire in more than one sample in 10,000; all if none does."""
    code = sae.encode(x)
    often = metrics.frequency(code.values, code.units, sae.config.units) > OFTEN
    return sae.decoder[often] if bool(often.any()) else sae.decoder


def measure_pair(saes: Sequence[SAE], world: ForestWorld, rows: int) -> dict[str, float]:
    """Return the means of all measures of a few SAEs."""
    found = measure_hard(dict(enumerate(saes)), find_truth(world, rows))
    return {key: interval.mean for key, interval in found.items()}


@torch.no_grad()
def measure_one(sae: SAE, output: Output, truth: Truth) -> dict[str, float]:
    """Return one SAE's measures against the truth, and on held-out samples."""
    code, present = output.code, truth.test.code.dense(len(truth.dictionary)) > 0
    fires = code.dense(sae.config.units) > 0
    return against_truth(sae, output, truth) | {
        "mcc_truth": metrics.stability(sae.decoder, truth.dictionary, absolute=True),
        "f1_truth": metrics.detection_f1(sae.decoder, fires, truth.dictionary, present),
        "ev_quarter": _explain(sae, code, truth.test.x, sae.config.units // 4),
        "ev_half": _explain(sae, code, truth.test.x, sae.config.units // 2),
    }


def _explain(sae: SAE, code: Code, x: Tensor, units: int) -> float:
    """Return the explained variance of the first units alone."""
    first = Code(code.values * (code.units < units), code.units)
    return metrics.explained_variance(x, sae.decode(first))
