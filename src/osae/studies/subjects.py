"""The inputs of studies: SAEs and activations, from files or from memory.

Shapes: K units, N rows, d width.

An SAE may be given as a path, an `SAE`, a `Loaded` file, or a bare decoder (K, d) as a torch tensor or a
numpy array. Activations may be given as a path, `Shards`, or a matrix (N, d).
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from osae.arrays import IN_MEMORY, Array, as_matrix, digest_tensors
from osae.data.shards import Shards, is_shards
from osae.interop import Loaded, SAELike, bare, hub, load, own, stored
from osae.interop.ancestry import own_words
from osae.interop.bare import Orientation
from osae.model import SAE
from osae.results.base import Activations, Provenance
from osae.results.subject import SubjectInfo
from osae.stores import is_remote
from osae.versions import versions

BATCH = 1024  # rows to encode at once: the pre-activations of 65,536 units then take 256 MB


class RowsInMemory:
    """Activations passed as a matrix, with the interface of `Shards`."""

    def __init__(self, rows: Float[Tensor, "N d"]):
        self.path, self.manifest, self._rows = Path(IN_MEMORY), {}, rows
        self.dtype = str(rows.dtype).removeprefix("torch.")

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self._rows.shape[0]

    @property
    def width(self) -> int:
        """Return the width of the rows."""
        return self._rows.shape[1]

    def batches(self, size: int = BATCH) -> Iterator[Float[Tensor, "n d"]]:
        """Yield all rows in order and in single precision, `size` at a time."""
        for rows in self._rows.split(size):
            yield rows.detach().cpu().float()

    def provenance(self) -> dict[str, Any]:
        """Return a description of the activations."""
        about = {"path": IN_MEMORY, "rows": self.rows, "width": self.width, "dtype": self.dtype}
        return about | {"sha256": digest_tensors({"activations": self._rows})}


Data = Shards | RowsInMemory
DataLike = Path | str | Shards | RowsInMemory | Array


def open_subject(thing: SAELike, orientation: Orientation | None = None) -> Loaded:
    """Return the SAE at a path, or given as an object or matrix, on the CPU, as `osae.load` does.

    `orientation` says whether the atoms of a bare decoder are its rows or its columns. In memory, they are
    rows by default; in a file, they are inferred from the norms or from the shape.
    """
    found = _open_subject(thing, orientation)
    _check_orientation([found], orientation)
    return found


def _check_orientation(found: Sequence[Loaded], orientation: Orientation | None) -> None:
    """Raise `ValueError` if an orientation is given without a bare decoder to apply it to."""
    if orientation is not None and all(one.format != bare.NAME for one in found):
        raise ValueError(f"orientation={orientation!r} applies to bare decoders only: leave it out.")


def _open_subject(thing: SAELike, orientation: Orientation | None) -> Loaded:
    if isinstance(thing, str | Path) and is_shards(thing):
        raise ValueError(f"{thing} contains activations: give an SAE here.")
    found = load(thing, orientation=orientation)
    if found.sae is None or found.sae.decoder.device.type == "cpu":
        return found
    return replace(found, sae=copy.deepcopy(found.sae).cpu())


def open_subjects(
    things: SAELike | Sequence[SAELike], orientation: Orientation | None = None
) -> list[Loaded]:
    """Return the SAEs of one or several inputs; a run folder means all of its finished SAEs."""
    several = [things] if isinstance(things, SAELike) else things
    if not isinstance(several, Iterable):
        raise ValueError(f"expected one SAE or several, got {type(things).__name__}.")
    found = [_open_subject(member, orientation) for thing in several for member in _expand_run(thing)]
    _check_orientation(found, orientation)
    return found


def _expand_run(thing: SAELike) -> Sequence[SAELike]:
    on_hub = isinstance(thing, str) and thing.startswith(hub.PREFIX)
    if not isinstance(thing, str | Path) or on_hub:
        return [thing]
    try:
        if isinstance(thing, str) and is_remote(thing):
            return stored.list_saes_of_run(thing)
        return own.saes_of_run(Path(thing)) if own.is_run(Path(thing)) else [thing]
    except ValueError as error:
        raise ValueError(f"{thing}: {error}") from error


def open_rows(thing: DataLike) -> Data:
    """Return the activations at a path, or given as a matrix."""
    if isinstance(thing, Shards | RowsInMemory):
        return thing
    if isinstance(thing, Array):
        return RowsInMemory(as_matrix(thing, "activations"))
    if not isinstance(thing, str | Path):
        raise ValueError(
            f"expected activations, got {type(thing).__name__}: give a path, Shards, or a matrix "
            "(rows, width)."
        )
    return Shards(thing)


def check_runnable(one: Loaded, rows: Data) -> SAE:
    """Return the SAE itself; raise `ValueError` if it cannot be run on these activations."""
    sae = one.require_sae()
    if sae.config.width != rows.width:
        raise ValueError(
            f"{one.path} has width {sae.config.width}, but {rows.path} has width {rows.width}: give the "
            "activations that it was trained on."
        )
    return sae


def count_batches(rows: Data) -> int:
    """Return the number of batches that a pass over the rows takes."""
    return -(-rows.rows // BATCH)


# --- descriptions for results -----------------------------------------------------------------------


def subject_fields(one: Loaded) -> dict[str, Any]:
    """Return the fields of `SubjectInfo`, including for types that extend it."""
    return {
        "path": one.path,
        "format": one.format,
        "sha256": one.sha256,
        "units": one.units,
        "width": one.width,
        "sparsifier": None if one.sae is None else str(one.sae.config.sparsifier),
        "notes": tuple(one.notes),
        "model": one.place.model,
        "place": one.place.spot,
        "what": None if one.kind == "SAE" else one.kind,
    }


def describe_subject(one: Loaded) -> SubjectInfo:
    """Return a description of the SAE."""
    return SubjectInfo(**subject_fields(one))


def describe_rows(rows: Data) -> Activations:
    """Return a description of the activations."""
    return Activations(**rows.provenance())


def own_provenance(one: Loaded) -> Mapping[str, Any]:
    """Return the provenance recorded in the SAE's own file; empty if there is none."""
    return own_words(one.format, one.metadata)


def describe_run() -> Provenance:
    """Return the provenance of a study's numbers."""
    return Provenance(versions=versions())
