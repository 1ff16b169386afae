"""The terms of the loss, pure: they read the SAE and the batch and change neither."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from osae import kernels
from osae.model import SAE
from osae.revival import AuxK
from osae.sparsify import Code, JumpReLU, ReLU, active, jump, pad_code


class Terms(NamedTuple):
    total: Float[Tensor, ""]
    prefix: Float[Tensor, ""]
    penalty: Float[Tensor, ""]
    revival: Float[Tensor, ""]
    code: Code

    def detach(self) -> "Terms":
        """The same numbers without their history."""
        code = Code(self.code.values.detach(), self.code.units)
        total, prefix, penalty, revival = (term.detach() for term in self[:4])
        return Terms(total, prefix, penalty, revival, code)


def objective(
    sae: SAE,
    x: Float[Tensor, "B d"],
    *,
    k: int | None,
    weights: Float[Tensor, "K"],
    dead: Bool[Tensor, "K"] | None = None,
    aux: AuxK | None = None,
) -> Terms:
    """The ordered loss of the batch, the price of its code, and the dead units' share, with their sum."""
    centred, penalty = x - sae.decoder_bias, x.new_zeros(())
    match sae.config.sparsifier:
        case JumpReLU(l0, bandwidth):
            # a threshold learns from the units just below it too, so zeros need their gradient
            pre = sae.pre_activations(centred)
            values = jump(pre, sae.threshold, bandwidth)
            code = pad_code(values)
            prefix = kernels.dense_prefix_loss(centred, values, sae.decoder, weights).mean()
            penalty = l0 * active(pre, sae.threshold, bandwidth).sum(-1).mean()
        case sparsifier:
            code = sae.encode(x, k=k)
            prefix = kernels.all_prefix_loss(centred, *code, sae.decoder, weights).mean()
            if isinstance(sparsifier, ReLU):
                penalty = sparsifier.l1 * code.values.sum(-1).mean()
    revival = _revival(sae, x, code, dead, aux)
    return Terms(prefix + penalty + revival, prefix, penalty, revival, code)


def _revival(sae: SAE, x: Tensor, code: Code, dead: Tensor | None, aux: AuxK | None) -> Tensor:
    """The error of the dead units' own explanation of the residual, which itself gets no gradient."""
    if aux is None or dead is None or not bool(dead.any()):
        return x.new_zeros(())
    centred = (x - sae.decoder_bias).detach()
    residual = centred - kernels.decode(code.values, code.units, sae.decoder).detach()
    which = dead.nonzero().squeeze(-1)
    count = min(aux.k, len(which))
    values, units = kernels.topk_encode(centred, sae.encoder[which], sae.encoder_bias[which], count)
    explained = kernels.decode(values, units, sae.decoder[which])
    return aux.coefficient * (residual - explained).square().sum(-1).mean()
