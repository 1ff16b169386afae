"""dictionary_learning: `ae.pt`, a state_dict, and `config.json` with the settings of the trainer.

Two layouts: nn.Linear (encoder.weight K x d, decoder.weight d x K) and plain (W_enc d x K, W_dec K x d). An
interrupted training run leaves a backup instead: the state_dict under "ae", and the input scale.
"""

from dataclasses import replace
from typing import Any, assert_never

import torch
from torch import Tensor

from osae.interop.export import (
    Files,
    Origin,
    check_thresholds,
    check_unscaled,
    collect_tensors,
    require_familiar,
)
from osae.interop.found import Found, agree, count, inside, number
from osae.interop.parts import Matrices, Parts, from_gated, scale_input
from osae.interop.place import Place, read_place
from osae.model import SAE
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK

NAME = "dictionary_learning"
UNKNOWN = "unknown"  # instead of the name of a model
_BIASES = ("b_dec", "bias", "decoder.bias", "decoder_bias")


def recognises(found: Found) -> bool:
    """Return whether dictionary_learning wrote the file."""
    if isinstance(found.entries.get("ae"), dict):
        return True
    if found.has("encoder.weight", "decoder.weight"):
        return any(name in found for name in _BIASES)
    torch_file = found.file.suffix in (".pt", ".pth")
    own = "group_sizes" in found or "trainer" in found.config or _per_unit_threshold(found)
    return found.has("W_enc", "W_dec") and torch_file and own


def read(found: Found) -> Parts | Matrices:
    """Return the parameters of any of its dictionary classes."""
    backup = isinstance(found.entries.get("ae"), dict)
    trainer = _trainer(found)
    parts = _read_dictionary(replace(found, entries=found.entries["ae"]) if backup else found, trainer)
    units, width = parts.decoder.shape
    agree(trainer, {"activation_dim": width, "dict_size": units})
    if isinstance(parts, Matrices) or not backup:
        return parts
    parts = parts.with_note("it is a backup of an unfinished training run.")
    if found.entries.get("norm_factor") is None:
        return parts
    return scale_input(parts, 1 / (number(found.entries, "norm_factor") or float("nan")))


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    trainer = inside(config, "trainer")
    layer, model = trainer.get("layer"), trainer.get("lm_name")
    hook = trainer.get("submodule_name") or (f"resid_post_layer_{layer}" if isinstance(layer, int) else None)
    return read_place(None if model == UNKNOWN else model, hook, inside(config, "buffer").get("ctx_len"))


def _trainer(found: Found) -> dict[str, Any]:
    backup = inside(found.entries, "config") if isinstance(found.entries.get("ae"), dict) else {}
    return backup or inside(found.config, "trainer")


def _read_dictionary(found: Found, trainer: dict[str, Any]) -> Parts | Matrices:
    if "W_enc" in found:
        return _read_plain(found, trainer)
    if "decoder.bias" in found and trainer.get("dict_class") != "AutoEncoderNew":
        return _read_ambiguous(found)
    encoder, decoder = found.matrix("encoder.weight"), found.matrix("decoder.weight").T
    if "decoder_bias" in found:
        r_mag, gate_bias, mag_bias = (found.vector(name) for name in ("r_mag", "gate_bias", "mag_bias"))
        return from_gated(encoder, r_mag, gate_bias, mag_bias, decoder, found.vector("decoder_bias"))
    encoder_bias = found.vector("encoder.bias")
    if "bias" in found:
        return Parts(encoder, decoder, encoder_bias, found.vector("bias"), ReLU())
    if "decoder.bias" in found:
        return Parts(encoder, decoder, encoder_bias, found.vector("decoder.bias"), ReLU(), pre_bias=False)
    named = trainer.get("dict_class")
    if named not in ("AutoEncoderTopK", "BatchTopKSAE"):
        why = "it may be an AutoEncoderTopK or a BatchTopKSAE: put its config.json next to it."
        return Matrices(decoder, encoder, why)
    parts = Parts(encoder, decoder, encoder_bias, found.vector("b_dec"), TopK(_k(found, trainer)))
    return parts if named == "AutoEncoderTopK" else _select_by_threshold(parts, found)


def _read_ambiguous(found: Found) -> Matrices:
    """Return the matrices of a file whose tensors fit more than one kind of SAE."""
    why = (
        "it may be an AutoEncoderNew of dictionary_learning, or from Llama Scope, whose threshold is in "
        "hyperparams.json: put its config.json or hyperparams.json next to it."
    )
    return Matrices(found.matrix("decoder.weight").T, found.matrix("encoder.weight"), why)


def _read_plain(found: Found, trainer: dict[str, Any]) -> Parts | Matrices:
    encoder, decoder = found.matrix("W_enc").T, found.matrix("W_dec")
    encoder_bias, bias = found.vector("b_enc"), found.vector("b_dec")
    if _per_unit_threshold(found):
        threshold = found.vector("threshold")
        return Parts(encoder, decoder, encoder_bias, bias, JumpReLU(), threshold, pre_bias=False)
    if "group_sizes" not in found:
        return Matrices(decoder, encoder, "it is not one of the known dictionary classes.")
    parts = Parts(encoder, decoder, encoder_bias, bias, TopK(_k(found, trainer)))
    ends = ", ".join(map(str, _ends(found, len(decoder))))
    return _select_by_threshold(parts, found).with_note(
        f"it is a Matryoshka SAE whose groups end at {ends} units."
    )


def _select_by_threshold(parts: Parts, found: Found) -> Parts:
    """Return the same, but selecting units by a threshold instead of the k largest.

    -1 means it was never set.
    """
    level = found.scalar("threshold")
    assert isinstance(parts.sparsifier, TopK)
    threshold = torch.full((len(parts.decoder),), level)
    parts = replace(parts, sparsifier=BatchTopK(parts.sparsifier.k), threshold=threshold)
    if level >= 0:
        return parts
    return parts.with_note("its threshold was never set: every unit with a positive pre-activation fires.")


def _per_unit_threshold(found: Found) -> bool:
    return "threshold" in found and found.entries["threshold"].ndim == 1


def _k(found: Found, trainer: dict[str, Any]) -> int:
    stored = {count(part, "k") for part in (found.entries, trainer) if part.get("k") is not None}
    if len(stored) != 1:
        raise ValueError(
            f"the file and config.json give {sorted(stored) or 'no'} k: exactly one is required."
        )
    return stored.pop()


def _ends(found: Found, units: int) -> tuple[int, ...]:
    sizes = found.entries["group_sizes"]
    if sizes.is_floating_point() or sizes.is_complex() or sizes.ndim != 1 or sizes.numel() > units:
        raise ValueError(
            f"group_sizes is {sizes.dtype} of shape {tuple(sizes.shape)}: whole numbers are needed."
        )
    listed = [int(size) for size in sizes]
    if min(listed, default=0) < 1 or sum(listed) != units:
        raise ValueError(
            f"group_sizes sum to {sum(listed)}, but there are {units} units: the file is damaged."
        )
    return tuple(sum(listed[: i + 1]) for i in range(len(listed)))


def export(sae: SAE, origin: Origin) -> Files:
    """Return the two files, which `dictionary_learning.utils.load_dictionary` and SAEBench load."""
    state, trainer_class, dict_class = _state(sae)
    trainer = {
        **_describe_place(origin),
        "trainer_class": trainer_class,
        "dict_class": dict_class,
        "activation_dim": sae.config.width,
        "dict_size": sae.config.units,
    }
    trainer.pop("k", None)
    if "k" in state:
        trainer["k"] = int(state["k"])
    buffer = {"io": "out"} | inside(origin.config, "buffer")
    buffer |= {"d_submodule": sae.config.width, "ctx_len": origin.place.context}
    return {"ae.pt": state, "config.json": {"trainer": trainer, "buffer": buffer, "osae": origin.provenance}}


def _describe_place(origin: Origin) -> dict[str, Any]:
    """Return the trainer's settings from the original file, and where the activations come from."""
    place = origin.place
    said = {
        "layer": place.layer,
        "lm_name": place.model,
        "submodule_name": f"resid_post_layer_{place.layer}" if place.residual else place.hook,
    }
    known = {name: value for name, value in said.items() if value is not None}
    return {
        "layer": None,
        "lm_name": UNKNOWN,
        "submodule_name": None,
        **inside(origin.config, "trainer"),
        **known,
    }


def _state(sae: SAE) -> tuple[dict[str, Tensor], str, str]:
    """Return the state_dict, and the names of its trainer and dictionary class."""
    check_unscaled(sae, NAME)
    tensors = collect_tensors(sae)
    bias, level = tensors["decoder_bias"], tensors["threshold"].clamp(min=0)
    match sparsifier := require_familiar(sae, NAME):
        case ReLU():
            return _linear(tensors) | {"bias": bias}, "StandardTrainer", "AutoEncoder"
        case TopK(k):
            chosen = {"b_dec": bias, "k": torch.tensor(k, dtype=torch.int), "threshold": torch.tensor(-1.0)}
            return _linear(tensors) | chosen, "TopKTrainer", "AutoEncoderTopK"
        case BatchTopK(k) if bool((level == level[0]).all()):
            chosen = {"b_dec": bias, "k": torch.tensor(k, dtype=torch.int), "threshold": level[0].clone()}
            return _linear(tensors) | chosen, "BatchTopKTrainer", "BatchTopKSAE"
        case BatchTopK() | JumpReLU():
            check_thresholds(sae)
            return _plain(tensors) | {"threshold": level}, "JumpReluTrainer", "JumpReluAutoEncoder"
        case _:
            assert_never(sparsifier)


def _linear(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the matrices and the encoder's bias in the layout of nn.Linear."""
    return {
        "encoder.weight": tensors["encoder"],
        "encoder.bias": tensors["encoder_bias"],
        "decoder.weight": tensors["decoder"].T.contiguous(),
    }


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the plain layout; its class does not subtract b: E (x - b) + c = E x + (c - E b)."""
    shift = tensors["encoder"].double() @ tensors["decoder_bias"].double()
    return {
        "W_enc": tensors["encoder"].T.contiguous(),
        "b_enc": (tensors["encoder_bias"].double() - shift).float(),
        "W_dec": tensors["decoder"],
        "b_dec": tensors["decoder_bias"],
    }
