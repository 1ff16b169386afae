"""openai/sparse_autoencoder: a `.pt` state_dict that names its activation.

encoder.weight is K x d, decoder.weight d x K and absent if tied. An SAE with top-k normalizes each input
to zero mean and unit variance, and undoes this on the output.
"""

from osae.interop.found import Found, count, inside, word
from osae.interop.parts import Matrices, Parts
from osae.scaling import LayerNorm
from osae.sparsify import Linear, ReLU, TopK

NAME = "openai"


def recognises(found: Found) -> bool:
    """Return whether openai/sparse_autoencoder wrote the file."""
    return found.has("pre_bias", "latent_bias", "encoder.weight")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or only the matrices if the activation is not supported."""
    encoder = found.matrix("encoder.weight")
    decoder = found.matrix("decoder.weight").T if "decoder.weight" in found else encoder
    activation = word(found.entries, "activation", default="relu")
    settings = inside(found.entries, "activation_state_dict")
    after = word(settings, "postact_fn", default="relu")
    if activation not in ("relu", "identity", "topk"):
        return Matrices(decoder, encoder, f"the activation {activation} is not supported.")
    if activation == "topk" and after != "relu":
        return Matrices(decoder, encoder, f"top-k followed by {after} instead of ReLU is not supported.")
    sparsifier = {"relu": ReLU(), "identity": Linear()}.get(activation) or TopK(count(settings, "k"))
    return Parts(
        encoder,
        decoder,
        found.vector("latent_bias"),
        found.vector("pre_bias"),
        sparsifier,
        scaling=LayerNorm() if activation == "topk" else None,
    )
