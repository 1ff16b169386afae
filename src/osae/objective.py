"""The terms of the loss. They are pure: they read the SAE and the batch and change neither."""

from typing import NamedTuple, assert_never

from jaxtyping import Bool, Float
from torch import Tensor

from osae import kernels
from osae.model import SAE
from osae.revival import AuxK
from osae.sparsify import BatchTopK, Code, JumpReLU, Linear, ReLU, TopK, active, jump, pad_code


class Terms(NamedTuple):
    """The terms of the loss, their total, and the code they were computed from."""

    total: Float[Tensor, ""]
    prefix: Float[Tensor, ""]
    penalty: Float[Tensor, ""]
    revival: Float[Tensor, ""]
    code: Code

    def detach(self) -> "Terms":
        """Return the same numbers, detached from the graph that computed them."""
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
    """Return the ordered loss of the batch, the penalty on its code, the loss of dead units, and the total.

    `weights` are those of the prefixes; `k` is how many units may be active where the sparsifier has a k.
    """
    centred, penalty = x - sae.decoder_bias, x.new_zeros(())
    match sae.config.sparsifier:
        case JumpReLU(l0, bandwidth):
            # a threshold also learns from units just below it, so inactive units need their gradient
            pre = sae.pre_activations(centred)
            values = jump(pre, sae.threshold, bandwidth)
            code = pad_code(values)
            prefix = kernels.dense_prefix_loss(centred, values, sae.decoder, weights).mean()
            penalty = l0 * active(pre, sae.threshold, bandwidth).sum(-1).mean()
        case ReLU(l1):
            code, prefix = _sparse_loss(sae, x, centred, k, weights)
            penalty = l1 * code.values.sum(-1).mean()
        case TopK() | BatchTopK() | Linear():
            code, prefix = _sparse_loss(sae, x, centred, k, weights)
        case _:
            assert_never(sae.config.sparsifier)
    revival = _revival(sae, x, code, dead, aux)
    return Terms(prefix + penalty + revival, prefix, penalty, revival, code)


def _sparse_loss(
    sae: SAE, x: Tensor, centred: Tensor, k: int | None, weights: Tensor
) -> tuple[Code, Float[Tensor, ""]]:
    code = sae.encode(x, k=k)
    return code, kernels.all_prefix_loss(centred, *code, sae.decoder, weights).mean()


def _revival(sae: SAE, x: Tensor, code: Code, dead: Tensor | None, aux: AuxK | None) -> Tensor:
    """Return how badly the dead units reconstruct the residual, which itself gets no gradient."""
    if aux is None or dead is None or not bool(dead.any()):
        return x.new_zeros(())
    centred = (x - sae.decoder_bias).detach()
    residual = centred - kernels.decode(code.values, code.units, sae.decoder).detach()
    which = dead.nonzero().squeeze(-1)
    count = min(aux.k, len(which))
    values, units = kernels.topk_encode(centred, sae.encoder[which], sae.encoder_bias[which], count)
    explained = kernels.decode(values, units, sae.decoder[which])
    return aux.coefficient * (residual - explained).square().sum(-1).mean()
