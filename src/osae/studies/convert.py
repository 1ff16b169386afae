"""Convert an SAE to the format of another library."""

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
    """Write the SAE to the folder `out` in the format of the library `to`, and return the loaded SAE.

    Raise `ValueError` if anything would be lost. Metadata about the model is kept; `model` and `layer`, the
    block whose output the SAE reads, override it.
    """
    loaded = open_subject(subject, orientation)
    interop.convert(loaded, out, to=to, model=model, layer=layer)
    return loaded
