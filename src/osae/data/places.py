"""Places in a language model, checked before its weights are loaded; needs neither torch nor transformers.

A place is a layer by number or a module by name. How many blocks a model has is stated in the first bytes of
a GGUF file, or in the `config.json` of any other model.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from osae.files import check_regular, read_json

CONFIG = "config.json"
SECONDS = 2.0  # time to wait for the hub
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # which one depends on the kind of model
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # GGUF: bytes by type
_INTEGERS = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING = 8
_LONGEST_KEY = 1024


def check_place(
    name: str, *, layer: int | None = None, module: str | None = None, revision: str | None = None
) -> None:
    """Raise `ValueError` if the model's folder does not exist, or its configuration has no such layer.

    Only what can be looked up quickly is checked: names of modules, and models whose number of blocks cannot
    be found, are checked when the model is opened.
    """
    if (layer is None) == (module is None):
        raise ValueError(f"layer={layer}, module={module}: give one of the two.")
    _check_folder(split_gguf(name)[0])
    if layer is not None and (blocks := _count_blocks(name, revision)) is not None:
        check_layer(layer, blocks)


def _check_folder(where: str) -> None:
    """Raise `ValueError` if this can only be a folder, not OWNER/NAME on the hub, and does not exist."""
    if (where.startswith(("/", ".", "~")) or where.count("/") > 1) and not Path(where).is_dir():
        raise ValueError(f"{where}: there is no such folder; give one, or a model on the hub as OWNER/NAME.")


def check_layer(layer: int, blocks: int) -> None:
    """Raise `ValueError` if a model with that many blocks has no such layer."""
    if not 0 <= layer <= blocks:
        raise ValueError(f"layer={layer}: the model has {blocks} blocks; choose a layer from 0 to {blocks}.")


def find_revision(where: str, revision: str | None, kind: str) -> str | None:
    """Return the commit of a model or dataset on the hub, so that it can be opened again as it is now.

    Return `revision` for a local folder, and if the hub cannot be asked.
    """
    if Path(where).exists():
        return revision
    try:
        from huggingface_hub import HfApi

        return HfApi().repo_info(where, revision=revision, repo_type=kind, timeout=SECONDS).sha or revision
    except Exception:  # of every kind; opening it reports them
        return revision


def split_gguf(name: str) -> tuple[str, str]:
    """Return the folder or repository of a model, and its GGUF file or an empty string."""
    if not name.endswith(".gguf"):
        return name, ""
    where, _, file = name.rpartition(":")
    return (where, file) if where else (str(Path(file).parent), Path(file).name)


def _count_blocks(name: str, revision: str | None) -> int | None:
    """Return the number of blocks of a model; None if it cannot be found quickly."""
    where, file = split_gguf(name)
    try:
        path = _find(where, file or CONFIG, revision)
        if file:
            count = None if path is None else _count_in_gguf(path)
        else:
            count = _count_in_config(_fetch_config(where, revision) if path is None else read_json(path))
    except Exception:  # of every kind: files, formats, the network; opening the model reports them
        return None
    return count if type(count) is int and count > 0 else None


def _find(where: str, file: str, revision: str | None) -> Path | None:
    """Return the local path of a model's file, in its folder or in the hub's cache; None if not found."""
    if Path(where).is_dir():
        return Path(where) / file
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(where, file, revision=revision)
    return Path(cached) if isinstance(cached, str) else None


def _fetch_config(where: str, revision: str | None) -> Any:
    """Return the configuration of a model on the hub, in a single request without lengthy retries."""
    from huggingface_hub import get_token, hf_hub_url
    from huggingface_hub.utils import get_session

    headers = {"authorization": f"Bearer {token}"} if (token := get_token()) else {}
    url = hf_hub_url(where, CONFIG, revision=revision)
    answer = get_session().get(url, headers=headers, timeout=SECONDS)
    answer.raise_for_status()
    return answer.json()


def _count_in_config(config: Any) -> Any:
    inner = config.get("text_config")
    places = (inner, config) if isinstance(inner, dict) else (config,)
    return next((place[key] for place in places for key in _COUNTS if key in place), None)


def _count_in_gguf(path: Path) -> int | None:
    """Return the block count in the header of a GGUF file; None if it comes after the first array.

    The arrays contain the tokenizer. The gguf package also reads them, which takes ten seconds.
    """
    check_regular(path)
    with open(path, "rb") as file:
        magic, version, _, fields = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF" or version < 2:
            return None
        for _ in range(fields):
            length = _unpack(file, "<Q")
            key = file.read(min(length, _LONGEST_KEY))
            kind = _unpack(file, "<I")
            if key.endswith(b".block_count") and kind in _INTEGERS:
                return _unpack(file, _INTEGERS[kind])
            if kind != _STRING and kind not in _SIZES:
                return None
            file.seek(_unpack(file, "<Q") if kind == _STRING else _SIZES[kind], 1)
    return None


def _unpack(file: BinaryIO, layout: str) -> int:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]
