"""Frequency-invariant feature reconstruction (FIFR) error: every true feature counts equally, however rare.

Shapes: N samples, K true features, L learned units, k entries in a sparse code, d width.

Learned units are matched to true atoms by |cosine|. For true feature j with matched unit u, over the samples
where j is active,

    r_j = mean |s_j a_j - f_u d_u|^2 / (mean |s_j a_j|^2 + 1e-12) ,

and the error is the mean of r_j over the features that occur. Atoms are used as they are, not scaled to
length one. If there are fewer learned units than features, unmatched features are reconstructed as zero.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.assignment import match_atoms

DenseOrSparse = Float[Array, "N _"] | tuple[Float[Array, "N _"], Int[Array, "N _"]]

_Code = Tensor | tuple[Tensor, Tensor]
_CHUNK = 2**22  # entries of a dense code held at once


def fifr(
    true_decoder: Float[Array, "K d"],
    true_code: DenseOrSparse,
    decoder: Float[Array, "L d"],
    code: DenseOrSparse,
) -> float:
    """Return the FIFR error of a learned decoder and its code: 0 is perfect, an all-zero code scores 1.

    Each code is either dense, with one column per unit, or a pair (values, units).
    """
    truth, atoms = (as_tensor(each).detach().cpu().double() for each in (true_decoder, decoder))
    true_code, code = _tensors(true_code), _tensors(code)
    if _samples(code) != _samples(true_code):
        raise ValueError(
            f"{_samples(true_code)} samples of the true code and {_samples(code)} of the learned one: "
            "give both codes of the same samples."
        )
    sums = _sums(truth, true_code, atoms, code)
    occurs = sums.samples > 0
    if not bool(occurs.any()):
        raise ValueError("no true feature is active in these samples: the error is not defined.")
    error, energy = (each[occurs] / sums.samples[occurs] for each in (sums.error, sums.energy))
    # The expanded square can fall below zero by a rounding error.
    return float((error.clamp_min(0) / (energy + 1e-12)).mean())


class _Sums(NamedTuple):
    """Each true feature's squared error and energy over the samples where it is active, and their number."""

    error: Float[Tensor, "K"]
    energy: Float[Tensor, "K"]
    samples: Float[Tensor, "K"]


def _sums(truth: Tensor, true_code: _Code, atoms: Tensor, code: _Code) -> _Sums:
    matching = match_atoms(truth, atoms, absolute=True)
    features = len(truth)
    partner = torch.zeros(features, dtype=torch.long)
    partner[matching.left] = matching.right
    matched = torch.zeros(features, dtype=torch.float64)
    matched[matching.left] = 1.0
    true_norm = truth.square().sum(1)
    norm = atoms.square().sum(1)[partner]
    product = (truth * atoms[partner]).sum(1)

    error, energy, count = torch.zeros(3, features, dtype=torch.float64)
    step = max(1, _CHUNK // max(features, len(atoms)))
    for start in range(0, _samples(true_code), step):
        s = _dense(true_code, start, start + step, features)
        f = _dense(code, start, start + step, len(atoms))[:, partner] * matched
        f = f * (s != 0)
        error += (s.square() * true_norm - 2 * s * f * product + f.square() * norm).sum(0)
        energy += (s.square() * true_norm).sum(0)
        count += (s != 0).sum(0)
    return _Sums(error, energy, count)


def _tensors(code: DenseOrSparse) -> _Code:
    if isinstance(code, tuple):
        values, units = code
        return as_tensor(values, "values").detach().cpu(), as_tensor(units, "units").detach().cpu()
    return as_tensor(code, "the code").detach().cpu()


def _samples(code: _Code) -> int:
    return len(code[0] if isinstance(code, tuple) else code)


def _dense(code: _Code, start: int, stop: int, units: int) -> Tensor:
    """Return samples `start` to `stop` as a dense code in double precision."""
    if isinstance(code, Tensor):
        if code.shape[1] != units:
            raise ValueError(f"code has {code.shape[1]} columns for {units} units: give one per unit.")
        return code[start:stop].double()
    values, indices = (part[start:stop] for part in code)
    empty = torch.zeros(len(values), units, dtype=torch.float64)
    return empty.scatter_add_(1, indices.long(), values.double())
