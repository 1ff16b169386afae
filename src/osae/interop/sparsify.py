"""sparsify: `cfg.json` and `sae.safetensors`; encoder.weight and W_dec are both K x d.

The ReLU comes before the top k, b_dec is always subtracted, and `num_latents: 0` means width times
`expansion_factor`.
"""

from osae.interop.export import Files, Origin, check_unscaled, collect_tensors
from osae.interop.found import Found, agree, count, flag, number, word
from osae.interop.parts import TRANSCODER, Matrices, Parts
from osae.model import SAE
from osae.sparsify import TopK

NAME = "sparsify"


def recognises(found: Found) -> bool:
    """Return whether sparsify wrote the file."""
    return found.has("encoder.weight", "W_dec")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices of a transcoder or of an activation other than top-k."""
    config = found.config
    encoder, decoder = found.matrix("encoder.weight"), found.matrix("W_dec")
    if why := _why_not(found):
        return Matrices(decoder, encoder, why)
    agree(config, {"d_in": decoder.shape[1]})
    if config.get("num_latents") is not None and number(config, "num_latents") != 0:
        agree(config, {"num_latents": len(decoder)})
    parts = Parts(
        encoder, decoder, found.vector("encoder.bias"), found.vector("b_dec"), TopK(k := count(config, "k"))
    )
    if not flag(config, "multi_topk", default=False):
        return parts
    return parts.with_note(
        f"it has multi_topk: sparsify's forward uses {4 * k} units, while its encode and osae use {k}."
    )


def _why_not(found: Found) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    config = found.config
    if not config:
        return "there is no cfg.json next to it, which would state its activation function."
    if flag(config, "transcode", default=False):
        return f"{TRANSCODER}."
    if "W_skip" in found or flag(config, "skip_connection", default=False):
        return "a skip connection is not supported."
    if flag(config, "signed", default=False):
        return "a signed top-k is not supported."
    if (activation := word(config, "activation", default="topk")) != "topk":
        return f"the activation {activation} is not supported."
    return ""


def export(sae: SAE, origin: Origin) -> Files:
    """Return the two files, which `sparsify.SparseCoder.load_from_disk` loads."""
    sparsifier = sae.config.sparsifier
    if not isinstance(sparsifier, TopK):
        kind = type(sparsifier).__name__
        raise ValueError(
            f"sparsify supports only top-k, so the selection of a {kind} would be lost: convert to osae."
        )
    check_unscaled(sae, NAME)
    tensors = collect_tensors(sae)
    state = {
        "encoder.weight": tensors["encoder"],
        "encoder.bias": tensors["encoder_bias"],
        "W_dec": tensors["decoder"],
        "b_dec": tensors["decoder_bias"],
    }
    config = {
        "activation": "topk",
        "expansion_factor": max(1, sae.config.units // sae.config.width),
        "normalize_decoder": True,
        "num_latents": sae.config.units,
        "k": sparsifier.k,
        "multi_topk": origin.config.get("multi_topk", False),
        "skip_connection": False,
        "transcode": False,
        "d_in": sae.config.width,
        "osae": origin.provenance,
    }
    return {"sae.safetensors": state, "cfg.json": config}
