"""overcomplete: a `.pt` with a state_dict, or with the whole module as `torch.save(sae, path)` writes it.

The encoder is linear (K x d), perhaps with batch norm, or tied to the dictionary; there are no other biases.
The dictionary is normalized and multiplied by exp(multiplier). An archetypal one is a convex combination W of
the points C, plus `Relax`. Only a JumpSAE can be identified from its state_dict; a module names its class, as
can a `config.json` next to a state_dict: `{"class": "TopKSAE", "top_k": 8}`.
"""

from typing import Any

import torch
from torch import Tensor

from osae.interop.found import Found, count, inside, number, word
from osae.interop.modules import MODULE
from osae.interop.parts import UNIT, Matrices, Parts
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

NAME = "overcomplete"
_TINY = 1e-8
_PURSUITS = ("mpsae", "ompsae")
_CLASSES = ("sae", "topksae", "ratopksae", "batchtopksae", "jumpsae", "rajumpsae", "qsae", *_PURSUITS)


def recognises(found: Found) -> bool:
    """Return whether overcomplete wrote the file."""
    return "dictionary._weights" in found or found.has("dictionary.C", "dictionary.W", "dictionary.Relax")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices if the class is unknown or not supported."""
    about = inside(found.entries, MODULE) or found.config
    decoder, unknown = _read_dictionary(found, about)
    encoder, bias, why = _read_encoder(found, about, decoder)
    kind = word(about, "class", default="jumpsae" if "thresholds" in found else "")
    if why := _why_not(found, about, kind) or why or unknown:
        return Matrices(decoder, encoder, why)
    assert encoder is not None
    units, width = decoder.shape
    threshold = None
    match kind:
        case "sae":
            sparsifier = ReLU()
        case "jumpsae" | "rajumpsae":
            sparsifier, threshold = JumpReLU(), found.vector("thresholds").exp()
        case "batchtopksae":  # its top_k counts the active units of a whole batch
            sparsifier = BatchTopK(min(count(about, "top_k"), units))
            threshold = torch.full((units,), number(about, "running_threshold"))
        case _:
            sparsifier = TopK(count(about, "top_k"))
    return Parts(encoder, decoder, bias, torch.zeros(width), sparsifier, threshold)


def _why_not(found: Found, about: dict[str, Any], kind: str) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    if kind in _PURSUITS:
        return "matching pursuit selects units one by one, which takes more than one encoding step."
    if kind == "qsae" or "Q" in found:
        return "the values of a QSAE are quantized, which is not supported."
    if kind and kind not in _CLASSES:
        return f"the class {kind} is not supported."
    if not any(name.startswith("encoder.") for name in found.entries):
        if kind:
            return "its encoder is the identity, which is not supported."
        return "it has no encoder: it may be a MpSAE or an OMPSAE, and matching pursuit is not supported."
    if not kind:
        named = "a RATopKSAE" if "dictionary.C" in found else "an SAE, a TopKSAE or a BatchTopKSAE"
        return (
            f"it may be {named}, and a state_dict does not contain its top_k: save the whole module with "
            'torch.save(sae, path), or put a config.json next to it, {"class": "TopKSAE", "top_k": 8}.'
        )
    if kind == "batchtopksae" and about.get("running_threshold") is None:
        return "its running_threshold is not stored: save the whole module with torch.save(sae, path)."
    return ""


def _read_dictionary(found: Found, about: dict[str, Any]) -> tuple[Tensor, str]:
    """Return the atoms in evaluation mode, and why their norms are unknown if they are."""
    multiplier = found.scalar("dictionary.multiplier") if "dictionary.multiplier" in found else 0.0
    if "dictionary._weights" not in found:
        return _archetypes(found, about) * torch.tensor(multiplier).exp(), ""
    weights, why = found.matrix("dictionary._weights"), ""
    if named := word(about, "normalization", default=""):
        weights = _normalize(weights, named.removeprefix("normalize_"))
    elif not _is_normalized(weights):
        why = (
            "its atoms are not normalized, perhaps except in evaluation: save the whole module with "
            'torch.save(sae, path), or put its normalization, such as "l2", into a config.json next to it.'
        )
    return weights * torch.tensor(multiplier).exp(), why


def _is_normalized(weights: Tensor) -> bool:
    """Return whether one of the library's normalizations leaves the atoms unchanged."""
    euclidean, sums = weights.norm(dim=1), weights.abs().sum(1)
    whole = any(bool(((norms - 1).abs() <= 100 * UNIT).all()) for norms in (euclidean, sums))
    return whole or any(abs(float(norms.max()) - 1) <= UNIT for norms in (euclidean, sums))


def _normalize(weights: Tensor, kind: str) -> Tensor:
    norms = weights.norm(p=1 if kind.endswith("l1") else 2, dim=1, keepdim=True)
    match kind:
        case "l2" | "l1":
            return weights / (norms + _TINY)
        case "max_l2" | "max_l1":
            return weights / norms.max()
        case "identity":
            return weights
        case _:
            raise ValueError(f"the dictionary's normalization {kind} is not supported: save its state_dict.")


def _archetypes(found: Found, about: dict[str, Any]) -> Tensor:
    """Return W C + Relax, with the rows of W on the simplex, and the norms of Relax at most delta."""
    points, weights, relax = (found.matrix(f"dictionary.{name}") for name in ("C", "W", "Relax"))
    if weights.shape != (len(relax), len(points)) or relax.shape[1] != points.shape[1]:
        raise ValueError(
            f"W is {tuple(weights.shape)}, C is {tuple(points.shape)} and Relax is {tuple(relax.shape)}: "
            "they must fit each other."
        )
    convex = weights.relu()
    if about.get("delta") is not None:
        relax = relax * (number(about, "delta") / relax.norm(dim=1, keepdim=True)).clamp(max=1)
    return convex / (convex.sum(1, keepdim=True) + _TINY) @ points + relax


def _read_encoder(found: Found, about: dict[str, Any], decoder: Tensor) -> tuple[Tensor | None, Tensor, str]:
    """Return the matrix and bias of a linear encoder, or why it is not linear."""
    names = [name for name in found.entries if name.startswith("encoder.")]
    if activation := word(about, "activation", default="").replace("relu", ""):
        return None, torch.zeros(len(decoder)), f"the encoder's activation {activation} is not supported."
    if "encoder.final_block.0.weight" in found:
        return _read_linear(found, about, names)
    tied = any(name.startswith("encoder.tied_to.") for name in names)
    if not tied and "encoder.weight" not in found:
        return None, torch.zeros(len(decoder)), "its encoder is not linear."
    encoder = decoder if tied else found.matrix("encoder.weight")
    return encoder, found.vector("encoder.bias") if "encoder.bias" in found else torch.zeros(len(decoder)), ""


def _read_linear(found: Found, about: dict[str, Any], names: list[str]) -> tuple[Tensor, Tensor, str]:
    """Return the last layer of the encoder, with batch norm (in evaluation mode) folded in."""
    weight, bias = found.matrix("encoder.final_block.0.weight"), found.vector("encoder.final_block.0.bias")
    last = "encoder.final_block.1."
    if any(not name.startswith("encoder.final_block.") for name in names):
        return weight, bias, "its encoder has hidden layers."
    if f"{last}running_mean" not in found:
        return weight, bias, "its encoder has a layer norm." if f"{last}weight" in found else ""
    mean, variance, gain, shift = (
        found.vector(last + name) for name in ("running_mean", "running_var", "weight", "bias")
    )
    if not len(mean) == len(variance) == len(gain) == len(shift) == len(bias) == len(weight):
        raise ValueError(f"batch norm of {len(mean)} units follows {len(weight)} units: the file is damaged.")
    epsilon = number(about, "epsilon") if about.get("epsilon") is not None else 1e-5
    scale = gain / (variance + epsilon).sqrt()
    return weight * scale[:, None], (bias - mean) * scale + shift, ""
