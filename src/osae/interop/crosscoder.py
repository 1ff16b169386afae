"""Crosscoders and cross-layer transcoders, which are recognised only to report that they are not SAEs.

Their decoder has a matrix for each layer or model that they write to.
"""

from torch import Tensor

from osae.interop.found import Found
from osae.interop.parts import Matrices

NAME = "crosscoder"
_PREFIXES = ("w_dec", "decoder", "w_d")


def recognises(found: Found) -> bool:
    """Return whether the decoder is an array of matrices."""
    return _stack(found) is not None


def read(found: Found) -> Matrices:
    """Raise `ValueError`: there is no single decoder."""
    name, shape = _stack(found) or ("", ())
    raise ValueError(
        f"{name} has shape {shape}: it is a crosscoder or a cross-layer transcoder, which writes to "
        "several layers or models; give an SAE."
    )


def _stack(found: Found) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and the shape of a decoder with three dimensions, if there is one."""
    for name, tensor in found.entries.items():
        if isinstance(tensor, Tensor) and tensor.ndim == 3 and name.lower().startswith(_PREFIXES):
            return name, tuple(tensor.shape)
    return None
