"""What is measured of the SAEs of one method: against the truth, against each other, and on held-out data."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from osae import metrics
from osae.data.worlds import Samples
from osae.model import SAE, Output

EVALUATION_ROWS = 20_000


@dataclass(frozen=True)
class Truth:
    """What the SAEs of a world are held against."""

    dictionary: Tensor
    test: Samples


@torch.no_grad()
def row(saes: Mapping[int, SAE], truth: Truth) -> dict[str, Any]:
    """The measures of one method's SAEs (by seed), each with mean, std and a 95 % interval over seeds."""
    outputs = {seed: sae(truth.test.x) for seed, sae in saes.items()}
    codes = {seed: outputs[seed].code.dense(sae.config.units) for seed, sae in saes.items()}
    single = {seed: against_truth(sae, outputs[seed], truth) for seed, sae in saes.items()}
    result: dict[str, Any] = {
        name: interval(metrics.mean_interval([values[name] for values in single.values()]))
        for name in next(iter(single.values()))
    }
    if len(saes) > 1:
        pairs = {}
        for (i, a), (j, b) in itertools.combinations(enumerate(saes), 2):
            pairs[i, j] = against_each_other(saes[a].decoder, saes[b].decoder, codes[a], codes[b])
        for name in next(iter(pairs.values())):
            numbers = {pair: values[name] for pair, values in pairs.items()}
            result[f"{name}_pairs"] = interval(metrics.pair_interval(numbers))
    return result


def against_truth(sae: SAE, output: Output, truth: Truth) -> dict[str, float]:
    """One SAE's measures on the held-out samples and against the true dictionary."""
    x, true_code = truth.test
    rebuilt, code = output
    units = sae.config.units
    found = metrics.consistency(sae.decoder, truth.dictionary)
    stream = metrics.consistency_from(
        metrics.match(
            metrics.activation_similarity(code.dense(units), true_code.dense(len(truth.dictionary)))
        )
    )
    return {
        "stability_truth": found.stability,
        "orderedness_truth": found.orderedness,
        "stream_stability_truth": stream.stability,
        "stream_orderedness_truth": stream.orderedness,
        "mse": metrics.mse(x, rebuilt),
        "explained_variance": metrics.explained_variance(x, rebuilt),
        "l0": metrics.l0(code.values),
        "dead": metrics.dead_share(code.values, code.units, units),
        "fifr": metrics.fifr(truth.dictionary, true_code, sae.decoder, code),
    }


def against_each_other(a: Tensor, b: Tensor, code_a: Tensor, code_b: Tensor) -> dict[str, float]:
    """The agreement of two SAEs, in their decoders and in what their units say (dense codes)."""
    found = metrics.consistency(a, b)
    stream = metrics.consistency_from(metrics.match(metrics.activation_similarity(code_a, code_b)))
    return {
        "stability": found.stability,
        "orderedness": found.orderedness,
        "stream_stability": stream.stability,
        "stream_orderedness": stream.orderedness,
    }


def interval(found: metrics.Interval) -> dict[str, float]:
    return {"mean": found.mean, "std": found.std, "low": found.low, "high": found.high}
