"""openai/sparse_autoencoder: a `.pt` state_dict that carries its activation by name.

encoder.weight is K x d, decoder.weight d x K and absent if tied. An SAE with top-k normalises each input
to zero mean and unit spread, and undoes it on the output.
"""

from osae.interop.found import Found, inside, word
from osae.interop.parts import Matrices, Parts
from osae.sparsify import Linear, ReLU

NAME = "openai"


def recognises(found: Found) -> bool:
    """Whether the file is one that openai/sparse_autoencoder wrote."""
    return found.has("pre_bias", "latent_bias", "encoder.weight")


def read(found: Found) -> Parts | Matrices:
    """The parameters, or the matrices alone if the input is normalised."""
    encoder = found.matrix("encoder.weight")
    decoder = found.matrix("decoder.weight").T if "decoder.weight" in found else encoder
    activation = word(found.entries, "activation", default="relu")
    if activation == "topk":
        k = inside(found.entries, "activation_state_dict").get("k")
        return Matrices(
            decoder, encoder, f"top-k (k={k}) on an input normalised one by one cannot be folded."
        )
    if activation not in ("relu", "identity"):
        return Matrices(decoder, encoder, f"the activation {activation} has no counterpart here.")
    sparsifier = ReLU() if activation == "relu" else Linear()
    return Parts(encoder, decoder, found.vector("latent_bias"), found.vector("pre_bias"), sparsifier)
