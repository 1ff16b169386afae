"""The terms of the loss, pure: they read the SAE and the batch and change neither."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from osae import kernels
from osae.model import SAE, AuxK
from osae.sparsify import Code, JumpReLU, ReLU, active


class Terms(NamedTuple):
    total: Float[Tensor, ""]
    prefix: Float[Tensor, ""]
    penalty: Float[Tensor, ""]
    revival: Float[Tensor, ""]
    code: Code

    def detached(self) -> "Terms":
        """The same numbers without their history."""
        *terms, code = self
        return Terms(*(term.detach() for term in terms), Code(code.values.detach(), code.units))


def objective(
    sae: SAE,
    x: Float[Tensor, "B d"],
    *,
    k: int | None,
    weights: Float[Tensor, "K"],
    dead: Bool[Tensor, "K"] | None = None,
) -> Terms:
    """The ordered loss of the batch, the price of its code, and the dead units' share, with their sum."""
    code = sae.encode(x, k=k)
    centred = x - sae.decoder_bias
    prefix = kernels.all_prefix_loss(centred, code.values, code.units, sae.decoder, weights).mean()
    penalty, revival = _penalty(sae, x, code), _revival(sae, x, code, dead)
    return Terms(prefix + penalty + revival, prefix, penalty, revival, code)


def _penalty(sae: SAE, x: Tensor, code: Code) -> Tensor:
    """What the code costs beyond its error: L1 for ReLU, the expected number of units for JumpReLU."""
    match sae.config.sparsifier:
        case ReLU(l1) if l1 > 0:
            return l1 * code.values.sum(-1).mean()
        case JumpReLU(l0, bandwidth) if l0 > 0:
            pre = sae.pre_activations(x - sae.decoder_bias)
            return l0 * active(pre, sae.threshold, bandwidth).sum(-1).mean()
        case _:
            return x.new_zeros(())


def _revival(sae: SAE, x: Tensor, code: Code, dead: Tensor | None) -> Tensor:
    """The error of the dead units' own explanation of the residual, which itself gets no gradient."""
    spec = sae.config.revival
    if not isinstance(spec, AuxK) or dead is None or not bool(dead.any()):
        return x.new_zeros(())
    centred = (x - sae.decoder_bias).detach()
    residual = centred - kernels.decode(code.values, code.units, sae.decoder).detach()
    which = dead.nonzero().squeeze(-1)
    count = min(spec.k, len(which))
    values, units = kernels.topk_encode(centred, sae.encoder[which], sae.encoder_bias[which], count)
    explained = kernels.decode(values, units, sae.decoder[which])
    return spec.coefficient * (residual - explained).square().sum(-1).mean()
