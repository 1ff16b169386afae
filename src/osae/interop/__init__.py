"""SAEs of other libraries, read and written without those libraries, and without running code from a file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from osae import __version__
from osae.config import to_json
from osae.interop import (
    bare,
    bartbussmann,
    dictionary_learning,
    gemma_scope,
    hub,
    llamascopium,
    openai,
    own,
    saelens,
    sparsify,
)
from osae.interop.bare import Orientation
from osae.interop.export import Files, Origin, store
from osae.interop.found import Found, find
from osae.interop.parts import Matrices, Parts, folded
from osae.model import SAE

Target = Literal["saelens", "dictionary_learning", "sparsify", "osae"]

__all__ = ["FORMATS", "TARGETS", "Loaded", "convert", "load"]


class Format(NamedTuple):
    """A library's files: how they are told from others, and what is read out of them."""

    name: str
    recognises: Callable[[Found], bool]
    read: Callable[[Found], SAE | Parts | Matrices]


# in this order: what comes first has the more telling signs
FORMATS = tuple(
    Format(peer.NAME, peer.recognises, peer.read)
    for peer in (own, llamascopium, saelens, bartbussmann, openai, sparsify, dictionary_learning, gemma_scope)
)
EXPORTERS: dict[str, Callable[[SAE, Origin], Files]] = {
    peer.NAME: peer.export for peer in (saelens, dictionary_learning, sparsify)
}
TARGETS = (*EXPORTERS, own.NAME)


@dataclass(frozen=True, eq=False)
class Loaded:
    """An SAE from a file. `sae` is None where ours cannot compute what it does; `notes` then say why.

    `metadata` is the JSON that lay beside the weights, as it was.
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
        return self.decoder.shape[0]

    @property
    def width(self) -> int:
        return self.decoder.shape[1]


def load(path: Path | str, *, orientation: Orientation | None = None) -> Loaded:
    """The SAE at a path, whoever wrote it: a folder, a weight file, or `hf:user/repo/subfolder@revision`.

    `orientation` says whether the atoms of a bare decoder are its rows or its columns.
    """
    if orientation not in (None, "rows", "columns"):
        raise ValueError(f"orientation={orientation!r}: give 'rows' or 'columns'.")
    try:
        remote = isinstance(path, str) and path.startswith(hub.PREFIX)
        local = hub.fetch(str(path)) if remote else Path(path)
        if (local / "run.json").is_file() and not (local / "sae.json").is_file():
            local = own.only_sae_of_run(local)
        return _read(find(local), str(path), orientation)
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from error


def _read(found: Found, path: str, orientation: Orientation | None) -> Loaded:
    for peer in FORMATS:
        if peer.recognises(found):
            return _loaded(peer.read(found), found, path, peer.name)
    return _loaded(bare.read(found, orientation), found, path, bare.NAME)


def _loaded(read: SAE | Parts | Matrices, found: Found, path: str, name: str) -> Loaded:
    if isinstance(read, Matrices):
        encoder = None if read.encoder is None else read.encoder.contiguous()
        notes = [read.why, *read.notes]
        return Loaded(path, name, found.sha256, None, read.decoder.contiguous(), encoder, notes, found.config)
    sae, notes = folded(read) if isinstance(read, Parts) else (read, [])
    decoder, encoder = sae.decoder.detach(), sae.encoder.detach()
    return Loaded(path, name, found.sha256, sae, decoder, encoder, notes, found.config)


def convert(
    source: Loaded | SAE, out: Path | str, *, to: Target, model: str | None = None, layer: int | None = None
) -> None:
    """The SAE in the folder `out`, in the files of the library `to`; refused if anything would be lost.

    `model` and `layer` fill the fields that the other library has for them.
    """
    if to not in TARGETS:
        raise ValueError(f"to={to!r}: give one of {', '.join(TARGETS)}.")
    sae = source.sae if isinstance(source, Loaded) else source
    if sae is None:
        assert isinstance(source, Loaded)
        raise ValueError(f"{source.path}: only its matrices could be read, {source.notes[0]}")
    folder = Path(out)
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds files already: give a new or empty folder.")
    origin = Origin(_provenance(sae, source), model, layer)
    if to == own.NAME:
        sae.save(folder, provenance=origin.provenance)
    else:
        store(EXPORTERS[to](sae, origin), folder)


def _provenance(sae: SAE, source: Loaded | SAE) -> dict[str, Any]:
    """What is written beside an exported SAE: its choices, and the file it was read from."""
    about: dict[str, Any] = {"osae": __version__, "config": to_json(sae.config)}
    if isinstance(source, Loaded):
        about["source"] = {
            "path": source.path,
            "format": source.format,
            "sha256": source.sha256,
            "notes": source.notes,
            "provenance": source.metadata.get("provenance"),
        }
    return about
