"""Sources: blocks of activations by number, so that any place in the stream can be returned to."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from osae.data.worlds import PCAWorld, SparseWorld


@runtime_checkable
class Source(Protocol):
    """Yields the same rows for the same block number, today and after a resume."""

    @property
    def rows(self) -> int:
        """Rows in every block."""
        ...

    def block(self, index: int) -> Float[Tensor, "N d"]: ...


class Rows:
    """Rows in memory: one block that comes round again every epoch."""

    def __init__(self, rows: Float[Tensor, "N d"]):
        self._rows = rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def block(self, index: int) -> Float[Tensor, "N d"]:
        return self._rows


SourceSpec = SparseWorld | PCAWorld


def opened(spec: SourceSpec) -> Source:
    """The source that a specification names."""
    return Rows(spec.draw("train").x)
