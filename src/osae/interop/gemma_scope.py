"""Gemma Scope: `params.npz` with W_enc d x K, W_dec K x d, b_enc, b_dec and threshold; JumpReLU, no pre-bias.

Gemma Scope 2 stores the same in `params.safetensors`, with `w_enc` and `w_dec`, beside a `config.json`.
Transcoders have the same tensors and shapes as SAEs: only the configuration or the name of the folder
distinguishes them.
"""

from typing import Any

from osae.interop.found import Found, agree, flag, word
from osae.interop.parts import TRANSCODER, Matrices, Parts
from osae.interop.place import Place, read_place
from osae.sparsify import JumpReLU

NAME = "gemma_scope"


def recognises(found: Found) -> bool:
    """Return whether the file is from Gemma Scope."""
    first = found.file.suffix == ".npz" and found.has("W_enc", "W_dec", "b_enc", "b_dec", "threshold")
    return first or found.has("w_enc", "w_dec", "b_enc", "b_dec", "threshold")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices of a transcoder."""
    first = "W_enc" in found
    encoder = found.matrix("W_enc" if first else "w_enc").T
    decoder = found.matrix("W_dec" if first else "w_dec")
    agree(found.config, {"width": len(decoder)})
    if why := _why_not(found) or (TRANSCODER + "." if encoder.shape != decoder.shape else ""):
        return Matrices(decoder, encoder, why)
    threshold, bias = found.vector("threshold"), found.vector("b_dec")
    parts = Parts(encoder, decoder, found.vector("b_enc"), bias, JumpReLU(), threshold, pre_bias=False)
    if found.config:
        return parts
    return parts.with_note(
        "there is no config.json next to it: it is assumed to be an SAE, not a transcoder."
    )


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from."""
    return read_place(config.get("model_name"), config.get("hf_hook_point_in"))


def _why_not(found: Found) -> str:
    """Return why osae cannot run this SAE; empty if it can."""
    config = found.config
    if not config:
        named = [part for part in found.file.parts[-8:-1] if "transcoder" in part.lower()]
        return f"{TRANSCODER}, judging by its folder {named[-1]}." if named else ""
    if "affine_skip_connection" in found or flag(config, "affine_connection", default=False):
        return f"{TRANSCODER}, with a skip connection."
    if (kind := word(config, "type", default="sae")) != "sae":
        return f"{TRANSCODER}." if kind == "transcoder" else f"it is a {kind}, not an SAE."
    if (architecture := word(config, "architecture", default="jump_relu")) != "jump_relu":
        return f"the architecture {architecture} is not supported."
    into, out = config.get("hf_hook_point_in"), config.get("hf_hook_point_out")
    if out is not None and into != out:
        return f"{TRANSCODER}: it reads {str(into)[:80]} and writes {str(out)[:80]}."
    return ""
