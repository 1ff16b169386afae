"""Ways to revive units that have stopped firing, as data; `osae.training.revive` implements them."""

from dataclasses import dataclass

from osae.config import variant


@variant
@dataclass(frozen=True)
class AuxK:
    """Dead units also reconstruct the residual, `k` at a time, in a term weighted by `coefficient`.

    A unit is dead when it has not fired for `dead_after` samples.
    """

    k: int
    coefficient: float = 1 / 32
    dead_after: int = 50_000


@variant
@dataclass(frozen=True)
class Resample:
    """Dead units restart from poorly reconstructed samples, `times` times between two shares of training.

    A unit is dead when it has not fired for `dead_after` samples.
    """

    times: int
    since: float = 0.0
    until: float = 0.5
    dead_after: int = 50_000


@variant
@dataclass(frozen=True)
class Split:
    """Spare units take over half of the units with the largest error, `times` times between two shares.

    A unit is spare when the mean square of its value is below `weak` times that of the median unit. A unit
    that represents two features at once leaves a large error wherever it fires, and no gradient separates
    them.
    """

    times: int
    since: float = 0.35
    until: float = 0.85
    weak: float = 0.1


Revival = AuxK | Resample | Split | None
