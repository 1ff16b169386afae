"""The formats that can be read and written: one list for each direction. Does not need torch.

A format is a module of this package with the same name, which implements `Reader` or `Writer`. To add one,
write the module and add its name here; the command line and the documentation use these lists.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

if TYPE_CHECKING:
    from osae.interop.export import Files, Origin
    from osae.interop.found import Found
    from osae.interop.parts import Matrices, Parts
    from osae.model import SAE

# Formats that can be read, in the order in which they are tried: the most distinctive first.
FORMATS = (
    "crosscoder",
    "overcomplete",
    "llamascopium",
    "llama_scope",
    "saelens",
    "bartbussmann",
    "openai",
    "sparsify",
    "dictionary_learning",
    "gemma_scope",
)
Orientation = Literal["rows", "columns"]  # where the atoms of a bare decoder are
# Formats that can be written; "osae" is our own.
Target = Literal["saelens", "dictionary_learning", "sparsify", "osae"]
TARGETS: tuple[Target, ...] = get_args(Target)
DESCRIBED = ("saelens", "dictionary_learning")  # whose files have fields for the model and the layer


class Reader(Protocol):
    """A format that can be read: how to recognise its files, and how to read an SAE from them."""

    NAME: str

    def recognises(self, found: "Found") -> bool:
        """Return whether this library wrote the file."""
        ...

    def read(self, found: "Found") -> "SAE | Parts | Matrices":
        """Return the SAE, its parameters, or only the matrices if osae cannot run it."""
        ...


class Writer(Protocol):
    """A format that can be written, so that its library can load the SAE."""

    NAME: str

    def export(self, sae: "SAE", origin: "Origin") -> "Files":
        """Return the files; raise `ValueError` if anything would be lost."""
        ...


def get_reader(name: str) -> Reader:
    """Return the module that reads a format."""
    return cast(Reader, import_module(f"osae.interop.{name}"))


def get_writer(name: str) -> Writer:
    """Return the module that writes a format."""
    return cast(Writer, import_module(f"osae.interop.{name}"))
