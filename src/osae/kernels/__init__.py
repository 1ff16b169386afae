"""The three operations that take most of the time, and the choice of a backend for them.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

A code is `values` and `units`, in any order; an entry of value zero is padding: it changes nothing,
may repeat any unit, and receives no gradient. Decoder and encoder are (K, d), one row per unit.

All backends implement the same contract: `reference` (plain torch), `cpu` (numba), `gpu` (triton) and `dense`
(matrix products over all K units, for codes that are hardly sparse). The backend is chosen here for each
call, by device, dtype and sparsity; `using("reference")` or OSAE_KERNEL=reference forces one.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.kernels import batch
from osae.kernels.precision import without_autocast

BACKENDS = ("reference", "cpu", "dense", "gpu")

# The share of the K units above which matrix products over all of them replace loops over the active ones.
# Measured in CPU time on one thread, forward and backward, loss and encoder together: the loops take 0.8 to
# 0.9 times as long at a share of 0.7, and 1.2 to 1.5 times as long at 1, for (d, K) = (80, 100), (128, 1024),
# (512, 2048) and (576, 512). Other devices have the value of older loops: not measured.
DENSE_SHARE = 0.75
DENSE_SHARE_ELSEWHERE = 0.4

_forced: ContextVar[str | None] = ContextVar("osae_kernel", default=None)


@without_autocast
def all_prefix_loss(
    x: Float[Tensor, "B d"],
    values: Float[Tensor, "B k"],
    units: Int[Tensor, "B k"],
    decoder: Float[Tensor, "K d"],
    weights: Float[Tensor, "K"],
) -> Float[Tensor, "B"]:
    """Return the exact ordered loss of each sample: sum_l p(l) |x - sum_{j<l} z_j d_j|^2.

    `weights[l-1]` is p(l) and gets no gradient. Differentiable in x, values and decoder.
    """
    _check_code(values, units, decoder)
    if x.shape != (len(values), decoder.shape[1]) or x.dtype != decoder.dtype:
        raise ValueError(
            f"x is {_kind(x)} for a code of {len(values)} samples and a decoder {_kind(decoder)}: "
            "give one row per sample, with the width and dtype of the decoder."
        )
    if weights.shape != decoder.shape[:1]:
        raise ValueError(
            f"weights are {_kind(weights)} for a decoder {_kind(decoder)}: "
            f"give one weight per prefix length, {len(decoder)} of them."
        )
    backend = _choose(decoder, _share(values, len(decoder)))
    return backend.all_prefix_loss(x, values, units, decoder, weights.detach())


@without_autocast
def dense_prefix_loss(
    x: Float[Tensor, "B d"],
    code: Float[Tensor, "B K"],
    decoder: Float[Tensor, "K d"],
    weights: Float[Tensor, "K"],
) -> Float[Tensor, "B"]:
    """Return the ordered loss of each sample for a code of all units, in which zeros also get a gradient."""
    return _load("dense").dense_prefix_loss(x, code, decoder, weights)


@without_autocast
def topk_encode(
    x: Float[Tensor, "B d"], encoder: Float[Tensor, "K d"], bias: Float[Tensor, "K"] | None, k: int
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """Return the k largest of relu(x E^T + bias) in each row and their units, in no particular order.

    If fewer than k are positive, the rest is padding. NaN counts as the largest value, so that it is not
    hidden. Only active units get a gradient. Differentiable in x, encoder and bias.
    """
    _check_encoder(x, encoder, bias, k)
    return _choose(encoder, k / len(encoder)).topk_encode(x, encoder, bias, k)


@without_autocast
def batch_topk_encode(
    x: Float[Tensor, "B d"], encoder: Float[Tensor, "K d"], bias: Float[Tensor, "K"] | None, k: int
) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]]:
    """Return the B*k largest of relu(x E^T + bias) in the whole batch and their units, as a code.

    The code is as wide as the fullest row, and otherwise like that of `topk_encode`. The product is computed
    once, and never held as a whole by backends that compute in blocks.
    """
    _check_encoder(x, encoder, bias, k)
    return _choose(encoder, min(1.0, batch.ROOM * k / len(encoder))).batch_topk_encode(x, encoder, bias, k)


@without_autocast
def decode(
    values: Float[Tensor, "B k"], units: Int[Tensor, "B k"], decoder: Float[Tensor, "K d"]
) -> Float[Tensor, "B d"]:
    """Return the sum of each sample's active atoms. Differentiable in values and decoder."""
    _check_code(values, units, decoder)
    return _choose(decoder, _share(values, len(decoder))).decode(values, units, decoder)


@contextmanager
def using(backend: str) -> Iterator[None]:
    """Force one backend inside the `with` block."""
    _load(backend)
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


def _choose(dictionary: Tensor, share: float) -> ModuleType:
    """Return the backend for a dictionary and the share of its units that a sample uses."""
    if name := _forced.get() or os.environ.get("OSAE_KERNEL"):
        return _load(name)
    if share > (DENSE_SHARE if dictionary.device.type == "cpu" else DENSE_SHARE_ELSEWHERE):
        return _load("dense")
    if dictionary.device.type == "cpu" and dictionary.dtype in (torch.float32, torch.float64):
        return _load("cpu")
    if dictionary.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return _load("gpu")
    return _load("reference")


def _share(values: Tensor, units: int) -> float:
    """Return the share of units that a sample uses; on the CPU, where counting is cheap, without padding."""
    share = values.shape[1] / units
    if share > DENSE_SHARE and values.device.type == "cpu":
        share = int(values.count_nonzero()) / (max(len(values), 1) * units)
    return share


@functools.cache
def _load(name: str) -> ModuleType:
    """Import the module of a backend, which imports numba or triton, and return it."""
    if name not in BACKENDS:
        raise ValueError(f"kernel {name!r} is unknown: choose one of {', '.join(BACKENDS)}.")
    return importlib.import_module(f"osae.kernels.{name}")


def _check_encoder(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> None:
    if x.ndim != 2 or x.shape[1:] != encoder.shape[1:] or x.dtype != encoder.dtype:
        raise ValueError(
            f"x is {_kind(x)} for an encoder {_kind(encoder)}: "
            "give one row per sample, with the width and dtype of the encoder."
        )
    if bias is not None and (bias.shape != encoder.shape[:1] or bias.dtype != encoder.dtype):
        raise ValueError(
            f"bias is {_kind(bias)} for an encoder {_kind(encoder)}: "
            f"give {len(encoder)} numbers of the same dtype, one per unit, or None."
        )
    if not 1 <= k <= len(encoder):
        raise ValueError(f"k={k} for {len(encoder)} units: ask for 1 to {len(encoder)} active units.")


def _check_code(values: Tensor, units: Tensor, decoder: Tensor) -> None:
    if values.ndim != 2 or values.shape != units.shape or units.dtype != torch.int64:
        raise ValueError(
            f"values are {_kind(values)} and units {_kind(units)}: "
            "give two matrices of the same shape (samples, entries), units as int64."
        )
    if values.dtype != decoder.dtype or decoder.ndim != 2:
        raise ValueError(
            f"values are {_kind(values)} for a decoder {_kind(decoder)}: "
            "give both the same dtype, and a decoder of shape (units, width)."
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
