"""What a command reads: refused before anything heavy is loaded if it is not there."""

from collections.abc import Iterable, Sequence
from pathlib import Path

HUB = "hf:"  # starts the address of an SAE on the hub, which is looked up later


def check_present(*paths: Path | str | None) -> None:
    """Raise `ValueError` if a file or folder does not exist."""
    for path in paths:
        if path is not None and not str(path).startswith(HUB) and not Path(path).exists():
            raise ValueError(f"{path}: there is no such file or folder.{_near(Path(path))}")


def _near(path: Path) -> str:
    """Return a question that names the neighbour that was probably meant; empty if there is none."""
    from osae.suggestions import suggest

    hint = suggest(path.name, _names(path.parent))
    return f" {hint[0].upper()}{hint[1:]}" if hint else ""


def _names(folder: Path) -> Iterable[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def check_several(saes: Sequence[str]) -> None:
    """Raise `ValueError` if there is a single SAE where two are needed; a run stands for all of its SAEs."""
    if len(saes) == 1 and not saes[0].startswith(HUB) and not (Path(saes[0]) / "run.json").exists():
        raise ValueError(f"{saes[0]} is the only SAE given: give at least two, or the folder of a run.")


def check_run(folder: Path) -> None:
    """Raise `ValueError` if the folder does not exist or contains no run."""
    check_present(folder)
    if not (folder / "run.json").exists():
        raise ValueError(f"{folder} has no run.json, so there is no run to resume: `osae train` starts one.")
