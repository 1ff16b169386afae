"""dictionary_learning: `ae.pt`, a state_dict, and `config.json` with what the trainer was given.

Two layouts: nn.Linear (encoder.weight K x d, decoder.weight d x K) and plain (W_enc d x K, W_dec K x d). An
interrupted run leaves a backup instead, with the state_dict under "ae" and the input scale beside it.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from osae.interop.export import Files, Origin, check_thresholds, collect_tensors
from osae.interop.found import Found, count, inside, number
from osae.interop.parts import Matrices, Parts, gated, scaled
from osae.model import SAE
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, Sparsifier, TopK

NAME = "dictionary_learning"
_BIASES = ("b_dec", "bias", "decoder.bias", "decoder_bias")


def recognises(found: Found) -> bool:
    """Whether the file is one that dictionary_learning wrote."""
    if isinstance(found.entries.get("ae"), dict):
        return True
    if found.has("encoder.weight", "decoder.weight"):
        return any(name in found for name in _BIASES)
    torch_file = found.file.suffix in (".pt", ".pth")
    own = "group_sizes" in found or "trainer" in found.config or _per_unit_threshold(found)
    return found.has("W_enc", "W_dec") and torch_file and own


def read(found: Found) -> Parts | Matrices:
    """The parameters of any of its dictionary classes."""
    if not isinstance(found.entries.get("ae"), dict):
        return _dictionary(found, inside(found.config, "trainer"))
    trainer = inside(found.entries, "config") or inside(found.config, "trainer")
    parts = _dictionary(replace(found, entries=found.entries["ae"]), trainer)
    if isinstance(parts, Matrices):
        return parts
    parts = parts.with_note("a backup of an unfinished run.")
    if found.entries.get("norm_factor") is None:
        return parts
    return scaled(parts, 1 / (number(found.entries, "norm_factor") or float("nan")))


def _dictionary(found: Found, trainer: dict[str, Any]) -> Parts | Matrices:
    if "W_enc" in found:
        return _plain(found, trainer)
    encoder, decoder = found.matrix("encoder.weight"), found.matrix("decoder.weight").T
    if "decoder_bias" in found:
        r_mag, gate_bias, mag_bias = (found.vector(name) for name in ("r_mag", "gate_bias", "mag_bias"))
        return gated(encoder, r_mag, gate_bias, mag_bias, decoder, found.vector("decoder_bias"))
    encoder_bias = found.vector("encoder.bias")
    if "bias" in found:
        return Parts(encoder, decoder, encoder_bias, found.vector("bias"), ReLU())
    if "decoder.bias" in found:
        return Parts(encoder, decoder, encoder_bias, found.vector("decoder.bias"), ReLU(), pre_bias=False)
    named = trainer.get("dict_class")
    if named not in ("AutoEncoderTopK", "BatchTopKSAE"):
        why = "nothing tells an AutoEncoderTopK from a BatchTopKSAE: put its config.json beside it."
        return Matrices(decoder, encoder, why)
    parts = Parts(encoder, decoder, encoder_bias, found.vector("b_dec"), TopK(_k(found, trainer)))
    return parts if named == "AutoEncoderTopK" else _by_threshold(parts, found)


def _plain(found: Found, trainer: dict[str, Any]) -> Parts | Matrices:
    encoder, decoder = found.matrix("W_enc").T, found.matrix("W_dec")
    encoder_bias, bias = found.vector("b_enc"), found.vector("b_dec")
    if _per_unit_threshold(found):
        threshold = found.vector("threshold")
        return Parts(encoder, decoder, encoder_bias, bias, JumpReLU(), threshold, pre_bias=False)
    if "group_sizes" not in found:
        return Matrices(decoder, encoder, "it is none of the dictionary classes that are known here.")
    parts = Parts(encoder, decoder, encoder_bias, bias, TopK(_k(found, trainer)))
    ends = ", ".join(map(str, _ends(found, len(decoder))))
    return _by_threshold(parts, found).with_note(f"a Matryoshka SAE whose groups end at {ends} units.")


def _by_threshold(parts: Parts, found: Found) -> Parts:
    """The same with units above one common threshold instead of the k largest; -1 stands for none yet."""
    level = found.scalar("threshold")
    assert isinstance(parts.sparsifier, TopK)
    threshold = torch.full((len(parts.decoder),), level)
    parts = replace(parts, sparsifier=BatchTopK(parts.sparsifier.k), threshold=threshold)
    return (
        parts if level >= 0 else parts.with_note("the threshold was never set: every positive unit speaks.")
    )


def _per_unit_threshold(found: Found) -> bool:
    return "threshold" in found and found.entries["threshold"].ndim == 1


def _k(found: Found, trainer: dict[str, Any]) -> int:
    stored = {count(part, "k") for part in (found.entries, trainer) if part.get("k") is not None}
    if len(stored) != 1:
        raise ValueError(f"the file and config.json give {sorted(stored) or 'no'} k: one is needed.")
    return stored.pop()


def _ends(found: Found, units: int) -> tuple[int, ...]:
    sizes = found.entries["group_sizes"]
    if sizes.is_floating_point() or sizes.is_complex() or sizes.ndim != 1 or sizes.numel() > units:
        raise ValueError(
            f"group_sizes is {sizes.dtype} of shape {tuple(sizes.shape)}: whole numbers are needed."
        )
    listed = [int(size) for size in sizes]
    if min(listed, default=0) < 1 or sum(listed) != units:
        raise ValueError(f"group_sizes sum to {sum(listed)} and there are {units} units: they must agree.")
    return tuple(sum(listed[: i + 1]) for i in range(len(listed)))


def export(sae: SAE, origin: Origin) -> Files:
    """The two files, which `dictionary_learning.utils.load_dictionary` and SAEBench load."""
    state, trainer_class, dict_class = _state(sae)
    trainer = {
        "trainer_class": trainer_class,
        "dict_class": dict_class,
        "activation_dim": sae.config.width,
        "dict_size": sae.config.units,
        "layer": origin.layer,
        "lm_name": origin.model or "unknown",
        "submodule_name": None if origin.layer is None else f"resid_post_layer_{origin.layer}",
    }
    if "k" in state:
        trainer["k"] = int(state["k"])
    buffer = {"d_submodule": sae.config.width, "io": "out", "ctx_len": None}
    return {"ae.pt": state, "config.json": {"trainer": trainer, "buffer": buffer, "osae": origin.provenance}}


def _state(sae: SAE) -> tuple[dict[str, Tensor], str, str]:
    """The state_dict, and the names of the trainer and of the dictionary class it belongs to."""
    tensors = collect_tensors(sae)
    linear = {
        "encoder.weight": tensors["encoder"],
        "encoder.bias": tensors["encoder_bias"],
        "decoder.weight": tensors["decoder"].T.contiguous(),
    }
    sparsifier: Sparsifier = sae.config.sparsifier
    level = tensors["threshold"].clamp(min=0)
    match sparsifier:
        case ReLU():
            return linear | {"bias": tensors["decoder_bias"]}, "StandardTrainer", "AutoEncoder"
        case TopK(k):
            chosen = {"b_dec": tensors["decoder_bias"], "k": torch.tensor(k, dtype=torch.int)}
            return linear | chosen | {"threshold": torch.tensor(-1.0)}, "TopKTrainer", "AutoEncoderTopK"
        case BatchTopK(k) if bool((level == level[0]).all()):
            chosen = {"b_dec": tensors["decoder_bias"], "k": torch.tensor(k, dtype=torch.int)}
            return linear | chosen | {"threshold": level[0].clone()}, "BatchTopKTrainer", "BatchTopKSAE"
        case BatchTopK() | JumpReLU():
            check_thresholds(sae)
            # this class subtracts nothing from its input: E (x - b) + c = E x + (c - E b)
            shift = tensors["encoder"].double() @ tensors["decoder_bias"].double()
            plain = {
                "W_enc": tensors["encoder"].T.contiguous(),
                "b_enc": (tensors["encoder_bias"].double() - shift).float(),
                "W_dec": tensors["decoder"],
                "b_dec": tensors["decoder_bias"],
                "threshold": level,
            }
            return plain, "JumpReluTrainer", "JumpReluAutoEncoder"
        case Linear():
            raise ValueError("dictionary_learning has no linear code: negative values would be lost.")
