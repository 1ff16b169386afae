"""SAEs on object stores, such as s3://bucket/run/osae-seed0: downloaded, with what belongs to them."""

import shutil
from pathlib import Path, PurePosixPath

from osae.interop.hub import choose_files
from osae.interop.own import only_sae_of_run
from osae.stores import Store, find_copy


def fetch(url: str) -> Path:
    """Download the weight file at the URL and the JSON beside it; return its local path."""
    store = Store(url)
    if store.is_file(""):
        above, _, name = store.url.rpartition("/")
        return _fetch_chosen(Store(above), PurePosixPath(name))
    if not (names := store.list()):
        raise ValueError("there is no such file or folder.")
    if not _is_run(names):
        return _fetch_chosen(store, PurePosixPath())
    local = find_copy(store.url, "saes")
    shutil.rmtree(local, ignore_errors=True)
    for name in ("run.json", *(f"{sae}/sae.json" for sae in _list_saes(names))):
        store.get(name, local / name)
    try:
        sae = only_sae_of_run(local).name
    except ValueError as error:
        raise ValueError(str(error).replace(str(local), store.url)) from error
    return _fetch_chosen(store, PurePosixPath(sae))


def list_saes_of_run(url: str) -> list[str]:
    """Return the URLs of a run's finished SAEs; of anything else, the URL itself."""
    store = Store(url)
    names = store.list()
    if not _is_run(names):
        return [url]
    if not (found := _list_saes(names)):
        raise ValueError(f"this run has no finished SAE yet: `osae resume {url}` completes it.")
    return [store.join(name) for name in found]


def _is_run(names: dict[str, int]) -> bool:
    return "run.json" in names and "sae.json" not in names


def _list_saes(names: dict[str, int]) -> list[str]:
    parts = [PurePosixPath(name).parts for name in names]
    return sorted(each[0] for each in parts if len(each) == 2 and each[1] == "sae.json")


def _fetch_chosen(store: Store, inner: PurePosixPath) -> Path:
    """Download the weights in a folder of the store, or of this name, and what belongs to them."""
    chosen = choose_files([PurePosixPath(name) for name in store.list()], inner)
    local = find_copy(store.url, "saes")
    for file in chosen:
        store.get(str(file), local / file)
    return local / chosen[0]
