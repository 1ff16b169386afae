"""Gemma Scope: `params.npz` with W_enc d x K, W_dec K x d, b_enc, b_dec and threshold; JumpReLU, no pre-bias.

Gemma Scope 2 stores the same in `params.safetensors`, with `w_enc` and `w_dec`.
"""

from osae.interop.found import Found
from osae.interop.parts import Matrices, Parts
from osae.sparsify import JumpReLU

NAME = "gemma_scope"


def recognises(found: Found) -> bool:
    """Return whether the file is from Gemma Scope."""
    first = found.file.suffix == ".npz" and found.has("W_enc", "W_dec", "b_enc", "b_dec", "threshold")
    return first or found.has("w_enc", "w_dec", "b_enc", "b_dec", "threshold")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or the matrices alone of a transcoder."""
    first = "W_enc" in found
    encoder = found.matrix("W_enc" if first else "w_enc").T
    decoder = found.matrix("W_dec" if first else "w_dec")
    if encoder.shape != decoder.shape or "affine_skip_connection" in found:
        return Matrices(decoder, encoder, "it is a transcoder, which does not reconstruct its input.")
    threshold, bias = found.vector("threshold"), found.vector("b_dec")
    return Parts(encoder, decoder, found.vector("b_enc"), bias, JumpReLU(), threshold, pre_bias=False)
