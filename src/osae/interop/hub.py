"""SAEs on the Hugging Face hub: `hf:user/repo/subfolder@revision`, downloaded to a local folder."""

from pathlib import Path, PurePosixPath

from osae.interop.found import CHECKPOINTS, CONFIGS, SHOWN, WEIGHTS
from osae.interop.weights import READERS

PREFIX = "hf:"
BESIDE = (*CONFIGS, "activation_scaler.json", "activation_whitening.safetensors")


def fetch(address: str) -> Path:
    """Download the weight file at the address and the JSON beside it; return its local path."""
    repo, inner, revision = _parse_address(address)
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError('the hub needs huggingface_hub: pip install "osae[hub]".') from error
    try:
        files = huggingface_hub.list_repo_files(repo, revision=revision)
        chosen = _choose_files([PurePosixPath(file) for file in files], inner)
        local = [huggingface_hub.hf_hub_download(repo, str(file), revision=revision) for file in chosen]
    except ValueError:
        raise
    except Exception as error:  # offline, no such repository, no access: the hub has a class for each
        raise ValueError(f"the hub answers: {error}") from error
    return Path(local[0])


def _parse_address(address: str) -> tuple[str, PurePosixPath, str | None]:
    place, _, revision = address.removeprefix(PREFIX).partition("@")
    parts = [part for part in place.split("/") if part]
    if len(parts) < 2 or ".." in parts:
        raise ValueError(
            "an address on the hub is of the form hf:user/repo or hf:user/repo/subfolder@revision."
        )
    return "/".join(parts[:2]), PurePosixPath(*parts[2:]), revision or None


def _choose_files(files: list[PurePosixPath], inner: PurePosixPath) -> list[PurePosixPath]:
    """Return one weight file, given by name or by its folder, and the JSON files that belong to it."""
    weights = [file for file in files if file.suffix in READERS and (file.parent == inner or file == inner)]
    known = [inner / name for name in WEIGHTS if inner / name in files]
    if inner in weights or known or len(weights) == 1:
        chosen = inner if inner in weights else (known or weights)[0]
        return [chosen, *_files_beside(files, chosen)]
    if weights:
        names = ", ".join(file.name for file in weights[:SHOWN])
        raise ValueError(f"this folder of the repository holds several weight files: name one of {names}.")
    below = sorted({str(file.parent) for file in files if file.suffix in READERS and inner in file.parents})
    remedy = (
        f"name one of its folders {', '.join(below[:SHOWN])}" if below else "nor does any folder below it"
    )
    raise ValueError(f"this folder of the repository holds no weights: {remedy}.")


def _files_beside(files: list[PurePosixPath], chosen: PurePosixPath) -> list[PurePosixPath]:
    folders = [chosen.parent]
    if chosen.parent.name == CHECKPOINTS:
        folders.append(chosen.parent.parent)
    return [file for file in files if file.parent in folders and file.name in BESIDE]
