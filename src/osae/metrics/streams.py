"""Consistency of the units' activations rather than of their atoms: correlations over an evaluation set.

Shapes: N samples, B samples in a batch, Ka, Kb units, ka, kb entries in a sparse code.

The similarity of two units is the Pearson correlation of their activations on the same samples. A constant
unit (most often a dead one) correlates with nothing: its similarity to every unit is 0, and it still takes
part in the matching.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor
from osae.metrics.consistency import consistency_from
from osae.metrics.matching import match
from osae.metrics.sparse_codes import to_arrays


def activation_similarity(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> Float[Tensor, "Ka Kb"]:
    """Return the Pearson correlation of every unit of A with every unit of B, from dense codes."""
    return _standardise(za).T @ _standardise(zb)


def stream_stability(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> float:
    """Return the mean correlation of matched units."""
    return consistency_from(match(activation_similarity(za, zb))).stability


def stream_orderedness(za: Float[Array, "N Ka"], zb: Float[Array, "N Kb"]) -> float:
    """Return the Spearman correlation of the indices of units matched by their activations."""
    return consistency_from(match(activation_similarity(za, zb))).orderedness


class StreamCorrelation:
    """Sums over batches of sparse codes, from which `similarity()` gives all Pearson correlations.

    All in double precision, with one Ka x Kb matrix in memory. An entry of value zero is padding; apart from
    padding, a unit occurs at most once in a sample's code.
    """

    def __init__(self, units_a: int, units_b: int) -> None:
        self.samples = 0
        self._sum_a, self._square_a = np.zeros(units_a), np.zeros(units_a)
        self._sum_b, self._square_b = np.zeros(units_b), np.zeros(units_b)
        self._product = np.zeros((units_a, units_b))

    def update(
        self,
        values_a: Float[Array, "B ka"],
        units_a: Int[Array, "B ka"],
        values_b: Float[Array, "B kb"],
        units_b: Int[Array, "B kb"],
    ) -> None:
        """Add the codes that both sides give to the same samples."""
        if len(values_a) != len(values_b):
            raise ValueError(f"{len(values_a)} samples of A and {len(values_b)} of B: give the same samples.")
        codes_a = to_arrays(values_a, units_a, len(self._sum_a))
        codes_b = to_arrays(values_b, units_b, len(self._sum_b))
        _add_moments(*codes_a, self._sum_a, self._square_a)
        _add_moments(*codes_b, self._sum_b, self._square_b)
        _add_products(*codes_a, *codes_b, self._product)
        self.samples += len(values_a)

    def similarity(self) -> Float[Tensor, "Ka Kb"]:
        """Return the Pearson correlations over all samples so far."""
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        mean_a, scale_a = _mean_and_scale(self._sum_a, self._square_a, self.samples)
        mean_b, scale_b = _mean_and_scale(self._sum_b, self._square_b, self.samples)
        covariance = self._product / self.samples - np.outer(mean_a, mean_b)
        return torch.from_numpy(np.clip(covariance * scale_a[:, None] * scale_b, -1.0, 1.0))


def _standardise(z: Array) -> Tensor:
    """Return the columns centred and scaled to length one; zero where a column is constant."""
    z = as_tensor(z, "the code")
    if z.ndim != 2 or len(z) == 0:
        raise ValueError(f"code of shape {tuple(z.shape)}: give a nonempty matrix (samples, units).")
    z = z.detach().cpu().double()
    centred = z - z.mean(0)
    # Centring a constant column leaves rounding noise, which would correlate with other noise.
    centred[:, z.amax(0) == z.amin(0)] = 0
    return centred / centred.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)


def _mean_and_scale(total: np.ndarray, square: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the units' means and 1 / standard deviation, the latter 0 for a constant unit."""
    mean = total / samples
    variance = square / samples - mean**2
    constant = variance <= 1e-12 * square / samples
    return mean, np.where(constant, 0.0, np.where(constant, 1.0, variance) ** -0.5)


# The scatter loops are numba, not torch: index_add_ would need the B x ka x kb products in memory.


@numba.njit(cache=True)
@no_type_check
def _add_moments(values, units, total, square):
    for i in range(values.shape[0]):
        for s in range(values.shape[1]):
            total[units[i, s]] += values[i, s]
            square[units[i, s]] += values[i, s] ** 2


@numba.njit(cache=True)
@no_type_check
def _add_products(values_a, units_a, values_b, units_b, product):
    for i in range(values_a.shape[0]):
        for s in range(values_a.shape[1]):
            if values_a[i, s] != 0:
                row = product[units_a[i, s]]
                for t in range(values_b.shape[1]):
                    row[units_b[i, t]] += values_a[i, s] * values_b[i, t]
