"""SAELens: `cfg.json` and `sae_weights.safetensors`; W_enc is d x K, W_dec is K x d.

pre = (x - b_dec) W_enc + b_enc, without b_dec if `apply_b_dec_to_input` is false; top-k comes before the
ReLU, and ranks pre times the norm of the atom if `rescale_acts_by_decoder_norm`. Before version 6 the
activation had a field of its own, and `scaling_factor` multiplied the code of a finetuned SAE.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor

from osae.interop.export import Files, Origin, check_thresholds, collect_tensors, require_familiar
from osae.interop.found import Found, count, flag, inside, json_object, number, word
from osae.interop.parts import Matrices, Parts, from_gated, scale_input
from osae.model import SAE
from osae.sparsify import BatchTopK, JumpReLU, ReLU, Sparsifier, TopK

NAME = "saelens"
VERSION = "6.0.0"  # the layout that is written


def recognises(found: Found) -> bool:
    """Return whether SAELens wrote the file."""
    return "W_dec" in found and "d_in" in found.config and "d_sae" in found.config


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or the matrices alone of an architecture that ours cannot run."""
    config = found.config
    decoder = found.matrix("W_dec")
    encoder = found.matrix("W_enc").T if "W_enc" in found else None
    if encoder is None:
        return Matrices(decoder, None, "it has no W_enc.")
    if why := _why_not(config):
        return Matrices(decoder, encoder, why)
    if (units := count(config, "d_sae")) != len(decoder):
        raise ValueError(f"cfg.json says d_sae={units} and W_dec has {len(decoder)} rows: they must agree.")
    if "scaling_factor" in found:
        decoder = _rescale(decoder, found.vector("scaling_factor"), config)
    parts = _parts(found, encoder, decoder, _architecture(config))
    if _normalisation(config) == "expected_average_only_in":
        return _fold_input_scale(parts, found.file.parent / "activation_scaler.json")
    return parts


def _architecture(config: dict[str, Any]) -> str:
    old = word(config, "activation_fn_str", default=word(config, "activation_fn", default="relu"))
    named = word(config, "architecture", default="standard")
    return "topk" if named == "standard" and old == "topk" else named


def _normalisation(config: dict[str, Any]) -> str:
    given = config.get("normalize_activations")
    if isinstance(given, bool):  # before version 3
        return "expected_average_only_in" if given else "none"
    return word(config, "normalize_activations", default="none")


def _why_not(config: dict[str, Any]) -> str:
    """Return why our SAE cannot compute what this one does; empty if it can."""
    architecture, normalisation = _architecture(config), _normalisation(config)
    if architecture not in ("standard", "topk", "jumprelu", "gated", "batchtopk", "matryoshka_batchtopk"):
        return f"the architecture {architecture} is not supported."
    if normalisation not in ("none", "expected_average_only_in"):
        return f"normalize_activations={normalisation} depends on each input, so it cannot be folded."
    activation = word(config, "activation_fn_str", default=word(config, "activation_fn", default="relu"))
    if activation not in ("relu", "topk"):
        return f"the activation {activation} is not supported."
    return ""


def _parts(found: Found, encoder: Tensor, decoder: Tensor, architecture: str) -> Parts:
    config = found.config
    bias = found.vector("b_dec")
    if architecture == "gated":
        r_mag, b_gate, b_mag = (found.vector(name) for name in ("r_mag", "b_gate", "b_mag"))
        parts = from_gated(encoder, r_mag, b_gate, b_mag, decoder, bias)
    else:
        sparsifier, threshold = _selection(found, len(decoder), architecture)
        training = architecture.endswith("batchtopk")
        by_norm = flag(config, "rescale_acts_by_decoder_norm", default=training)
        parts = Parts(
            encoder,
            decoder,
            found.vector("b_enc"),
            bias,
            sparsifier,
            threshold,
            ranks_by_norm=by_norm and isinstance(sparsifier, TopK | BatchTopK),
        )
    parts = replace(parts, pre_bias=flag(config, "apply_b_dec_to_input", default=True))
    reshaped = word(config, "reshape_activations", default="none")
    return (
        parts if reshaped == "none" else parts.with_note(f"its input is {reshaped}: heads are concatenated.")
    )


def _selection(found: Found, units: int, architecture: str) -> tuple[Sparsifier, Tensor | None]:
    config = found.config
    match architecture:
        case "topk":
            return TopK(count(config if "k" in config else inside(config, "activation_fn_kwargs"), "k")), None
        case "jumprelu":
            name = "threshold" if "threshold" in found else "log_threshold"
            values = found.vector(name)
            return JumpReLU(), values if name == "threshold" else values.exp()
        case "standard":
            return ReLU(), None
        case _:
            # a training checkpoint; k is an average, and need not be whole
            k = min(max(round(number(config, "k")), 1), units)
            return BatchTopK(k), torch.full((units,), found.scalar("topk_threshold"))


def _rescale(decoder: Tensor, factor: Tensor, config: dict[str, Any]) -> Tensor:
    if len(factor) != len(decoder):
        raise ValueError(f"scaling_factor has {len(factor)} entries for {len(decoder)} units.")
    if not flag(config, "finetuning_scaling_factor", default=False) and bool((factor != 1).any()):
        raise ValueError(
            "scaling_factor is not 1, although cfg.json says that it is not used: one must be wrong."
        )
    return decoder * factor[:, None]


def _fold_input_scale(parts: Parts, scaler: Path) -> Parts:
    """Fold the input scale if a checkpoint stores it; otherwise x is used as it is, as SAELens does."""
    if scaler.is_file() and (about := json_object(scaler)).get("scaling_factor") is not None:
        return scale_input(parts, number(about, "scaling_factor"))
    return parts.with_note("the input scale of the training run is not stored: inputs are used as they are.")


def export(sae: SAE, origin: Origin) -> Files:
    """Return the two files, which SAELens 6 loads with `SAE.load_from_disk`."""
    tensors = collect_tensors(sae)
    state = {
        "W_enc": tensors["encoder"].T.contiguous(),
        "b_enc": tensors["encoder_bias"],
        "W_dec": tensors["decoder"],
        "b_dec": tensors["decoder_bias"],
    }
    architecture, fields = _describe_sparsifier(sae)
    if architecture == "jumprelu":
        state["threshold"] = tensors["threshold"].clamp(min=0)
    metadata = {"sae_lens_version": VERSION, "osae": origin.provenance}
    if origin.model is not None:
        metadata["model_name"] = origin.model
    if origin.layer is not None:
        metadata["hook_name"] = f"blocks.{origin.layer}.hook_resid_post"
    config = {"d_in": sae.config.width, "d_sae": sae.config.units, "architecture": architecture, **fields}
    config |= {"dtype": "float32", "device": "cpu", "apply_b_dec_to_input": True}
    config |= {"normalize_activations": "none", "reshape_activations": "none", "metadata": metadata}
    return {"sae_weights.safetensors": state, "cfg.json": config}


def _describe_sparsifier(sae: SAE) -> tuple[str, dict[str, Any]]:
    """Return the architecture by its name in SAELens, and the fields of cfg.json that go with it."""
    match sparsifier := require_familiar(sae, "SAELens"):
        case TopK(k):
            return "topk", {"k": k, "rescale_acts_by_decoder_norm": False}
        case ReLU():
            return "standard", {}
        case JumpReLU() | BatchTopK():
            check_thresholds(sae)
            return "jumprelu", {}
        case _:
            assert_never(sparsifier)
