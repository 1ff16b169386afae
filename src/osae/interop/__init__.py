"""Read and write SAEs of other libraries, without those libraries and without running code from a file.

Names are imported when first used: the lists of formats do not need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from osae.interop.formats import FORMATS, TARGETS, Target

if TYPE_CHECKING:
    from osae.interop.converting import convert
    from osae.interop.loading import Loaded, SAELike, load

__all__ = ["FORMATS", "TARGETS", "Loaded", "SAELike", "Target", "convert", "load"]

_HOME_OF = {"convert": "converting", "Loaded": "loading", "SAELike": "loading", "load": "loading"}


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'osae.interop' has no attribute {name!r}")
    return getattr(import_module(f"osae.interop.{_HOME_OF[name]}"), name)
