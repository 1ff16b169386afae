"""Our own folders: `sae.json` with the choices, `sae.safetensors` with the parameters; and runs of them."""

from pathlib import Path
from typing import Any

from osae.interop.found import SHOWN, Found, inside
from osae.interop.place import Place, read_place
from osae.model import SAE, read_saved

NAME = "osae"


def recognises(found: Found) -> bool:
    """Return whether the file is one of ours."""
    return found.file.name == "sae.safetensors" and (found.file.parent / "sae.json").is_file()


def read(found: Found) -> SAE:
    """Return the SAE as it was saved."""
    return read_saved(found.config, found.entries, found.sha256)


def place(config: dict[str, Any]) -> Place:
    """Return where the activations come from, for an SAE that was trained straight from a model."""
    spec = inside(inside(inside(config, "provenance"), "source"), "harvest")
    layer = spec.get("layer")  # of hidden_states: what enters the block of that number
    return read_place(
        spec.get("model"),
        spec.get("module") if layer is None else f"blocks.{layer}.hook_resid_pre",
        spec.get("context"),
    )


def only_sae_of_run(folder: Path) -> Path:
    """Return the folder of a run's only finished SAE."""
    names = sorted(child.parent.name for child in folder.glob("*/sae.json"))
    if len(names) == 1:
        return folder / names[0]
    if not names:
        raise ValueError(f"this run has no finished SAE yet: `osae resume {folder}` continues it.")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise ValueError(f"this run holds {len(names)} SAEs: name one of {', '.join(names[:SHOWN])}{more}.")
