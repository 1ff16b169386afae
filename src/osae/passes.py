"""Passes over rows: run SAEs on activations, batch by batch.

Training, studies and experiments read activations through these functions. Batches are matrices of rows on
the CPU; an SAE may be on any device. These functions do not train or modify anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae import metrics
from osae.devices import ALIGNED, single_thread, threads_for
from osae.model import SAE
from osae.results.ordering import By
from osae.sparsify import Code

ROWS = 8192  # rows to encode at a time, if they are in memory

Key = TypeVar("Key")


def encode(sae: SAE, x: Float[Tensor, "B d"], *, k: int | None = None) -> Code:
    """Return the code of the rows, on the CPU; it does not depend on the number of threads."""
    with threads_for(_count_work(sae, x)):
        code = sae.encode(x.to(sae.decoder.device), k=k)
        return Code(code.values.cpu(), code.units.cpu())


def decode(sae: SAE, code: Code, x: Float[Tensor, "B d"]) -> Float[Tensor, "B d"]:
    """Return the reconstruction of the rows from their code; it does not depend on the number of threads."""
    with threads_for(_count_work(sae, x) if sae.config.width % ALIGNED == 0 else 0):
        return sae.decode(code, x)


def _count_work(sae: SAE, x: Float[Tensor, "B d"]) -> int:
    return len(x) * sae.config.units * sae.config.width


@torch.no_grad()
def encode_batches(
    saes: Mapping[Key, SAE], batches: Iterable[Float[Tensor, "B d"]]
) -> Iterator[tuple[Float[Tensor, "B d"], dict[Key, Code]]]:
    """Yield each batch with its code under every SAE."""
    for x in batches:
        yield x, {key: encode(sae, x) for key, sae in saes.items()}


def check_order(by: str) -> None:
    """Raise `ValueError` unless units can be ordered by this criterion."""
    if by not in get_args(By):
        raise ValueError(f"by={by!r}: give one of {', '.join(get_args(By))}.")


@single_thread()
@torch.no_grad()
def order_units(
    sae: SAE,
    batches: Iterable[Float[Tensor, "B d"]],
    *,
    by: By = "gain",
    k: int | None = None,
    weights: Float[Tensor, "K"] | None = None,
) -> Int[Tensor, "K"]:
    """Return the units in the order determined by the rows; ties keep their current order.

    "gain": each unit is followed by the one that then lowers the error most; "energy": by how much each unit
    lowers the error on its own; "frequency": how often it fires. With `k`, that many units are selected, as
    in training. `weights` multiply what units are sorted by: each unit's gain at its place, for example.
    """
    check_order(by)
    decoder = sae.decoder.cpu()
    # coactivity costs time and memory, and only the gain needs it
    activity = metrics.Coactivity(decoder) if by == "gain" else metrics.UnitActivity(decoder)
    for x in batches:
        code, offset = sae.unscale(encode(sae, x, k=k), x)
        activity.update(*code, x - offset.cpu())
    if isinstance(activity, metrics.Coactivity):
        order, score = activity.greedy_gains()
        if weights is None:
            return order
    else:
        score = activity.energy() if by == "energy" else activity.frequency()
    weighted = score if weights is None else score * weights.cpu()
    return weighted.argsort(descending=True, stable=True)


@single_thread()
@torch.no_grad()
def reconstruct(sae: SAE, batches: Iterable[Float[Tensor, "B d"]]) -> metrics.ReconstructionResult:
    """Return how well the SAE reconstructs the rows."""
    sums = metrics.Reconstruction(sae.config.units)
    for x, codes in encode_batches({0: sae}, batches):
        sums.update(x, decode(sae, codes[0], x), *codes[0])
    return sums.result()


@single_thread()
@torch.no_grad()
def stitch(small: SAE, large: SAE, batches: Iterable[Float[Tensor, "B d"]]) -> metrics.StitchingResult:
    """Return what each unit of the large SAE does to the error of the small one."""
    sums = metrics.Stitching(large.decoder)
    for x in batches:
        code, _ = large.unscale(encode(large, x), x)
        sums.update(*code, x - decode(small, encode(small, x), x))
    return sums.result()
