"""The chance levels of an experiment's tables."""

from collections.abc import Sequence

from torch import Tensor

from osae import metrics


def chance_levels(decoders: Sequence[Tensor], *, absolute: bool = False) -> dict[str, float]:
    """Return the scores of unrelated dictionaries: isotropic, and with these atoms' mean and covariance."""
    detached = [decoder.detach() for decoder in decoders]
    units, width = detached[0].shape
    like = metrics.fit_atoms(*detached)
    fitted, isotropic = (
        metrics.chance_level(units, units, width, like=kind, absolute=absolute) for kind in (like, None)
    )
    return {
        "stability": fitted.stability,
        "orderedness": fitted.orderedness,
        "orderedness_std": fitted.orderedness_std,
        "stability_isotropic": isotropic.stability,
    }
