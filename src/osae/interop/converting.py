"""Write SAEs in the formats of other libraries."""

from pathlib import Path
from typing import Any

from osae import __version__
from osae.arrays import IN_MEMORY
from osae.config import to_json
from osae.interop import own
from osae.interop.ancestry import find_config, own_words
from osae.interop.export import Origin, store
from osae.interop.formats import DESCRIBED, TARGETS, Target, get_writer
from osae.interop.loading import Loaded, SAELike, load
from osae.interop.place import Place
from osae.messages import list_choices
from osae.stores import check_empty, new_folder, open_place


def convert(
    source: SAELike, out: Path | str, *, to: Target, model: str | None = None, layer: int | None = None
) -> None:
    """Write the SAE to the folder `out`, in the format of the library `to`.

    Raise `ValueError` if anything would be lost. Metadata about the model is stored in the corresponding
    fields of the other library; `model` and `layer`, the block whose output the SAE reads, override it.
    """
    if to not in TARGETS:
        raise ValueError(f"to={to!r}: {list_choices(to, TARGETS, 'give one of')}")
    if to not in DESCRIBED and (model, layer) != (None, None):
        raise ValueError(f"model={model!r}, layer={layer}: files for {to} have no such fields: remove both.")
    loaded = load(source)
    sae = loaded.require_sae()
    check_empty(open_place(out))
    origin = describe_origin(loaded, to, model, layer)
    if to == own.NAME:
        sae.save(out, provenance=origin.provenance)
    else:
        with new_folder(out) as folder:
            store(get_writer(to).export(sae, origin), folder)


def describe_origin(source: Loaded, to: Target, model: str | None, layer: int | None) -> Origin:
    """Return the origin of the SAE; given values override its file."""
    said = source.place
    hook = said.hook if layer is None else f"blocks.{layer}.hook_resid_post"
    place = Place(model or said.model, hook, said.context)
    config = find_config(source.format, source.metadata, to)
    return Origin(_provenance(source), place, config, tuple(source.notes))


def _provenance(source: Loaded) -> dict[str, Any]:
    """Return the provenance recorded in an exported SAE: its choices, and the file it was read from."""
    about: dict[str, Any] = {"osae": __version__, "config": to_json(source.require_sae().config)}
    if source.path != IN_MEMORY or source.metadata:
        about["source"] = {
            "path": source.path,
            "format": source.format,
            "sha256": source.sha256,
            "notes": source.notes,
            "provenance": own_words(source.format, source.metadata),
        }
    return about
