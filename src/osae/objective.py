"""The terms of the loss, as pure functions: they change neither the SAE nor the batch."""

from typing import NamedTuple, assert_never

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from osae import kernels
from osae.model import SAE
from osae.ranks import ALONE, Mesh, keep_largest, keep_top, sum_of_all, sum_of_earlier
from osae.revival import AuxK
from osae.sparsify import BatchTopK, Code, JumpReLU, Linear, ReLU, TopK, active, jump, pad_code


class Terms(NamedTuple):
    """The terms of the loss, their total, and the rows and the code they were computed from."""

    total: Float[Tensor, ""]
    prefix: Float[Tensor, ""]
    penalty: Float[Tensor, ""]
    revival: Float[Tensor, ""]
    code: Code
    x: Float[Tensor, "B d"]

    def detach(self) -> "Terms":
        """Return the same numbers, detached from the graph that computed them."""
        code = Code(self.code.values.detach(), self.code.units)
        total, prefix, penalty, revival = (term.detach() for term in self[:4])
        return Terms(total, prefix, penalty, revival, code, self.x)


def objective(
    sae: SAE,
    x: Float[Tensor, "B d"],
    *,
    k: int | None,
    weights: Float[Tensor, "K"],
    dead: Bool[Tensor, "K"] | None = None,
    aux: AuxK | None = None,
    mesh: Mesh = ALONE,
) -> Terms:
    """Return the ordered loss of the batch, the penalty on its code, the loss of dead units, and the total.

    `weights` are the prefix weights; `k` is the number of units that may be active, if the sparsifier has a
    k.

    On a mesh, x are the rows of this rank, and the units are its block of the dictionary, with the weights of
    the prefixes that end in it. The terms of the batch are then the mean over `rows` of the sum over `units`,
    except for the loss of dead units, which is the same on all ranks along `units`.
    """
    # not x - b: its gradient would be negated for every row instead of once
    centred, penalty = x + (-sae.decoder_bias), x.new_zeros(())
    match sae.config.sparsifier:
        case JumpReLU(l0, bandwidth):
            # a threshold also learns from units just below it, so inactive units need a gradient
            pre = sae.pre_activations(centred)
            values = jump(pre, sae.threshold, bandwidth)
            code = pad_code(values)
            # as do inactive units of other ranks
            left = centred - sum_of_earlier(values @ sae.decoder, mesh.units)
            prefix = kernels.dense_prefix_loss(left, values, sae.decoder, weights).mean()
            penalty = l0 * active(pre, sae.threshold, bandwidth).sum(-1).mean()
        case ReLU(l1):
            code, prefix = _sparse_loss(sae, x, centred, k, weights, mesh)
            penalty = l1 * code.values.sum(-1).mean()
        case TopK() | BatchTopK() | Linear():
            code, prefix = _sparse_loss(sae, x, centred, k, weights, mesh)
        case _:
            assert_never(sae.config.sparsifier)
    revival = _revival(sae, x, code, dead, aux, mesh)
    return Terms(prefix + penalty + revival, prefix, penalty, revival, code, x)


def _sparse_loss(
    sae: SAE, x: Tensor, centred: Tensor, k: int | None, weights: Tensor, mesh: Mesh
) -> tuple[Code, Float[Tensor, ""]]:
    code = encode(sae, x, k, mesh)
    left = _left_by_earlier(centred, code, sae.decoder, mesh)
    return code, kernels.all_prefix_loss(left, *code, sae.decoder, weights).mean()


def encode(sae: SAE, x: Float[Tensor, "B d"], k: int | None, mesh: Mesh = ALONE) -> Code:
    """Return the code used in training, with k active units (or k on average) over all ranks."""
    if k is None or mesh.everyone.size == 1:
        return sae.encode(x, k=k)
    match sae.config.sparsifier:
        case TopK():
            code = sae.encode(x, k=min(k, len(sae.decoder)))
            return Code(keep_top(code.values, k, mesh.units), code.units)
        case BatchTopK():
            # all of the largest may be on this rank
            code = sae.encode(x, k=min(k * mesh.rows.size, len(sae.decoder)))
            return Code(keep_largest(code.values, k * len(x) * mesh.rows.size, mesh.everyone), code.units)
        case ReLU() | JumpReLU() | Linear():
            return sae.encode(x, k=k)
        case _:
            assert_never(sae.config.sparsifier)


def _left_by_earlier(centred: Tensor, code: Code, decoder: Tensor, mesh: Mesh) -> Float[Tensor, "B d"]:
    """Return the residual of the units of earlier ranks, which all prefixes that end on this rank contain."""
    if mesh.units.size == 1:
        return centred
    return centred - sum_of_earlier(kernels.decode(*code, decoder), mesh.units)


def _revival(
    sae: SAE, x: Tensor, code: Code, dead: Tensor | None, aux: AuxK | None, mesh: Mesh
) -> Float[Tensor, ""]:
    """Return the error of the dead units' reconstruction of the residual, which itself gets no gradient."""
    if aux is None or dead is None:
        return x.new_zeros(())
    which = dead.nonzero().squeeze(-1)
    count = min(aux.k, int(mesh.units.sum_(dead.sum())))
    if not count:
        return x.new_zeros(())
    centred = (x - sae.decoder_bias).detach()
    own = kernels.decode(code.values, code.units, sae.decoder).detach()
    residual = centred - mesh.units.sum_(own.clone())
    explained = sum_of_all(_explain(sae, centred, which, count, mesh), mesh.units)
    return aux.coefficient * (residual - explained).square().sum(-1).mean()


def _explain(sae: SAE, centred: Tensor, which: Tensor, count: int, mesh: Mesh) -> Float[Tensor, "B d"]:
    """Return what this rank's dead units reconstruct; `count` of them may be active over all ranks."""
    if not len(which):  # other ranks may have some, and take part in the collective
        keep_top(centred.new_zeros(len(centred), 0), count, mesh.units)
        return torch.zeros_like(centred)
    most = min(count, len(which))
    values, units = kernels.topk_encode(centred, sae.encoder[which], sae.encoder_bias[which], most)
    return kernels.decode(keep_top(values, count, mesh.units), units, sae.decoder[which])
