"""bartbussmann's BatchTopK and matryoshka_sae: `sae.pt` and `config.json`; W_enc is d x K, W_dec is K x d.

`b_enc` is always stored, but only the vanilla and the JumpReLU SAE use it; only the JumpReLU SAE does not
subtract b_dec. `input_unit_norm` scales each input separately.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from osae.interop.found import Found, agree, count, flag, word
from osae.interop.parts import Matrices, Parts
from osae.interop.place import Place, read_place
from osae.scaling import LayerNorm
from osae.sparsify import BatchTopK, JumpReLU, ReLU, Sparsifier, TopK

NAME = "bartbussmann"


def recognises(found: Found) -> bool:
    """Return whether one of these repositories wrote the file."""
    return found.has("W_enc", "W_dec") and "act_size" in found.config and "sae_type" in found.config


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices if units are selected within a batch."""
    config = found.config
    encoder, decoder = found.matrix("W_enc").T, found.matrix("W_dec")
    agree(config, {"act_size": decoder.shape[1], "dict_size": len(decoder)})
    scaling = LayerNorm() if flag(config, "input_unit_norm", default=True) else None
    kind = word(config, "sae_type", default="")
    unused, bias = torch.zeros(len(decoder)), found.vector("b_dec")
    if kind == "vanilla":
        return Parts(encoder, decoder, found.vector("b_enc"), bias, ReLU(), scaling=scaling)
    if kind == "jumprelu":
        threshold = found.vector("jumprelu.log_threshold").exp()
        parts = Parts(encoder, decoder, found.vector("b_enc"), bias, JumpReLU(), threshold, scaling=scaling)
        return replace(parts, pre_bias=False)
    if kind not in ("topk", "batchtopk", "global-matryoshka-topk"):
        return Matrices(decoder, encoder, f"the sae_type {kind} is not supported.")
    if kind != "topk" and "threshold" not in found:
        return Matrices(
            decoder, encoder, "it has no threshold with which to select units outside of a training batch."
        )
    sparsifier, threshold = _selection(found, kind, len(decoder))
    return Parts(encoder, decoder, unused, bias, sparsifier, threshold, scaling=scaling)


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    return read_place(config.get("model_name"), config.get("hook_point"), config.get("seq_len"))


def _selection(found: Found, kind: str, units: int) -> tuple[Sparsifier, Tensor | None]:
    k = count(found.config, "top_k")
    if kind == "topk":
        return TopK(k), None
    return BatchTopK(min(k, units)), torch.full((units,), found.scalar("threshold"))
