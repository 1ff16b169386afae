"""osae's own folders: `sae.json` with the choices, `sae.safetensors` with the parameters; and runs."""

from pathlib import Path
from typing import Any

from osae.interop.found import SHOWN, Found, inside
from osae.interop.place import Place, read_place
from osae.model import SAE, read_saved

NAME = "osae"


def recognises(found: Found) -> bool:
    """Return whether osae wrote the file."""
    return found.file.name == "sae.safetensors" and (found.file.parent / "sae.json").is_file()


def read(found: Found) -> SAE:
    """Return the SAE as it was saved."""
    return read_saved(found.config, found.entries, found.sha256)


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from: directly from a model, or harvested before."""
    about = inside(config, "provenance")
    spec = inside(inside(about, "source"), "harvest") or inside(about, "harvested")
    layer = spec.get("layer")  # of hidden_states: what enters the block of that number
    return read_place(
        spec.get("model"),
        spec.get("module") if layer is None else f"blocks.{layer}.hook_resid_pre",
        spec.get("context"),
    )


def is_run(path: Path) -> bool:
    """Return whether this is the folder of a run, not of one of its SAEs."""
    return (path / "run.json").is_file() and not (path / "sae.json").is_file()


def saes_of_run(folder: Path) -> list[Path]:
    """Return the folders of a run's finished SAEs; raise `ValueError` if there is none."""
    found = sorted(child.parent for child in folder.glob("*/sae.json"))
    if not found:
        raise ValueError(f"this run has no finished SAE yet: complete it with `osae resume {folder}`.")
    return found


def only_sae_of_run(folder: Path) -> Path:
    """Return the folder of a run's only finished SAE."""
    found = saes_of_run(folder)
    if len(found) == 1:
        return found[0]
    names = [one.name for one in found]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise ValueError(f"this run contains {len(names)} SAEs: give one of {', '.join(names[:SHOWN])}{more}.")
