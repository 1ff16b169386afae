"""The SAEs that a result is about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osae.results.codec import doc, flat, optional

_NAMED = 4  # SAEs named in a warning


@dataclass(frozen=True)
class SubjectInfo:
    """An SAE: its source, its sizes, and how it was read."""

    path: str = doc('as given; "in memory" for an SAE or matrix passed in Python')
    format: str = doc('the library that wrote the file; "decoder" for a bare matrix')
    sha256: str = doc("digest of the weight file; of the tensors for an SAE in memory")
    units: int = doc("number of units, K")
    width: int = doc("width of the activations, d")
    sparsifier: str | None = doc(
        'how the active units are selected, such as "TopK(k=32)"; null if only the matrices could be read'
    )
    notes: tuple[str, ...] = doc("notes on how the file was read")
    model: str | None = optional(
        "the model whose activations it was trained on; absent if unknown", kw_only=True
    )
    place: str | None = optional("the layer or module of the model; absent if unknown", kw_only=True)
    what: str | None = optional(
        'what it is if its file says that it is not an SAE, such as "transcoder"', kw_only=True
    )


@dataclass(frozen=True)
class SourceInfo(SubjectInfo):
    """An SAE from which another one was derived."""

    provenance: Mapping[str, Any] | None = optional("the provenance recorded in the SAE's own file")


@dataclass(frozen=True)
class Reconstruction:
    """How well an SAE reconstructs activations."""

    samples: int = doc("number of samples")
    measures: Mapping[str, float | None] = flat("numbers by measure", of="reconstruction")


def format_names(names: list[str], saes: tuple[SubjectInfo, ...]) -> list[str]:
    """Return the names of the SAEs, with their formats unless all are osae's own."""
    if all(sae.format == "osae" for sae in saes):
        return names
    return [f"{name} ({sae.format})" for name, sae in zip(names, saes, strict=True)]


def explain_misfit(name: str, notes: Sequence[str]) -> str:
    """Return a sentence on why an SAE explains less variance than the mean does."""
    otherwise = ", or an assumption about its file is wrong (see its notes)" if notes else ""
    return (
        f"{name} explains less variance than the mean does: it was probably trained on other activations"
        f"{otherwise}."
    )


def note_lines(names: list[str], saes: tuple[SubjectInfo, ...]) -> list[str]:
    """Return the notes on how each SAE was read."""
    return [f"{name}: {note}" for name, sae in zip(names, saes, strict=True) for note in sae.notes]


def difference_lines(names: list[str], saes: tuple[SubjectInfo, ...]) -> list[str]:
    """Return a warning for each way in which the SAEs' files show that they do not belong together."""
    named = dict(zip(names, saes, strict=True))
    said = {
        "are of different kinds": {name: sae.what or "SAE" for name, sae in named.items()},
        "were trained on different models": {
            name: (sae.model or "").rpartition("/")[2].lower() for name, sae in named.items()
        },
        "were trained on activations from different hook points": {
            name: sae.place or "" for name, sae in named.items()
        },
    }
    return [
        f"These SAEs {differ}, and may disagree for that reason alone: {listed}."
        for differ, by_name in said.items()
        if (listed := _list_different(by_name))
    ]


def _list_different(said: dict[str, str]) -> str:
    """Return the values by SAE, at most a few, if the known ones are not all equal."""
    known = {name: value for name, value in said.items() if value}
    if len(set(known.values())) < 2:
        return ""
    groups = {value: [name for name in known if known[name] == value] for value in known.values()}
    return "; ".join(f"{_shorten(members)}: {value}" for value, members in groups.items())


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
