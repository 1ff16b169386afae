"""What studies take: SAEs and activations, from files or from memory.

Shapes: K units, N rows, d width.

An SAE may be given as a path, an `SAE`, a `Loaded` file, or a bare decoder (K, d) as a torch tensor or a
numpy array. Activations may be given as a path, `Shards`, or a matrix (N, d).
"""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.shards import Shards, is_shards
from osae.interop import Loaded, load
from osae.interop.ancestry import own_words
from osae.interop.bare import Orientation
from osae.model import SAE
from osae.results.base import Activations, Provenance
from osae.results.subject import SubjectInfo
from osae.versions import versions

BATCH = 1024  # activations encoded at once: the pre-activations of 65,536 units then take 256 MB
IN_MEMORY = "in memory"

Matrix = Tensor | np.ndarray
Subject = Path | str | SAE | Loaded | Tensor | np.ndarray


class RowsInMemory:
    """Activations that were handed over as a matrix; read like `Shards`."""

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
        """Return which activations these are."""
        about = {"path": IN_MEMORY, "rows": self.rows, "width": self.width, "dtype": self.dtype}
        return about | {"sha256": digest_tensors({"activations": self._rows})}


Data = Shards | RowsInMemory
DataLike = Path | str | Shards | RowsInMemory | Tensor | np.ndarray


def open_subject(thing: Subject, orientation: Orientation | None = None) -> Loaded:
    """Return the SAE that a path, an object or a matrix stands for.

    `orientation` says whether the atoms of a bare decoder are its rows or its columns. In memory they are
    rows unless it says otherwise; in a file they are found by their norms or by the longer side.
    """
    if orientation not in (None, "rows", "columns"):
        raise ValueError(f"orientation={orientation!r}: give 'rows' or 'columns'.")
    if isinstance(thing, Loaded):
        return thing
    if isinstance(thing, SAE):
        return _wrap_sae(thing)
    if isinstance(thing, Matrix):
        matrix = _read_matrix(thing, "a decoder").float()
        return _wrap_decoder(matrix.T.contiguous() if orientation == "columns" else matrix)
    if not isinstance(thing, str | Path):
        raise ValueError(
            f"{type(thing).__name__} is no SAE: give a path, an SAE, a loaded file, or a decoder as a matrix."
        )
    if is_shards(thing):
        raise ValueError(f"{thing} holds activations: name an SAE here.")
    return load(thing, orientation=orientation)


def open_subjects(
    things: Subject | Sequence[Subject], orientation: Orientation | None = None
) -> list[Loaded]:
    """Return the SAEs of one thing or of several; a run folder stands for all SAEs that it finished."""
    several = [things] if isinstance(things, Subject) else things
    if not isinstance(several, Iterable):
        raise ValueError(f"{type(things).__name__} is no SAE and no list of SAEs: give one or several.")
    return [open_subject(member, orientation) for thing in several for member in _expand_run(thing)]


def _expand_run(thing: Subject) -> Sequence[Subject]:
    if not isinstance(thing, str | Path):
        return [thing]
    folder = Path(thing)
    if not (folder / "run.json").is_file() or (folder / "sae.json").is_file():
        return [thing]
    names = sorted(file.parent.name for file in folder.glob("*/sae.json"))
    if not names:
        raise ValueError(f"{thing}: this run has no finished SAE yet: `osae resume {thing}` completes it.")
    return [folder / name for name in names]


def open_rows(thing: DataLike) -> Data:
    """Return the activations that a path or a matrix stands for."""
    if isinstance(thing, Shards | RowsInMemory):
        return thing
    if isinstance(thing, Matrix):
        return RowsInMemory(_read_matrix(thing, "activations"))
    if not isinstance(thing, str | Path):
        raise ValueError(
            f"{type(thing).__name__} holds no activations: give a path, Shards, or a matrix (rows, width)."
        )
    return Shards(thing)


def check_runnable(one: Loaded, rows: Data) -> SAE:
    """Return the SAE itself; raise `ValueError` if it cannot be run on these activations."""
    if one.sae is None:
        raise ValueError(f"{one.path} cannot be run on activations: {one.notes[0]}")
    if one.sae.config.width != rows.width:
        raise ValueError(
            f"{one.path} has width {one.sae.config.width}, and {rows.path} has {rows.width}: give the "
            "activations that it was trained on."
        )
    return one.sae


def count_batches(rows: Data) -> int:
    """Return the number of batches that a pass over the rows takes."""
    return -(-rows.rows // BATCH)


# --- what results say about them --------------------------------------------------------------------


def subject_fields(one: Loaded) -> dict[str, Any]:
    """Return the fields of `SubjectInfo`, also for types that add to them."""
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
    }


def describe_subject(one: Loaded) -> SubjectInfo:
    """Return which SAE this is."""
    return SubjectInfo(**subject_fields(one))


def describe_rows(rows: Data) -> Activations:
    """Return which activations these are."""
    return Activations(**rows.provenance())


def own_provenance(one: Loaded) -> Mapping[str, Any]:
    """Return what the SAE's own file says about where it comes from; empty if it says nothing."""
    return own_words(one.format, one.metadata)


def describe_run() -> Provenance:
    """Return where the numbers of a study come from."""
    return Provenance(versions=versions())


# --- things in memory -------------------------------------------------------------------------------


def _wrap_sae(sae: SAE) -> Loaded:
    if sae.decoder.device.type != "cpu":
        sae = copy.deepcopy(sae).cpu()
    digest = digest_tensors(sae.state_dict())
    return Loaded(IN_MEMORY, "osae", digest, sae, sae.decoder.detach(), sae.encoder.detach())


def _wrap_decoder(decoder: Float[Tensor, "K d"]) -> Loaded:
    notes = ["only its decoder was given: nothing tells how it encodes."]
    return Loaded(IN_MEMORY, "decoder", digest_tensors({"decoder": decoder}), None, decoder, None, notes)


def _read_matrix(matrix: Matrix, what: str) -> Float[Tensor, "n d"]:
    """Return a torch tensor or a numpy array as a matrix on the CPU; raise `ValueError` if it is none."""
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{what} of shape {tuple(matrix.shape)}: give a matrix that is not empty.")
    tensor = _as_tensor(matrix) if isinstance(matrix, np.ndarray) else matrix.detach().cpu()
    if tensor is None or not tensor.is_floating_point():
        raise ValueError(f"{what} of type {matrix.dtype}: give floating-point numbers.")
    finite = tensor.isfinite().all(1)
    if not bool(finite.all()):
        first = int((~finite).int().argmax())
        raise ValueError(f"{what}: row {first} holds NaN or infinity: drop such rows first.")
    return tensor


def _as_tensor(array: np.ndarray) -> Tensor | None:
    """Return a copy of the array, which may be read-only or of a foreign byte order; None unless floats."""
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        return None
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of names, shapes, types and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        # as bytes, since numpy knows no bfloat16
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
