"""Bare decoders: the only matrix in a file, or one with a common name."""

from torch import Tensor

from osae.interop.formats import Orientation
from osae.interop.found import SHOWN, Found
from osae.interop.parts import UNIT, Matrices

NAME = "decoder"
NAMES = (
    "decoder",
    "W_dec",
    "w_dec",
    "decoder.weight",
    "dictionary",
    "dictionary._weights",
    "atoms",
    "W_D",
)


def read(found: Found, orientation: Orientation | None) -> Matrices:
    """Return the decoder with atoms as rows, and how its orientation was determined."""
    tensors = {name: held for name, held in found.entries.items() if isinstance(held, Tensor)}
    named = [name for name in NAMES if name in tensors]
    square = [name for name, tensor in tensors.items() if tensor.ndim == 2 and tensor.is_floating_point()]
    if not named and len(square) != 1:
        there = ", ".join(sorted(map(str, found.entries))[:SHOWN]) or "nothing"
        raise ValueError(
            f"it is not in a known SAE format, and it has {len(square)} matrices instead of a single "
            f"decoder: it contains {there}."
        )
    matrix = found.matrix((named or square)[0])
    by_rows, note = _by_rows(matrix, orientation)
    why = "it has a decoder only, no encoder."
    return Matrices(matrix if by_rows else matrix.T, None, why, (note,))


def _by_rows(matrix: Tensor, orientation: Orientation | None) -> tuple[bool, str]:
    """Return whether atoms are rows, and why: as given, by unit norm, or because there are more rows."""
    if orientation is not None:
        return orientation == "rows", f"its atoms are its {orientation}."
    rows, columns = (bool(((matrix.norm(dim=dim) - 1).abs() <= 100 * UNIT).all()) for dim in (1, 0))
    if rows != columns:
        return rows, f"its atoms are its {'rows' if rows else 'columns'}, which have unit norm."
    high, wide = matrix.shape
    guess, other = ("rows", "columns") if high >= wide else ("columns", "rows")
    size = f"{high} x {wide}"
    return (
        high >= wide,
        f"its atoms are assumed to be its {guess} ({size}): pass --orientation {other} if they are {other}.",
    )
