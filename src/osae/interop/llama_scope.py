"""Llama Scope: `checkpoints/final.safetensors` with `hyperparams.json` above it; nn.Linear layout.

encoder.weight is K x d, decoder.weight d x K. Its own code folds the scale of the inputs (to an average norm
of sqrt(d)) and the norms of the atoms into the weights, and only then applies `jump_relu_threshold`: the
threshold is in units of the raw activations and of unit atoms. Later files of the same group have a
`config.json` instead and learn a threshold for each unit, in units of the scaled inputs.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from osae.interop.found import Found, agree, count, flag, inside, number, word
from osae.interop.parts import TRANSCODER, Matrices, Parts, scale_input
from osae.interop.place import Place, read_place
from osae.scaling import ConstantNorm
from osae.sparsify import JumpReLU, ReLU, Sparsifier, TopK

NAME = "llama_scope"
_LEVELS = ("log_jumprelu_threshold", "activation_function.log_jumprelu_threshold")


def recognises(found: Found) -> bool:
    """Return whether the file is from Llama Scope."""
    return found.has("encoder.weight", "decoder.weight") and "hook_point_in" in found.config


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices of a transcoder or an unsupported encoder."""
    config = found.config
    encoder, decoder = found.matrix("encoder.weight"), found.matrix("decoder.weight").T
    agree(config, {"d_model": encoder.shape[1], "d_sae": len(decoder)})
    if why := _why_not(found):
        return Matrices(decoder, encoder, why)
    width = decoder.shape[1]
    sparsifier, levels = _selection(found, len(decoder))
    parts = Parts(
        encoder,
        decoder,
        found.vector("encoder.bias"),
        found.vector("decoder.bias") if "decoder.bias" in found else torch.zeros(width),
        sparsifier,
        levels,
        pre_bias=flag(config, "apply_decoder_bias_to_pre_encoder", default=False),
        ranks_by_norm=flag(config, "sparsity_include_decoder_norm", default=True),
        scaling=ConstantNorm() if _norm(config) == "token-wise" else None,
    )
    if _norm(config) == "dataset-wise":
        parts = scale_input(parts, width**0.5 / (_average(found) or float("nan")))
    if _level(config) and isinstance(sparsifier, JumpReLU) and levels is None:
        parts = replace(parts, threshold=torch.full((len(decoder),), _level(config)))
    return parts


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    return read_place(None, config.get("hook_point_in"))


def _selection(found: Found, units: int) -> tuple[Sparsifier, Tensor | None]:
    """Return how units are selected, and their learned thresholds."""
    learned = next((name for name in _LEVELS if name in found), None)
    activation = word(found.config, "act_fn", default="relu")
    if learned is not None:
        return JumpReLU(), found.vector(learned).exp()
    if activation == "relu":
        return ReLU(), None
    if activation == "jumprelu" or _level(found.config) > 0:
        return JumpReLU(), None
    return TopK(min(count(found.config, "top_k"), units)), None


def _level(config: dict[str, Any]) -> float:
    """Return the threshold of all units, 0 if there is none; Llama Scope's code uses it instead of top-k."""
    return number(config, "jump_relu_threshold") if config.get("jump_relu_threshold") is not None else 0.0


def _norm(config: dict[str, Any]) -> str:
    return word(config, "norm_activation", default="dataset-wise")


def _average(found: Found) -> float | None:
    """Return the average norm of the inputs; None if it is not stored."""
    stored = inside(found.config, "dataset_average_activation_norm")
    if stored.get("in") is not None:
        return number(stored, "in")
    name = f"dataset_average_activation_norm.{found.config['hook_point_in']}"
    return found.scalar(name) if name in found else None


def _why_not(found: Found) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    config = found.config
    into, out = config["hook_point_in"], config.get("hook_point_out", config["hook_point_in"])
    if into != out:
        return f"{TRANSCODER}: it reads {into} and writes {out}."
    if flag(config, "use_glu_encoder", default=False) or "encoder_glu.weight" in found:
        return "a GLU encoder is not supported."
    activation = word(config, "act_fn", default="relu")
    if activation not in ("relu", "jumprelu", "topk"):
        return f"the activation {activation} selects within a batch and stores no threshold."
    if (norm := _norm(config)) not in ("inference", "dataset-wise", "token-wise"):
        return f"norm_activation={norm} depends on the other inputs of a batch."
    if norm == "dataset-wise" and _average(found) is None:
        return "the average norm of its inputs is not stored."
    return ""
