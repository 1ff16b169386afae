"""A folder that SAELens, sparsify and `osae.load` can all read, as uploaded by `osae push`.

SAELens reads `cfg.json` and `sae_weights.safetensors`, sparsify `cfg.json` and `sae.safetensors`. Both ignore
fields of `cfg.json` that they do not know, so one file serves both.
"""

from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from osae.interop import saelens, sparsify
from osae.interop.converting import describe_origin
from osae.interop.export import Files, Origin, store
from osae.interop.loading import Loaded
from osae.model import SAE

CONFIG = "cfg.json"


def write_sae(
    source: Loaded,
    folder: Path,
    *,
    model: str | None = None,
    layer: int | None = None,
    known: dict[str, Any] | None = None,
) -> tuple[str, ...]:
    """Write the SAE to the folder, and return the libraries that can load it.

    `model` and `layer` override its file. `known` is recorded in its metadata in addition to its origin; only
    the last component of local paths is recorded.
    """
    sae = source.require_sae()
    origin = describe_origin(source, saelens.NAME, model, layer)
    public = _without_folders(origin.provenance) | (known or {})
    place = replace(origin.place, model=_without_folders(origin.place.model))
    files = saelens.export(sae, replace(origin, provenance=public, place=place))
    beside = _export_for_sparsify(sae, describe_origin(source, sparsify.NAME, None, None))
    if not beside:
        store(files, folder)
        return (saelens.NAME,)
    fields = {name: value for name, value in beside.pop(CONFIG).items() if name != "osae"}
    config = fields | files.pop(CONFIG)
    store(files | beside | {CONFIG: config}, folder)
    return (saelens.NAME, sparsify.NAME)


def _export_for_sparsify(sae: SAE, origin: Origin) -> Files:
    """Return sparsify's files; none if it does not support the SAE."""
    try:
        return sparsify.export(sae, origin)
    except ValueError:
        return {}


def _without_folders(value: Any) -> Any:
    """Return plain data with every absolute path shortened to its last component, for privacy."""
    match value:
        case dict():
            return {key: _without_folders(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_folders(inner) for inner in value]
        case str() if PurePosixPath(value).is_absolute() or value.startswith("~"):
            return PurePosixPath(value).name
        case str() if PureWindowsPath(value).is_absolute():
            return PureWindowsPath(value).name
        case _:
            return value
