"""How well codes reconstruct the data, and how many units fire.

Shapes: N samples, B samples in a batch, d width, K units, k entries in a sparse code.
"""

from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from osae.arrays import Array, as_tensor


class ReconstructionResult(NamedTuple):
    """All measures of this module over the samples so far."""

    mse: float
    explained_variance: float
    l0: float
    dead_share: float
    samples: int

    def measures(self) -> dict[str, float | None]:
        """Return the numbers by their keys in `osae.measures`; None for undefined ones."""
        found = {"mse": self.mse, "explained_variance": self.explained_variance}
        found |= {"l0": self.l0, "dead": self.dead_share}
        return {key: value if isfinite(value) else None for key, value in found.items()}


def mse(x: Float[Array, "N d"], reconstruction: Float[Array, "N d"]) -> float:
    """Return the mean squared error over samples and coordinates; d times it is the mean squared distance."""
    x, reconstruction = _same_shape(x, reconstruction)
    return float((x - reconstruction).square().mean())


def explained_variance(x: Float[Array, "N d"], reconstruction: Float[Array, "N d"]) -> float:
    """Return 1 - sum |x - x_hat|^2 / sum |x - mean x|^2, with sums over all samples; NaN if x is constant."""
    x, reconstruction = _same_shape(x, reconstruction)
    error = float((x - reconstruction).square().sum())
    return _explained_share(error, float((x - x.mean(0)).square().sum()))


def l0(values: Float[Array, "N k"]) -> float:
    """Return the mean number of active units per sample: the nonzero entries of a code, dense or sparse."""
    return float((as_tensor(values, "values") != 0).sum(-1).double().mean())


def dead_share(values: Float[Array, "N k"], units: Int[Array, "N k"], total: int) -> float:
    """Return the share of the `total` units that never fire in these samples."""
    values, units = as_tensor(values, "values"), as_tensor(units, "units")
    return 1.0 - len(units[values != 0].unique()) / total


def measure_reconstruction(
    x: Float[Array, "N d"],
    reconstruction: Float[Array, "N d"],
    values: Float[Array, "N k"],
    units: Int[Array, "N k"],
    total: int,
) -> ReconstructionResult:
    """Return all measures of the reconstruction given by a code with `total` units."""
    return ReconstructionResult(
        mse(x, reconstruction),
        explained_variance(x, reconstruction),
        l0(values),
        dead_share(values, units, total),
        len(x),
    )


class Spread:
    """The sum of |x - mean x|^2 over all samples of all batches, in `total`."""

    def __init__(self) -> None:
        self.samples = 0
        self.total = 0.0
        self._mean: Tensor | None = None

    def update(self, x: Float[Tensor, "B d"]) -> None:
        """Add one batch, which must not be empty."""
        # Spreads around each batch's own mean, combined pairwise (Chan et al.): sums of raw squares would
        # lose the variance of data with a large mean.
        mean = x.mean(0)
        self.total += float((x - mean).square().sum())
        if self._mean is None:
            self._mean = mean
        else:
            share = len(x) / (self.samples + len(x))
            self.total += self.samples * share * float((mean - self._mean).square().sum())
            self._mean = self._mean + share * (mean - self._mean)
        self.samples += len(x)


class Reconstruction:
    """Sums over batches from which `result()` gives every measure of this module at once."""

    def __init__(self, units: int) -> None:
        self.width = 0
        self._error = 0.0
        self._active = 0
        self._fired = torch.zeros(units, dtype=torch.bool)
        self._spread = Spread()

    def update(
        self,
        x: Float[Array, "B d"],
        reconstruction: Float[Array, "B d"],
        values: Float[Array, "B k"],
        units: Int[Array, "B k"],
    ) -> None:
        """Add one batch: the data, their reconstruction, and the code."""
        x, reconstruction = _same_shape(x, reconstruction)
        values, units = as_tensor(values, "values"), as_tensor(units, "units")
        if len(x) == 0:
            return
        self._error += float((x - reconstruction).square().sum())
        active = (values != 0).cpu()
        self._active += int(active.sum())
        self._fired[units.cpu()[active]] = True
        self._spread.update(x)
        self.width = x.shape[1]

    @property
    def samples(self) -> int:
        """Return the number of samples so far."""
        return self._spread.samples

    @property
    def fired(self) -> Bool[Tensor, "K"]:
        """Return which units have fired in the samples so far."""
        return self._fired.clone()

    def result(self) -> ReconstructionResult:
        """Return the measures over all samples so far."""
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        return ReconstructionResult(
            mse=self._error / (self.samples * self.width),
            explained_variance=_explained_share(self._error, self._spread.total),
            l0=self._active / self.samples,
            dead_share=1.0 - float(self._fired.double().mean()),
            samples=self.samples,
        )


def _same_shape(x: Array, reconstruction: Array) -> tuple[Tensor, Tensor]:
    """Return both in double precision on the CPU; raise `ValueError` if their shapes differ."""
    x, reconstruction = as_tensor(x, "x"), as_tensor(reconstruction, "the reconstruction")
    if x.shape != reconstruction.shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and its reconstruction {tuple(reconstruction.shape)}: "
            "give one row per sample for both."
        )
    return x.detach().cpu().double(), reconstruction.detach().cpu().double()


def _explained_share(error: float, spread: float) -> float:
    return 1.0 - error / spread if spread > 0 else float("nan")
