"""SAEs on the Hugging Face hub, `hf:user/repo/subfolder@revision`: downloaded, and uploaded in one commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from osae.interop.found import CHECKPOINTS, CONFIGS, SHOWN, WEIGHTS
from osae.interop.weights import READERS

PREFIX = "hf:"
ATTRIBUTES = ".gitattributes"  # files that the hub itself adds to a new repository
BESIDE = (*CONFIGS, "activation_scaler.json", "activation_whitening.safetensors")


def fetch(address: str) -> Path:
    """Download the weight file at the address and the JSON next to it; return its local path."""
    repo, inner, revision = _parse_address(address)
    library = _import_library()
    with _one_kind_of_error(library):
        files = library.list_repo_files(repo, revision=revision)
        chosen = choose_files([PurePosixPath(file) for file in files], inner)
        local = [library.hf_hub_download(repo, str(file), revision=revision) for file in chosen]
    return Path(local[0])


def upload(folder: Path, address: str, *, private: bool = False, replace: bool = False) -> str:
    """Upload the folder as a repository, in one commit, and return the address of the commit.

    The repository is created if it does not exist. Raise `ValueError` if it already contains files, unless
    these are to be replaced: the same commit then deletes all files that are not in the folder. If the commit
    fails, nothing changes.
    """
    repo = check_repository(address)
    library = _import_library()
    with _one_kind_of_error(library):
        api = library.HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        about = api.model_info(repo)
        there = {file.rfilename for file in about.siblings or ()} - {ATTRIBUTES}
        if private and not about.private:
            raise ValueError(f"{repo} is public: make it private on the hub first, or remove --private.")
        if there and not replace:
            raise ValueError(f"{repo} already has {len(there)} files: add --replace to replace them.")
        files = {file.relative_to(folder).as_posix(): file for file in _list_files(folder)}
        operations = [library.CommitOperationAdd(name, str(file)) for name, file in files.items()]
        operations += [library.CommitOperationDelete(name) for name in sorted(there - set(files))]
        done = api.create_commit(
            repo, operations, commit_message="Upload SAEs with osae", parent_commit=about.sha
        )
    return str(done.commit_url)


def check_repository(address: str) -> str:
    """Return user/repo; raise `ValueError` if the address is not that of a repository."""
    repo, inner, revision = _parse_address(address)
    if inner.parts or revision:
        raise ValueError(f"{address}: give a repository, {PREFIX}{repo}, without a folder or revision.")
    return repo


def _list_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _import_library() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError('the hub needs huggingface_hub: pip install "osae[hub]".') from error
    return huggingface_hub


@contextmanager
def _one_kind_of_error(library: Any) -> Iterator[None]:
    """Convert the hub's errors to `ValueError`, without revealing the token."""
    try:
        yield
    except Exception as error:  # offline, no such repository, no access: the hub has a class for each
        said = " ".join(str(each) for each in (error, error.__cause__) if each is not None)
        secret = library.get_token() if hasattr(library, "get_token") else None
        if isinstance(error, ValueError) and not (secret and secret in said):
            raise
        # from None: the original error may contain the request with its headers
        raise ValueError(f"the hub responded: {said.replace(secret, '***') if secret else said}") from None


def _parse_address(address: str) -> tuple[str, PurePosixPath, str | None]:
    place, _, revision = address.removeprefix(PREFIX).partition("@")
    parts = [part for part in place.split("/") if part]
    if len(parts) < 2 or ".." in parts:
        raise ValueError("give an address of the form hf:user/repo or hf:user/repo/subfolder@revision.")
    return "/".join(parts[:2]), PurePosixPath(*parts[2:]), revision or None


def choose_files(files: list[PurePosixPath], inner: PurePosixPath) -> list[PurePosixPath]:
    """Return one weight file, given by its name or folder, and the JSON files that belong to it."""
    weights = [file for file in files if file.suffix in READERS and (file.parent == inner or file == inner)]
    known = [inner / name for name in WEIGHTS if inner / name in files]
    if inner in weights or known or len(weights) == 1:
        chosen = inner if inner in weights else (known or weights)[0]
        return [chosen, *_files_beside(files, chosen)]
    if weights:
        names = ", ".join(file.name for file in weights[:SHOWN])
        raise ValueError(f"this folder of the repository contains several weight files: give one of {names}.")
    below = sorted({str(file.parent) for file in files if file.suffix in READERS and inner in file.parents})
    if len(below) == 1 and PurePosixPath(below[0]).name != CHECKPOINTS:  # the only SAE that is there
        return choose_files(files, PurePosixPath(below[0]))
    remedy = f"give one of its folders {', '.join(below[:SHOWN])}" if below else "give another folder"
    raise ValueError(f"this folder of the repository contains no weights: {remedy}.")


def _files_beside(files: list[PurePosixPath], chosen: PurePosixPath) -> list[PurePosixPath]:
    folders = [chosen.parent]
    if chosen.parent.name == CHECKPOINTS:
        folders.append(chosen.parent.parent)
    return [file for file in files if file.parent in folders and file.name in BESIDE]
