"""openai/sparse_autoencoder: a `.pt` state_dict that names its activation.

encoder.weight is K x d, decoder.weight d x K and absent if tied. An SAE with top-k normalizes each input
to zero mean and unit variance, and undoes this on the output.
"""

from osae.interop.found import Found, inside, word
from osae.interop.parts import Matrices, Parts
from osae.sparsify import Linear, ReLU

NAME = "openai"


def recognises(found: Found) -> bool:
    """Return whether openai/sparse_autoencoder wrote the file."""
    return found.has("pre_bias", "latent_bias", "encoder.weight")


def read(found: Found) -> Parts | Matrices:
    """Return the parameters, or the matrices alone if inputs are normalized."""
    encoder = found.matrix("encoder.weight")
    decoder = found.matrix("decoder.weight").T if "decoder.weight" in found else encoder
    activation = word(found.entries, "activation", default="relu")
    if activation == "topk":
        k = inside(found.entries, "activation_state_dict").get("k")
        return Matrices(
            decoder, encoder, f"top-k (k={k}) normalizes each input separately, which cannot be folded."
        )
    if activation not in ("relu", "identity"):
        return Matrices(decoder, encoder, f"the activation {activation} is not supported.")
    sparsifier = ReLU() if activation == "relu" else Linear()
    return Parts(encoder, decoder, found.vector("latent_bias"), found.vector("pre_bias"), sparsifier)
