"""An SAE in the files of another library."""

from pathlib import Path

from osae import interop
from osae.interop import SAELike, Target
from osae.interop.bare import Orientation
from osae.studies.subjects import open_subject


def convert(
    subject: SAELike,
    out: Path | str,
    *,
    to: Target,
    model: str | None = None,
    layer: int | None = None,
    orientation: Orientation | None = None,
) -> interop.Loaded:
    """Write the SAE to the folder `out`, in the files of the library `to`, and return what was read.

    Raise `ValueError` if anything would be lost. What the file says about the model is kept; `model` and
    `layer`, the block whose output the activations are, override it.
    """
    loaded = open_subject(subject, orientation)
    interop.convert(loaded, out, to=to, model=model, layer=layer)
    return loaded
