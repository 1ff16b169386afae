"""The formats that are read and written: one list for each direction. Needs no torch.

A format is a module of this package, of the same name, with what `Reader` or `Writer` asks for. To add one,
write the module and enter its name here; the command line and the documentation derive from these lists.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

if TYPE_CHECKING:
    from osae.interop.export import Files, Origin
    from osae.interop.found import Found
    from osae.interop.parts import Matrices, Parts
    from osae.model import SAE

# Files of other libraries that are read, in this order: the most distinctive come first.
FORMATS = (
    "crosscoder",
    "llamascopium",
    "llama_scope",
    "saelens",
    "bartbussmann",
    "openai",
    "sparsify",
    "dictionary_learning",
    "gemma_scope",
)
# Files that are written; "osae" are our own.
Target = Literal["saelens", "dictionary_learning", "sparsify", "osae"]
TARGETS: tuple[Target, ...] = get_args(Target)


class Reader(Protocol):
    """A library's files: how to recognise them, and how to read an SAE from them."""

    NAME: str

    def recognises(self, found: "Found") -> bool:
        """Return whether this library wrote the file."""
        ...

    def read(self, found: "Found") -> "SAE | Parts | Matrices":
        """Return the SAE, its parameters, or the matrices alone if ours cannot compute what it does."""
        ...


class Writer(Protocol):
    """A library's files: how to write an SAE so that the library loads it."""

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
