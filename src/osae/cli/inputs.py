"""Checks of a command's input files, before anything heavy is loaded."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from osae.stores import Place, is_remote, open_place

HUB = "hf:"  # prefix of the address of an SAE on the hub, which is looked up later


def check_present(*paths: Place | None) -> None:
    """Raise `ValueError` if a file or folder on this machine does not exist."""
    for path in paths:
        if path is None or is_remote(path) or str(path).startswith(HUB):
            continue
        if not Path(path).exists():
            raise ValueError(f"{path}: there is no such file or folder.{_near(Path(path))}")


def _near(path: Path) -> str:
    """Return a question suggesting the file that was probably meant; empty if there is none."""
    from osae.messages import suggest

    hint = suggest(path.name, _names(path.parent))
    return f" {hint[0].upper()}{hint[1:]}" if hint else ""


def _names(folder: Path) -> Iterable[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def check_several(saes: Sequence[str]) -> None:
    """Raise `ValueError` if only one SAE is given where two are needed; a run counts as all of its SAEs."""
    elsewhere = is_remote(saes[0]) or saes[0].startswith(HUB)
    if len(saes) == 1 and not elsewhere and not (Path(saes[0]) / "run.json").exists():
        raise ValueError(f"{saes[0]} is the only SAE given: give at least two, or the folder of a run.")


def check_run(folder: Place) -> None:
    """Raise `ValueError` if the folder does not exist or contains no run."""
    check_present(folder)
    if "run.json" not in open_place(folder).names():
        raise ValueError(
            f"{folder} has no run.json, so there is no run to resume: start one with `osae train`."
        )
