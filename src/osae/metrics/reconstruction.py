"""How well codes rebuild the data, and how many units speak.

Shapes: N samples, B samples in a batch, d width, K units, k entries in a sparse code.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ReconstructionResult(NamedTuple):
    """All measures over the samples seen."""

    mse: float
    explained_variance: float
    l0: float
    dead_share: float
    samples: int


def mse(x: Float[Tensor, "N d"], rebuilt: Float[Tensor, "N d"]) -> float:
    """The mean squared error over samples and coordinates; times d, it is the mean of |x - rebuilt|^2."""
    return float((x.double() - rebuilt.double()).square().mean())


def explained_variance(x: Float[Tensor, "N d"], rebuilt: Float[Tensor, "N d"]) -> float:
    """1 - sum |x - rebuilt|^2 / sum |x - mean x|^2, sums over all samples; NaN if x is constant."""
    x = x.double()
    error = float((x - rebuilt.double()).square().sum())
    return _explained(error, float((x - x.mean(0)).square().sum()))


def l0(values: Float[Tensor, "N k"]) -> float:
    """The mean number of units that speak in a sample: entries of a code, dense or sparse, not zero."""
    return float((values != 0).sum(-1).double().mean())


def dead_share(values: Float[Tensor, "N k"], units: Int[Tensor, "N k"], total: int) -> float:
    """The share of the `total` units that never speak in these samples."""
    return 1.0 - len(units[values != 0].unique()) / total


class Spread:
    """The sum of |x - mean x|^2 over all samples of all batches, in `total`."""

    def __init__(self) -> None:
        self.samples = 0
        self.total = 0.0
        self._mean: Tensor | None = None

    def update(self, x: Float[Tensor, "B d"]) -> None:
        """Takes in one batch, which is not empty."""
        # Spreads about each batch's own mean, joined pairwise (Chan et al.): sums of raw squares would lose
        # the variance of data with a large mean.
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
        self._spoke = torch.zeros(units, dtype=torch.bool)
        self._spread = Spread()

    def update(
        self,
        x: Float[Tensor, "B d"],
        rebuilt: Float[Tensor, "B d"],
        values: Float[Tensor, "B k"],
        units: Int[Tensor, "B k"],
    ) -> None:
        """Takes in one batch: the data, their reconstruction and the code in between."""
        x, rebuilt = x.detach().cpu().double(), rebuilt.detach().cpu().double()
        if len(x) == 0:
            return
        self._error += float((x - rebuilt).square().sum())
        active = (values != 0).cpu()
        self._active += int(active.sum())
        self._spoke[units.cpu()[active]] = True
        self._spread.update(x)
        self.width = x.shape[1]

    @property
    def samples(self) -> int:
        """How many samples there were so far."""
        return self._spread.samples

    @property
    def spoke(self) -> Bool[Tensor, "K"]:
        """Which units have spoken in the samples so far."""
        return self._spoke.clone()

    def result(self) -> ReconstructionResult:
        """The measures over all samples so far."""
        if self.samples == 0:
            raise ValueError("no samples yet: call update first.")
        return ReconstructionResult(
            mse=self._error / (self.samples * self.width),
            explained_variance=_explained(self._error, self._spread.total),
            l0=self._active / self.samples,
            dead_share=1.0 - float(self._spoke.double().mean()),
            samples=self.samples,
        )


def _explained(error: float, spread: float) -> float:
    return 1.0 - error / spread if spread > 0 else float("nan")
