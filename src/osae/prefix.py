"""The idea: weight the reconstruction error of every prefix of the dictionary, exactly.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

With p(l) the weight of prefix length l, the ordered loss of one sample is

    L(x) = sum_{l=1..K} p(l) |x - sum_{j<l} z_j d_j|^2 .

Only k units of a sample are active, so there are only k+1 different residuals: r_0 = x, and
r_t = r_{t-1} - z_t d_{j_t} along the active units j_1 < ... < j_k. Prefix l leaves r_t if it contains
exactly the first t of them, so with S(j) = sum_{l>j} p(l), the mass of the prefixes that contain unit j,

    L(x) = sum_{t=0..k} (S(j_t) - S(j_{t+1})) |r_t|^2 ,   S(j_0) = sum p,  S(j_{k+1}) = 0 .

Every objective in the paper is this one with a different p: a plain SAE puts all mass on l = K, a
Matryoshka SAE on a few group boundaries, an ordered SAE on every l.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from jaxtyping import Float, Int
from torch import Tensor

from osae.config import variant


def all_prefix_loss_reference(
    x: Float[Tensor, "B d"],
    values: Float[Tensor, "B k"],
    units: Int[Tensor, "B k"],
    decoder: Float[Tensor, "K d"],
    weights: Float[Tensor, "K"],
) -> Float[Tensor, "B"]:
    """Return the ordered loss of each sample, in plain torch: the definition that kernels are tested against.

    `weights[l-1]` is p(l). The entries of a code may be in any order; an entry of value zero is padding and
    changes nothing. Takes O(B k d) time and memory.
    """
    units, order = units.sort(dim=-1)
    steps = values.gather(-1, order).unsqueeze(-1) * decoder[units]
    residuals = torch.cat([x.unsqueeze(-2), x.unsqueeze(-2) - steps.cumsum(-2)], dim=-2)
    return (residual_weights(weights, units, x.dtype) * residuals.square().sum(-1)).sum(-1)


def masses(weights: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """Return S(j), the mass of the prefixes that contain unit j (counted from 0): S(0) is the total mass.

    The sums are computed in double precision on the CPU: other devices may lack that type, or sum in any
    order.
    """
    return weights.detach().cpu().double().flip(0).cumsum(0).flip(0)


def residual_weights(
    weights: Float[Tensor, "K"], units: Int[Tensor, "B k"], dtype: torch.dtype
) -> Float[Tensor, "B k+1"]:
    """Return S(j_t) - S(j_{t+1}), the weight of residual r_t, for sorted units j_1 <= ... <= j_k.

    Unit K, past the last one, marks a missing entry. A mass is represented by two numbers of at least single
    precision, so that a small difference of two large masses keeps its digits on any device; the result is
    rounded to `dtype` last.
    """
    part = torch.promote_types(dtype, torch.float32)
    mass = torch.nn.functional.pad(masses(weights), (0, 1))
    leading = mass.to(part)
    rest = (mass - leading).to(part)
    return _steps(leading.to(units.device), units).add_(_steps(rest.to(units.device), units)).to(dtype)


def _steps(mass: Float[Tensor, "K"], units: Int[Tensor, "B k"]) -> Float[Tensor, "B k+1"]:
    """Return by how much the mass decreases from each unit to the next; it is zero after the last."""
    held = torch.nn.functional.pad(mass[units], (1, 1))
    held[:, 0] = mass[0]
    return held[:, :-1] - held[:, 1:]


# --- prefix distributions -------------------------------------------------------------------------


@variant
@dataclass(frozen=True)
class Full:
    """All mass on the whole dictionary: the plain objective."""


@variant
@dataclass(frozen=True)
class Uniform:
    """The same weight on every prefix length."""


@variant
@dataclass(frozen=True)
class Geometric:
    """p(l) ~ ratio^l, with 0 < ratio."""

    ratio: float


@variant
@dataclass(frozen=True)
class Zipf:
    """p(l) ~ l^-alpha."""

    alpha: float


@variant
@dataclass(frozen=True)
class Piecewise:
    """The mass of each group, spread evenly over its prefix lengths; `ends` are the ends of the groups."""

    ends: tuple[int, ...]
    masses: tuple[float, ...] | None = None


@variant
@dataclass(frozen=True)
class Boundaries:
    """All mass on the group boundaries: fixed Matryoshka."""

    ends: tuple[int, ...]
    masses: tuple[float, ...] | None = None


@variant
@dataclass(frozen=True)
class Explicit:
    """Explicit weights, one per prefix length, normalised to sum to one."""

    values: tuple[float, ...]


@variant
@dataclass(frozen=True)
class Mixed:
    """A share `full` of the mass on l = K, and the rest distributed as `base`."""

    base: "Fixed"
    full: float


@variant
@dataclass(frozen=True)
class RandomBoundaries:
    """`count` distinct boundaries drawn at every step, one of which is always K: random Matryoshka."""

    base: "Fixed"
    count: int


@variant
@dataclass(frozen=True)
class Sampled:
    """One prefix length drawn from `base` at every step: nested dropout."""

    base: "Fixed"


Fixed = Full | Uniform | Geometric | Zipf | Piecewise | Boundaries | Explicit | Mixed
PrefixWeights = Fixed | RandomBoundaries | Sampled


def prefix_weights(
    spec: PrefixWeights, units: int, generator: torch.Generator | None = None
) -> Float[Tensor, "units"]:
    """Return p(1), ..., p(K) in double precision, summing to one.

    Drawn anew at each call if `spec` is random.
    """
    if units < 1:
        raise ValueError(f"units={units}: give at least 1 unit.")
    lengths = torch.arange(1, units + 1, dtype=torch.float64)
    match spec:
        case Full():
            return _normalize(lengths == units)
        case Uniform():
            return _normalize(torch.ones_like(lengths))
        case Geometric(ratio):
            if not ratio > 0:
                raise ValueError(f"Geometric ratio={ratio}: give a positive ratio.")
            logs = lengths * torch.tensor(ratio, dtype=torch.float64).log()
            return _normalize((logs - logs.max()).exp())
        case Zipf(alpha):
            return _normalize(lengths**-alpha)
        case Piecewise(ends, group_masses):
            widths = torch.tensor(ends, dtype=torch.float64).diff(prepend=torch.zeros(1, dtype=torch.float64))
            group = torch.searchsorted(torch.tensor(ends, dtype=torch.float64), lengths)
            return _normalize((_group_masses(ends, group_masses, units) / widths)[group])
        case Boundaries(ends, group_masses):
            weights = torch.zeros_like(lengths)
            weights[torch.tensor(ends) - 1] = _group_masses(ends, group_masses, units)
            return _normalize(weights)
        case Explicit(values):
            if len(values) != units:
                raise ValueError(f"Explicit has {len(values)} weights for {units} units: give one per unit.")
            return _normalize(torch.tensor(values, dtype=torch.float64))
        case Mixed(base, full):
            if not 0 <= full <= 1:
                raise ValueError(f"Mixed full={full}: give a share between 0 and 1.")
            return (1 - full) * prefix_weights(base, units) + full * prefix_weights(Full(), units)
        case RandomBoundaries(base, count):
            if not 1 <= count <= units:
                raise ValueError(f"RandomBoundaries count={count}: give 1 to {units}, the number of units.")
            weights = (lengths == units).double()
            inner = prefix_weights(base, units)[:-1]
            if (free := min(count - 1, int((inner > 0).sum()))) > 0:
                weights[inner.multinomial(free, generator=generator)] = 1.0
            return _normalize(weights)
        case Sampled(base):
            drawn = prefix_weights(base, units).multinomial(1, generator=generator)
            return _normalize(lengths == drawn + 1)
        case _:
            assert_never(spec)


def _group_masses(ends: tuple[int, ...], given: tuple[float, ...] | None, units: int) -> Tensor:
    """Return the masses of the groups, equal unless given; raise `ValueError` if the ends do not fit."""
    if not ends or list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] != units:
        raise ValueError(f"group ends {ends}: give increasing positive numbers, the last of them {units}.")
    if given is not None and len(given) != len(ends):
        raise ValueError(f"{len(given)} masses for {len(ends)} groups: give one per group.")
    return torch.tensor(given if given is not None else [1.0] * len(ends), dtype=torch.float64)


def _normalize(weights: Tensor) -> Tensor:
    weights = weights.double()
    if not (bool(weights.isfinite().all()) and bool((weights >= 0).all()) and float(weights.sum()) > 0):
        raise ValueError("prefix weights must be finite and nonnegative, and not all of them zero.")
    return weights / weights.sum()
