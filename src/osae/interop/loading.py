"""SAEs loaded from any format, or taken as they are in memory: one type for all of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from osae.arrays import IN_MEMORY, Array, as_matrix, as_tensor, digest_tensors
from osae.interop import bare, hub, own
from osae.interop.ancestry import find_place
from osae.interop.bare import Orientation
from osae.interop.formats import FORMATS, get_reader
from osae.interop.found import Found, find
from osae.interop.parts import Matrices, Parts, fold
from osae.interop.place import Place
from osae.model import SAE
from osae.sparsify import Code


@dataclass(frozen=True, eq=False, repr=False)
class Loaded:
    """An SAE, whoever trained it: encodes, decodes, and reconstructs its input when called.

    `sae` is None where ours cannot compute what the original does; `notes` then say why, and only the
    matrices can be used. `metadata` is the JSON beside the weights, unchanged.
    """

    path: str
    format: str
    sha256: str
    sae: SAE | None
    decoder: Float[Tensor, "K d"]
    encoder: Float[Tensor, "K input"] | None
    notes: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Return the number of units K."""
        return self.decoder.shape[0]

    @property
    def width(self) -> int:
        """Return the width d of the activations."""
        return self.decoder.shape[1]

    @property
    def place(self) -> Place:
        """Return where its activations come from, as far as its file says."""
        return find_place(self.format, self.metadata)

    def require_sae(self) -> SAE:
        """Return the SAE; raise `ValueError` if only its matrices could be read."""
        if self.sae is None:
            raise ValueError(f"{self.path} cannot encode activations: {self.notes[0]}")
        return self.sae

    @torch.no_grad()
    def encode(self, x: Float[Array, "*batch d"]) -> Code:
        """Return the code of each row, as at inference; without gradients, for which there is `sae`."""
        sae = self.require_sae()
        rows = as_tensor(x, "x")
        if rows.ndim < 1 or rows.shape[-1] != self.width:
            raise ValueError(f"x has shape {tuple(rows.shape)}: give rows of width {self.width}.")
        return sae.encode(rows.to(sae.decoder))

    def encode_dense(self, x: Float[Array, "*batch d"]) -> Float[Tensor, "*batch K"]:
        """Return the code of each row as a vector with one entry per unit."""
        return self.encode(x).dense(self.units)

    @torch.no_grad()
    def decode(
        self, code: Code | tuple[Array, Array], x: Float[Array, "*batch d"] | None = None
    ) -> Float[Tensor, "*batch d"]:
        """Return the reconstruction from a code, given as values and units.

        An SAE that scales each input on its own also needs the inputs, x.
        """
        sae = self.require_sae()
        values, units = (as_tensor(part, name) for part, name in zip(code, Code._fields, strict=True))
        if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < self.units:
            raise ValueError(
                f"the code has units from {int(units.min())} to {int(units.max())}: there are {self.units}."
            )
        rows = None if x is None else as_tensor(x, "x").to(sae.decoder)
        return sae.decode(Code(values.to(sae.decoder), units.to(sae.decoder.device, torch.int64)), rows)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the reconstruction of each row."""
        return self.decode(self.encode(x), x)

    def __repr__(self) -> str:
        runs = "matrices only" if self.sae is None else str(self.sae.config.sparsifier)
        head = f"Loaded({self.path!r}: {self.format}, {self.units} units of width {self.width}, {runs})"
        return "\n".join([head, *(f"  note: {note}" for note in self.notes)])


SAELike: TypeAlias = Loaded | SAE | Path | str | Array


def load(source: SAELike, *, orientation: Orientation | None = None) -> Loaded:
    """Load an SAE, whoever wrote it.

    `source` is a path (a folder, a weight file, a run with a single SAE) or an address on the hub,
    `hf:user/repo/subfolder@revision`; or it is in memory: an `SAE`, a decoder as a tensor or an array, or
    what was loaded before. `orientation` says whether the atoms of a bare decoder are its "rows" or its
    "columns"; without it a matrix in memory has them as rows, and a file is examined.
    """
    if orientation not in (None, "rows", "columns"):
        raise ValueError(f"orientation={orientation!r}: give 'rows' or 'columns'.")
    if isinstance(source, Loaded):
        return source
    if isinstance(source, SAE):
        return _describe(source)
    if not isinstance(source, Path | str):
        _check_matrix(source)
        return _as_decoder(as_matrix(source, "a decoder"), orientation)
    try:
        remote = isinstance(source, str) and source.startswith(hub.PREFIX)
        local = hub.fetch(str(source)) if remote else Path(source)
        if own.is_run(local):
            local = own.only_sae_of_run(local)
        return _read(find(local), str(source), orientation)
    except ValueError as error:
        raise ValueError(" ".join(f"{source}: {error}".split())) from error


def _check_matrix(source: object) -> None:
    """Raise `ValueError` if this cannot be a decoder: an array, or lists of numbers."""
    kind = type(source).__name__
    if isinstance(source, list | tuple) and any(isinstance(one, str | Path | SAE | Loaded) for one in source):
        raise ValueError(
            f"expected one SAE, got {kind}: load them one by one, or give the {kind} to osae.compare."
        )
    if not isinstance(source, Array | list | tuple):
        raise ValueError(
            f"expected an SAE, got {kind}: give a path, an SAE, a loaded file, or a decoder as a matrix."
        )


def _describe(sae: SAE) -> Loaded:
    """Return an SAE in memory as if it had been loaded; its digest is that of its parameters."""
    decoder, encoder = sae.decoder.detach().cpu(), sae.encoder.detach().cpu()
    return Loaded(IN_MEMORY, own.NAME, digest_tensors(sae.state_dict()), sae, decoder, encoder)


def _as_decoder(matrix: Tensor, orientation: Orientation | None) -> Loaded:
    """Return a matrix in memory as a bare decoder; its digest is that of the numbers that were given."""
    read = bare.read(Found(Path(IN_MEMORY), {bare.NAMES[0]: matrix}, {}), orientation or "rows")
    return _from_matrices(read, IN_MEMORY, bare.NAME, digest_tensors({"decoder": matrix}), {})


def _read(found: Found, path: str, orientation: Orientation | None) -> Loaded:
    """Return what a file holds, in the first format that recognises it."""
    for reader in (own, *map(get_reader, FORMATS)):
        if reader.recognises(found):
            name, read = reader.NAME, reader.read(found)
            break
    else:
        name, read = bare.NAME, bare.read(found, orientation)
    if isinstance(read, Matrices):
        return _from_matrices(read, path, name, found.sha256, found.config)
    sae, notes = fold(read) if isinstance(read, Parts) else (read, [])
    decoder, encoder = sae.decoder.detach(), sae.encoder.detach()
    return Loaded(path, name, found.sha256, sae, decoder, encoder, notes, found.config)


def _from_matrices(read: Matrices, path: str, name: str, sha256: str, config: dict[str, Any]) -> Loaded:
    encoder = None if read.encoder is None else read.encoder.contiguous()
    notes = [read.why, *read.notes]
    return Loaded(path, name, sha256, None, read.decoder.contiguous(), encoder, notes, config)
