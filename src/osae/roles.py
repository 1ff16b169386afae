"""What the units of an SAE do on activations: the order that follows, and what is new in a larger SAE.

Shapes: K units, d width.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from osae import metrics
from osae.comparison import BATCH, Progress, about, runnable
from osae.data.shards import Shards
from osae.interop import Loaded
from osae.model import SAE
from osae.versions import versions

SCHEMA = 1
SHOWN = 20  # units listed as the most novel

By = Literal["gain", "energy", "frequency"]
ORDERS: tuple[By, ...] = ("gain", "energy", "frequency")


class Ordered(NamedTuple):
    """An SAE in its canonical order: unit `order[i]` of the source is in place i."""

    sae: SAE
    order: Int[Tensor, "K"]
    provenance: dict[str, Any]


@torch.no_grad()
def ordered(source: Loaded, shards: Shards, *, by: By = "gain", progress: Progress | None = None) -> Ordered:
    """The SAE with its units in an order that its activations give, and where both come from.

    "gain": next comes the unit that lowers the error most after those before it; "energy": what each
    explains on its own; "frequency": how often it speaks. Ties keep the order they have.
    """
    if by not in ORDERS:
        raise ValueError(f"by={by!r}: give one of {', '.join(ORDERS)}.")
    sae = runnable(source, shards)
    # co-activity takes time and room, which only the gain needs
    activity = (metrics.Coactivity if by == "gain" else metrics.UnitActivity)(sae.decoder)
    for done, x in enumerate(shards.batches(BATCH), 1):
        activity.update(*sae.encode(x), x - sae.decoder_bias)
        _tell(progress, done, shards)
    order = _order(activity, by)
    provenance = {
        "versions": versions(),
        "source": about(source) | {"provenance": source.metadata.get("provenance")},
        "order": {"by": by, "activations": shards.provenance()},
    }
    return Ordered(sae.reorder(order), order, provenance)


def _order(activity: metrics.UnitActivity, by: By) -> Int[Tensor, "K"]:
    if isinstance(activity, metrics.Coactivity):
        return activity.greedy_order()
    score = activity.energy() if by == "energy" else activity.frequency()
    return score.argsort(descending=True, stable=True)


@torch.no_grad()
def stitch(
    small: Loaded, large: Loaded, shards: Shards, *, progress: Progress | None = None
) -> dict[str, Any]:
    """The shares of the large SAE's units that are new to the small one, repeat it, or change nothing.

    `change` is each unit's mean change of the small SAE's squared error, over all samples.
    """
    inner, outer = runnable(small, shards), runnable(large, shards)
    stitching, error = metrics.Stitching(outer.decoder), 0.0
    for done, x in enumerate(shards.batches(BATCH), 1):
        residual = x - inner(x).reconstruction
        error += float(residual.double().square().sum())
        stitching.update(*outer.encode(x), residual)
        _tell(progress, done, shards)
    result = stitching.result()
    change, error = result.change / shards.rows, error / shards.rows
    return {
        "schema": SCHEMA,
        "kind": "stitching",
        "provenance": {"versions": versions()},
        "activations": shards.provenance(),
        "small": about(small),
        "large": about(large),
        "error": error,
        "novel": result.novel,
        "reconstruction": result.reconstruction,
        "unchanged": result.unchanged,
        "most_novel": _most_novel(change, result.frequency, error, small.decoder, large.decoder),
        "change": change.tolist(),
        "frequency": result.frequency.tolist(),
    }


def _most_novel(
    change: Float[Tensor, "K"],
    frequency: Float[Tensor, "K"],
    error: float,
    small: Float[Tensor, "Ks d"],
    large: Float[Tensor, "K d"],
) -> list[dict[str, Any]]:
    """The units that lower the error most, each with the atom of the small SAE that is nearest to its own."""
    order = change.argsort(stable=True)[:SHOWN]
    chosen = order[change[order] < 0]
    # a zero atom has cosine 0 with every other
    cosines = normalize(large[chosen].double()) @ normalize(small.double()).T
    cosine, nearest = cosines.max(1)
    return [
        {
            "unit": unit,
            "change": float(change[unit]),
            "share_of_error": -float(change[unit]) / error,
            "frequency": float(frequency[unit]),
            "nearest": int(nearest[place]),
            "cosine": float(cosine[place]),
        }
        for place, unit in enumerate(chosen.tolist())
    ]


def _tell(progress: Progress | None, done: int, shards: Shards) -> None:
    if progress is not None:
        progress(done, -(-shards.rows // BATCH), "activations")
