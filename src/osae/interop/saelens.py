"""SAELens: `cfg.json` and `sae_weights.safetensors`; W_enc is d x K, W_dec is K x d.

pre = (x - b_dec) W_enc + b_enc, without b_dec if `apply_b_dec_to_input` is false; top-k comes before the
ReLU, and ranks pre times the norm of the atom if `rescale_acts_by_decoder_norm`. Before version 6, the
activation had a separate field, and `scaling_factor` multiplied the code of a finetuned SAE.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor

from osae.interop.export import Files, Origin, check_thresholds, collect_tensors, require_familiar
from osae.interop.found import Found, agree, count, flag, inside, json_object, number, word
from osae.interop.parts import (
    TRANSCODER,
    Matrices,
    Parts,
    from_gated,
    has_unit_atoms,
    scale_input,
    whiten_input,
)
from osae.interop.place import Place, read_place
from osae.interop.weights import read_entries
from osae.model import SAE
from osae.scaling import ConstantNorm, InputScaling, LayerNorm
from osae.sparsify import BatchTopK, JumpReLU, ReLU, Sparsifier, TopK

NAME = "saelens"
VERSION = "6.0.0"  # the layout that is written
ARCHITECTURES = ("standard", "topk", "jumprelu", "gated", "batchtopk", "matryoshka_batchtopk")
UNSUPPORTED = {
    "abstopk": "abstopk selects by absolute value and keeps negative values, which is not supported.",
    "matching_pursuit": "matching pursuit selects units one by one, each for the residual so far, which "
    "takes more than one encoding step.",
    "temporal": "a temporal SAE predicts each activation from earlier ones in its context, but rows have no "
    "context here.",
}
SCALINGS: dict[str, InputScaling] = {"layer_norm": LayerNorm(), "constant_norm_rescale": ConstantNorm()}
SCALER, WHITENING = "activation_scaler.json", "activation_whitening.safetensors"
UNSCALED = "the input scale of the training run is not stored: inputs are not scaled."
# metadata about the model in cfg.json; before version 6, these were top-level fields
METADATA = (
    *("model_name", "hook_name", "model_class_name", "hook_head_index", "model_from_pretrained_kwargs"),
    *("prepend_bos", "exclude_special_tokens", "neuronpedia_id", "context_size", "seqpos_slice"),
    *("dataset_path", "sae_lens_training_version", "hook_name_out", "hook_head_index_out"),
    *("hf_hook_name", "hf_hook_name_out"),
)


def recognises(found: Found) -> bool:
    """Return whether SAELens wrote the file."""
    theirs = "W_dec" in found and "encoder.weight" not in found  # sparsify has the latter
    return theirs and "d_in" in found.config and "d_sae" in found.config


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices of an architecture that is not supported."""
    config = found.config
    decoder = found.matrix("W_dec")
    encoder = found.matrix("W_enc").T if "W_enc" in found else None
    agree(config, {"d_sae": len(decoder), "d_out" if _is_transcoder(config) else "d_in": decoder.shape[1]})
    if why := _why_not(found):
        return Matrices(decoder, encoder, why)
    assert encoder is not None
    if "scaling_factor" in found:
        decoder = _rescale(decoder, found.vector("scaling_factor"), config)
    parts = _parts(found, encoder, decoder, _architecture(config))
    match _normalisation(config):
        case "expected_average_only_in":
            return _fold_input_scale(parts, found.file.parent / SCALER)
        case "covariance_whitening":
            return _fold_whitening(parts, found.file.parent / WHITENING)
        case each:
            return replace(parts, scaling=SCALINGS.get(each))


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    about = _metadata(config)
    hook = about.get("hook_name") or about.get("hf_hook_name")
    return read_place(about.get("model_name"), hook, about.get("context_size"))


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata about the model in cfg.json; before version 6, these were top-level fields."""
    if "metadata" in config:
        return inside(config, "metadata")
    renamed = {"hook_point": "hook_name", "hook_point_head_index": "hook_head_index"}
    flat = {renamed.get(name, name): value for name, value in config.items()}
    return {name: value for name, value in flat.items() if name in METADATA and value is not None}


def _architecture(config: dict[str, Any]) -> str:
    old = word(config, "activation_fn_str", default=word(config, "activation_fn", default="relu"))
    named = word(config, "architecture", default="standard")
    return "topk" if named == "standard" and old == "topk" else named


def _normalisation(config: dict[str, Any]) -> str:
    given = config.get("normalize_activations")
    if isinstance(given, bool):  # before version 3
        return "expected_average_only_in" if given else "none"
    return word(config, "normalize_activations", default="none")


def _is_transcoder(config: dict[str, Any]) -> bool:
    return "transcoder" in _architecture(config)


def _why_not(found: Found) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    config = found.config
    architecture, normalisation = _architecture(config), _normalisation(config)
    if _is_transcoder(config):
        return f"{TRANSCODER}."
    if architecture not in ARCHITECTURES:
        return UNSUPPORTED.get(architecture, f"the architecture {architecture} is not supported.")
    if "W_enc" not in found:
        return "it has no W_enc."
    if normalisation not in ("none", "expected_average_only_in", "covariance_whitening", *SCALINGS):
        return f"normalize_activations={normalisation} is not supported."
    if normalisation == "covariance_whitening" and not (found.file.parent / WHITENING).is_file():
        return f"{WHITENING}, with which its inputs are whitened, is missing next to it."
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
            "scaling_factor is not 1, although cfg.json says that it is not used: one of the two is wrong."
        )
    return decoder * factor[:, None]


def _fold_input_scale(parts: Parts, scaler: Path) -> Parts:
    """Fold the input scale if a checkpoint stores it; otherwise inputs are not scaled, as in SAELens."""
    if scaler.is_file() and (about := json_object(scaler)).get("scaling_factor") is not None:
        return scale_input(parts, number(about, "scaling_factor"))
    return parts.with_note(UNSCALED)


def _fold_whitening(parts: Parts, file: Path) -> Parts:
    held = Found(file, read_entries(file), {})
    return whiten_input(parts, held.vector("mean"), held.matrix("matrix"), held.matrix("inverse_matrix"))


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
    config = {"d_in": sae.config.width, "d_sae": sae.config.units, "architecture": architecture, **fields}
    config |= {"dtype": "float32", "device": "cpu", "apply_b_dec_to_input": True}
    config |= {"normalize_activations": _describe_scaling(sae)} | _kept_fields(origin)
    return {"sae_weights.safetensors": state, "cfg.json": config | {"metadata": _describe_origin(origin)}}


def _describe_scaling(sae: SAE) -> str:
    """Return the scaling of each input by its name in SAELens."""
    if sae.config.scaling is None:
        return "none"
    for name, scaling in SCALINGS.items():
        if scaling == sae.config.scaling:
            return name
    raise ValueError(
        f"SAELens does not support {sae.config.scaling}, so the scaling of inputs would be lost: convert to "
        "osae."
    )


def _kept_fields(origin: Origin) -> dict[str, Any]:
    """Return the fields of the original file that say how to prepare inputs."""
    kept = {"reshape_activations": origin.config.get("reshape_activations") or "none"}
    if UNSCALED in origin.notes:
        kept["normalize_activations"] = "expected_average_only_in"
    return kept


def _describe_origin(origin: Origin) -> dict[str, Any]:
    """Return the metadata of cfg.json: that of the original file, and the origin of the SAE."""
    metadata = {"sae_lens_version": VERSION} | _metadata(origin.config) | {"osae": origin.provenance}
    said: dict[str, Any] = {"model_name": origin.place.model, "context_size": origin.place.context}
    if origin.place.spot != place(origin.config).spot:  # otherwise the name that it has there is kept
        name = origin.place.transformer_lens
        said |= {"hook_name": name, "hf_hook_name": origin.place.hook if name is None else None}
    return metadata | {name: value for name, value in said.items() if value is not None}


def _describe_sparsifier(sae: SAE) -> tuple[str, dict[str, Any]]:
    """Return the architecture by its name in SAELens, and the fields of cfg.json that go with it."""
    match sparsifier := require_familiar(sae, "SAELens"):
        case TopK(k):
            # has no effect on unit-norm atoms, but SAEDashboard requires it
            return "topk", {"k": k, "rescale_acts_by_decoder_norm": has_unit_atoms(sae.decoder)}
        case ReLU():
            return "standard", {}
        case JumpReLU() | BatchTopK():
            check_thresholds(sae)
            return "jumprelu", {}
        case _:
            assert_never(sparsifier)
