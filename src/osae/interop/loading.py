"""SAEs loaded from any format or given in memory, as one type."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from osae.arrays import IN_MEMORY, Array, as_matrix, as_tensor, digest_tensors
from osae.interop import bare, hub, own, stored
from osae.interop.ancestry import find_place
from osae.interop.bare import Orientation
from osae.interop.formats import FORMATS, get_reader
from osae.interop.found import Found, find
from osae.interop.parts import Kind, Matrices, Parts, fold
from osae.interop.place import Place
from osae.messages import one_line
from osae.model import BEFORE, SAE, choose_saved
from osae.sparsify import Code
from osae.stores import is_remote


@dataclass(frozen=True, eq=False, repr=False)
class Loaded:
    """An SAE from any library, which encodes, decodes, and reconstructs its input when called.

    `sae` is None if osae cannot run the original; `notes` then say why, and only the matrices can be used.
    `metadata` is the JSON next to the weights, unchanged. The atoms of a transcoder are directions of its
    output, not of its input.
    """

    path: str
    format: str
    sha256: str
    sae: SAE | None
    decoder: Float[Tensor, "K d"]
    encoder: Float[Tensor, "K input"] | None
    notes: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "SAE"

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
        """Return where its activations come from, if its file says so."""
        return find_place(self.format, self.metadata)

    def require_sae(self) -> SAE:
        """Return the SAE; raise `ValueError` if only its matrices could be read."""
        if self.sae is None:
            raise ValueError(f"{self.path}: only its matrices could be read: {self.notes[0]}")
        return self.sae

    @torch.no_grad()
    def encode(self, x: Float[Array, "*batch d"]) -> Code:
        """Return the code of each row, as at inference and without gradients; use `sae` for gradients."""
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

        An SAE that scales each input separately also needs the inputs, x.
        """
        sae = self.require_sae()
        values, units = (as_tensor(part, name) for part, name in zip(code, Code._fields, strict=True))
        if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < self.units:
            raise ValueError(
                f"the code has units from {int(units.min())} to {int(units.max())}: give units below "
                f"{self.units}."
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
    """Load an SAE from any library.

    `source` is a path (a folder, a weight file, a run with a single SAE), the URL of one on an object store,
    or an address on the hub, `hf:user/repo/subfolder@revision`; or an object in memory: an `SAE`, a decoder
    as a tensor or an array, or the result of an earlier `load`. `orientation` says whether the atoms of a
    bare decoder are its "rows" or its "columns"; by default, they are rows in memory, and inferred for a
    file.
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
        local = _bring(source)
        if own.is_run(local):
            local = own.only_sae_of_run(local)
        return _read(find(local), str(source), orientation)
    except ValueError as error:
        raise ValueError(one_line(f"{source}: {error}")) from error


def _bring(source: Path | str) -> Path:
    """Return where an SAE is on this machine, once it is there."""
    if isinstance(source, str) and source.startswith(hub.PREFIX):
        return hub.fetch(source)
    return stored.fetch(source) if isinstance(source, str) and is_remote(source) else Path(source)


def _check_matrix(source: object) -> None:
    """Raise `ValueError` if this cannot be a decoder, which is an array or nested lists of numbers."""
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
    """Return an SAE in memory as if loaded; the digest is computed from its parameters."""
    decoder, encoder = sae.decoder.detach().cpu(), sae.encoder.detach().cpu()
    said = {"provenance": sae.provenance} if sae.provenance else {}
    digest = digest_tensors(sae.state_dict())
    return Loaded(IN_MEMORY, own.NAME, digest, sae, decoder, encoder, metadata=said)


def _as_decoder(matrix: Tensor, orientation: Orientation | None) -> Loaded:
    """Return a matrix in memory as a bare decoder; the digest is computed from its numbers."""
    read = bare.read(Found(Path(IN_MEMORY), {bare.NAMES[0]: matrix}, {}), orientation or "rows")
    return _from_matrices(read, IN_MEMORY, bare.NAME, digest_tensors({"decoder": matrix}), {})


def _read(found: Found, path: str, orientation: Orientation | None) -> Loaded:
    """Return the SAE in a file, read by the first format that recognises it."""
    if own.recognises(found) and BEFORE in found.config:  # saving it was interrupted
        found = replace(found, config=choose_saved(found.config, found.sha256))
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
    return Loaded(path, name, sha256, None, read.decoder.contiguous(), encoder, notes, config, read.kind)
