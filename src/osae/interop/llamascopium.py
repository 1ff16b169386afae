"""Llamascopium: `config.json` and `sae_weights.safetensors` or `.pt`; W_E is d x K, W_D is K x d.

No pre-bias. With `sparsity_include_decoder_norm` units are selected by pre times the norm of the atom.
`norm_activation: dataset-wise` scales inputs to an average norm of sqrt(d) with a stored average;
`inference` means that this scale has been folded into the weights, `token-wise` that each input has its own.
"""

from dataclasses import replace
from typing import Any

import torch

from osae.interop.found import Found, agree, count, flag, word
from osae.interop.parts import TRANSCODER, Matrices, Parts, scale_input
from osae.interop.place import Place, read_place
from osae.scaling import ConstantNorm
from osae.sparsify import JumpReLU, ReLU, TopK

NAME = "llamascopium"
_LEVELS = "activation_function.log_jumprelu_threshold"


def recognises(found: Found) -> bool:
    """Return whether Llamascopium wrote the file."""
    return _state(found).has("W_E", "W_D")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices of a transcoder or of a selection within a batch."""
    found = _state(found)
    config = found.config
    encoder, decoder = found.matrix("W_E").T, found.matrix("W_D")
    agree(config, {"d_model": decoder.shape[1]})
    if why := _why_not(found):
        return Matrices(decoder, encoder, why)
    activation = word(config, "act_fn", default="relu")
    sparsifier = {"relu": ReLU(), "jumprelu": JumpReLU()}.get(activation) or TopK(count(config, "top_k"))
    parts = Parts(
        encoder,
        decoder,
        found.vector("b_E"),
        found.vector("b_D") if "b_D" in found else torch.zeros(decoder.shape[1]),
        sparsifier,
        found.vector(_LEVELS).exp() if activation == "jumprelu" else None,
        pre_bias=False,
        ranks_by_norm=flag(config, "sparsity_include_decoder_norm", default=True),
        scaling=ConstantNorm() if _norm(config) == "token-wise" else None,
    )
    if _norm(config) != "dataset-wise":
        return parts
    average = found.scalar(_average(found))
    return scale_input(parts, decoder.shape[1] ** 0.5 / (average or float("nan")))


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    return read_place(None, config.get("hook_point_in"))


def _state(found: Found) -> Found:
    inner = found.entries.get("sae")
    return replace(found, entries=inner) if isinstance(inner, dict) else found


def _norm(config: dict[str, Any]) -> str:
    return word(config, "norm_activation", default="dataset-wise")


def _average(found: Found) -> str:
    return f"dataset_average_activation_norm.{found.config.get('hook_point_in')}"


def _why_not(found: Found) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    config = found.config
    if not config:
        return "there is no config.json next to it, which would state its activation function."
    if (kind := word(config, "sae_type", default="sae")) != "sae":
        return f"the sae_type {kind} is not supported."
    if config.get("hook_point_in") != config.get("hook_point_out"):
        return f"{TRANSCODER}."
    if flag(config, "use_glu_encoder", default=False):
        return "a GLU encoder is not supported."
    if (activation := word(config, "act_fn", default="relu")) not in ("relu", "jumprelu", "topk"):
        return f"the activation {activation} selects within a batch and stores no threshold."
    norm = _norm(config)
    if norm not in ("inference", "dataset-wise", "token-wise"):
        return f"norm_activation={norm} depends on the other inputs of a batch."
    if norm == "dataset-wise" and _average(found) not in found:
        return "the average norm of its inputs is not stored."
    return ""
