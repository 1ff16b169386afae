"""Frequency-invariant feature reconstruction (FIFR) error: each true feature counts the same, however rare.

Shapes: N samples, K true features, L learned units, k entries in a sparse code, d width.

Learned units are matched to true atoms by |cosine|. For true feature j with matched unit u, over the samples
where j is active,

    r_j = mean |s_j a_j - f_u d_u|^2 / (mean |s_j a_j|^2 + 1e-12) ,

and the error is the mean of r_j over the features that occur. Atoms are taken as they are, not scaled to
length one. If there are fewer learned units than features, the features left over are reconstructed as zero.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.metrics.assignment import match_atoms

DenseOrSparse = Float[Tensor, "N _"] | tuple[Float[Tensor, "N _"], Int[Tensor, "N _"]]

_CHUNK = 2**22  # entries of a dense code held at once


def fifr(
    true_decoder: Float[Tensor, "K d"],
    true_code: DenseOrSparse,
    decoder: Float[Tensor, "L d"],
    code: DenseOrSparse,
) -> float:
    """The FIFR error of a learned decoder and its code; 0 is perfect, 1 is what an all-zero code gets.

    Each code is dense, one column per unit, or a pair (values, units).
    """
    matching = match_atoms(true_decoder, decoder, absolute=True)
    truth, atoms = true_decoder.detach().cpu().double(), decoder.detach().cpu().double()
    features, samples = len(truth), _samples(true_code)
    if _samples(code) != samples:
        raise ValueError(f"{samples} samples of the true code and {_samples(code)} of the learned one.")
    partner = torch.zeros(features, dtype=torch.long)
    partner[matching.left] = matching.right
    matched = torch.zeros(features, dtype=torch.float64)
    matched[matching.left] = 1.0
    true_norm = truth.square().sum(1)
    norm = atoms.square().sum(1)[partner]
    product = (truth * atoms[partner]).sum(1)

    error, energy, count = torch.zeros(3, features, dtype=torch.float64)
    step = max(1, _CHUNK // max(features, len(atoms)))
    for start in range(0, samples, step):
        s = _dense(true_code, start, start + step, features)
        f = _dense(code, start, start + step, len(atoms))[:, partner] * matched
        f = f * (s != 0)
        error += (s.square() * true_norm - 2 * s * f * product + f.square() * norm).sum(0)
        energy += (s.square() * true_norm).sum(0)
        count += (s != 0).sum(0)
    occurs = count > 0
    if not bool(occurs.any()):
        raise ValueError("no true feature is active in these samples: the error is not defined.")
    error, energy = error[occurs] / count[occurs], energy[occurs] / count[occurs]
    # The expanded square can fall below zero by a rounding error.
    return float((error.clamp_min(0) / (energy + 1e-12)).mean())


def _samples(code: DenseOrSparse) -> int:
    return len(code) if isinstance(code, Tensor) else len(code[0])


def _dense(code: DenseOrSparse, start: int, stop: int, units: int) -> Tensor:
    """Samples `start` to `stop` as a dense code in double precision."""
    if isinstance(code, Tensor):
        if code.shape[1] != units:
            raise ValueError(f"code has {code.shape[1]} columns for {units} units: give one per unit.")
        return code[start:stop].detach().cpu().double()
    values, indices = (part[start:stop].detach().cpu() for part in code)
    empty = torch.zeros(len(values), units, dtype=torch.float64)
    return empty.scatter_add_(1, indices.long(), values.double())
