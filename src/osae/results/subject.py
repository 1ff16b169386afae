"""The SAEs that a result is about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osae.results.codec import doc, flat, optional


@dataclass(frozen=True)
class SubjectInfo:
    """An SAE: where it comes from, its sizes, and how it was read."""

    path: str = doc('as given; "in memory" for an SAE or a matrix that was handed over in Python')
    format: str = doc('the library whose files these are; "decoder" for a bare matrix')
    sha256: str = doc("digest of the weight file; of the tensors for an SAE in memory")
    units: int = doc("number of units, K")
    width: int = doc("width of the activations, d")
    sparsifier: str | None = doc(
        'how the active units are selected, such as "TopK(k=32)"; null if only the matrices could be read'
    )
    notes: tuple[str, ...] = doc("what to know about how the file was read")


@dataclass(frozen=True)
class SourceInfo(SubjectInfo):
    """An SAE that another one was made from."""

    provenance: Mapping[str, Any] | None = optional("what the SAE's own file says about where it comes from")


@dataclass(frozen=True)
class Reconstruction:
    """How well an SAE reconstructs activations."""

    samples: int = doc("number of samples")
    measures: Mapping[str, float | None] = flat("numbers by measure", of="reconstruction")


def format_names(names: list[str], saes: tuple[SubjectInfo, ...]) -> list[str]:
    """Return the names of the SAEs, with their formats if these are not all our own."""
    if all(sae.format == "osae" for sae in saes):
        return names
    return [f"{name} ({sae.format})" for name, sae in zip(names, saes, strict=True)]


def note_lines(names: list[str], saes: tuple[SubjectInfo, ...]) -> list[str]:
    """Return what to know about how each SAE was read."""
    return [f"{name}: {note}" for name, sae in zip(names, saes, strict=True) for note in sae.notes]
