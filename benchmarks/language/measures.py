"""Measure a trial on a language model: two SAEs from disjoint documents, on text that neither has seen."""

from collections.abc import Sequence

import torch
from torch import Tensor

from osae import metrics, passes
from osae.data.shards import Shards
from osae.model import SAE

OFTEN = 1e-4  # a unit that fires less often has hardly been trained


def measure_pair(saes: Sequence[SAE], held_out: Shards, lengths: Sequence[int]) -> dict[str, float]:
    """Return the measures of a pair: agreement at each prefix length, and mean explained variance."""
    a, b = (sae.decoder.detach() for sae in saes)
    streams, explained, dead = zip(*(_observe(sae, held_out) for sae in saes), strict=True)
    firing = [atoms[stream.frequency() > OFTEN] for atoms, stream in zip((a, b), streams, strict=True)]
    found = {}
    for entry in metrics.prefix_consistency(a, b, [*lengths, len(a)]):
        where = "" if entry.length == len(a) else f"_{entry.length}"
        found |= {f"stability{where}": entry.stability, f"orderedness{where}": entry.orderedness}
        found[f"ev{where}"] = _mean([float(curve[entry.length - 1]) for curve in explained])
    return found | {
        "stability_firing": metrics.stability(*firing),
        "stream_stability": float(metrics.match_streams(*streams).similarity.mean()),
        "chance": metrics.chance_level(len(a), len(b), a.shape[1], like=metrics.fit_atoms(a, b)).stability,
        "dead": _mean(dead),
    }


@torch.no_grad()
def _observe(sae: SAE, held_out: Shards) -> tuple[metrics.Stream, Tensor, float]:
    """Return the codes, the explained variance of every prefix, and the share of dead units."""
    codes, curve = metrics.StreamRecorder(sae.config.units), metrics.PrefixCurve(sae.decoder)
    for x in held_out.batches():
        code = passes.encode(sae, x)
        codes.update(*code)
        curve.update(*code, x - sae.decoder_bias)
    stream = codes.stream()
    return stream, curve.explained_variance(), float((stream.frequency() == 0).double().mean())


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
